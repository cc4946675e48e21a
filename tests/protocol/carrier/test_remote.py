"""What a bridge is told, and what is wrong with URLs and headers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_protocol.carrier.remote import (
    Remote,
    check_header_name,
    check_header_value,
    check_url,
    host_of,
    remote_from_environment,
    secrets_of,
)
from carpool_protocol.config.pages.describe import shown_url

NAMES = st.from_regex(r"[!#-'*+.^_`|~0-9A-Za-z-]{1,12}", fullmatch=True)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"))


@given(st.dictionaries(NAMES, TEXTS), TEXTS, st.sampled_from(["http", "sse", "url"]))
def test_what_is_told_is_understood(headers: dict[str, str], text: str, transport: str) -> None:
    remote = Remote(
        server="s",
        url="https://h.example/a?b=c",
        transport=transport,  # type: ignore[arg-type]
        headers=headers,
        client_id=text,
        logins="/l",
    )
    assert remote_from_environment({**remote.to_environment(), "PATH": "/bin"}) == remote


def test_headers_and_the_url_are_secrets_and_the_name_of_the_server_is_none() -> None:
    """Else no list of a server with a long name were ever kept, and its own name masked in its log."""
    remote = Remote(
        server="filesystem",
        url="https://mcp.test/s3cret",
        transport="http",
        headers={"Authorization": "Bearer token-1", "X-Key": "key-2"},
        logins="/state/logins",
    )
    environ = {**remote.to_environment(), "MY_TOKEN": "mine-3", "MODE": "production"}
    assert secrets_of(environ) == {
        "https://mcp.test/s3cret", "Bearer token-1", "token-1", "key-2", "mine-3"
    }  # fmt: skip


def test_the_secret_of_a_client_stays_with_the_login() -> None:
    remote = Remote(server="s", url="https://h", client_id="me", client_secret="hunter2", scopes=("a",))
    assert "hunter2" not in str(remote.to_environment())


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"CARPOOL_REMOTE_URL": "ftp://x"},
        {"CARPOOL_REMOTE_URL": "http://x", "CARPOOL_REMOTE_TRANSPORT": "ws"},
    ],
)
def test_a_bridge_that_is_told_nothing_knows_it(environ: dict[str, str]) -> None:
    assert remote_from_environment(environ) is None


@pytest.mark.parametrize("url", ["http://h", "HTTPS://h:1/x", "http://[::1]:8/mcp?a=b", "http://u:p@h/"])
def test_a_url_with_a_host_can_be_used(url: str) -> None:
    assert check_url(url) is None


@pytest.mark.parametrize(
    "url",
    [
        "",
        "h/mcp",
        "ftp://h",
        "http://",
        "http:///x",
        "http://h:99999",
        "http://[::1",
        "http://h/a b",
        "http://h\n",
    ],
)
def test_any_other_cannot(url: str) -> None:
    assert check_url(url) is not None


@given(st.text())
def test_any_text_is_judged_as_a_url_and_named_without_secrets(text: str) -> None:
    check_url(text)
    host_of(text)


def test_a_host_is_named_without_user_path_and_query() -> None:
    assert host_of("https://user:pass@h.example:8443/path?query#fragment") == "h.example:8443"
    assert host_of("http://[::1]:9/x") == "[::1]:9"


@pytest.mark.parametrize(
    ("name", "fine"), [("X-Key", True), ("a b", False), ("", False), ("Content-Length", False)]
)
def test_names_of_headers_are_tokens_and_not_those_of_the_transport(name: str, fine: bool) -> None:
    assert (check_header_name(name) is None) is fine


@pytest.mark.parametrize("value", ["a\nb", " a", "a ", "ä", "\0"])
def test_values_of_headers_are_printable_ascii(value: str) -> None:
    assert check_header_value(value) is not None
    assert check_header_value("Bearer a.b-c") is None


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("https://h.example/mcp", "https://h.example/…"),
        ("https://h.example", "https://h.example"),
        ("https://user:pass@h.example:1/a?key=hunter2", "https://h.example:1/…"),
        ("https://h?key=hunter2", "https://h/…"),
        ("${URL}", "${URL}"),
        ("hunter2", "…"),
    ],
)
def test_a_url_is_shown_by_its_host(template: str, shown: str) -> None:
    assert shown_url(template) == shown


@pytest.mark.parametrize(
    ("url", "headers", "authorized"),
    [
        ("https://user:password@h/mcp", {}, True),
        ("https://h/mcp?mail=a@b", {}, False),
        ("https://h/mcp", {"authorization": "Basic x"}, True),
        ("https://h/mcp", {"X-Key": "x"}, False),
    ],
)
def test_a_url_with_a_user_needs_no_login(url: str, headers: dict[str, str], authorized: bool) -> None:
    assert Remote(server="s", url=url, headers=headers).authorized == authorized
