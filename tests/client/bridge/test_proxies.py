"""The proxies of the environment, as far as people are told of them."""

import pytest

from carpool.bridge import proxies
from carpool.bridge.error_mapping import connect_trouble
from tests.behaviours import behaviour

NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@behaviour("remote:proxy")
@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("ALL_PROXY", "socks5h://127.0.0.1:9", "ALL_PROXY names a SOCKS proxy"),
        ("HTTPS_PROXY", "socks4://127.0.0.1:9", "HTTPS_PROXY names a proxy of a kind that cannot be used"),
        ("HTTP_PROXY", "127.0.0.1:9", None),
        ("HTTP_PROXY", "https://user:secret@127.0.0.1:9", None),
    ],
)
def test_a_proxy_that_cannot_be_used_is_named_by_its_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str | None
) -> None:
    assert proxies.unusable() is None
    monkeypatch.setenv(name, value)
    monkeypatch.setattr("carpool.bridge.proxies.find_spec", lambda _: None)
    trouble = proxies.unusable()
    assert (says is None) == (trouble is None)
    if trouble is not None and says is not None:
        assert trouble.text.startswith(says)
        monkeypatch.setenv("NO_PROXY", "*")
        assert proxies.unusable() is None


@behaviour("remote:proxy")
def test_what_fails_at_a_proxy_is_not_said_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    refused = ConnectionRefusedError()
    text = connect_trouble("https://far.example/mcp", refused).text
    assert (
        text == "cannot reach far.example through the proxy that the environment names (connection refused)"
    )
    assert "proxy" not in connect_trouble("http://far.example/mcp", refused).text
    monkeypatch.setenv("NO_PROXY", "far.example")
    assert "proxy" not in connect_trouble("https://far.example/mcp", refused).text
