"""`${VAR}`: grammar, expansion, and whose environment."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool_protocol.bootstrap import paths
from carpool_protocol.config.schema.environment import (
    OWN_MARKS,
    is_volatile,
    of_caller,
    read_env_file,
    scrub,
)
from carpool_protocol.config.schema.expand import (
    BadTemplate,
    MissingValue,
    expand,
    from_home,
    read_template,
    references,
)

VARIABLES = {"A": "1", "EMPTY": "", "NESTED": "${A}", "NUL": "a\0b", "BYTES": "a\udc80"}
PLACES = {"workspace": "/w", "cwd": ""}


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("plain $A $$ $(x) {A}", "plain $A $$ $(x) {A}"),
        ("<${A}${A}>", "<11>"),
        ("${EMPTY}", ""),
        ("${EMPTY:-d}", "d"),
        ("${NO:-}", ""),
        ("${NO:-a b:-c$}", "a b:-c$"),
        ("${NESTED}", "${A}"),
        ("${workspace}/x", "/w/x"),
        ("$${A} ${A}", "${A} 1"),
        ("$$${A}", "$${A}"),
        ("é${A}😀", "é1😀"),
    ],
)
def test_a_template_becomes(text: str, becomes: str) -> None:
    assert expand(text, VARIABLES, PLACES) == becomes


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("a${NO}b${NO2}", MissingValue("NO")),
        ("${cwd}", MissingValue("cwd")),
        ("${NUL}", MissingValue("NUL", "unusable")),
        ("${BYTES}", MissingValue("BYTES", "unusable")),
    ],
)
def test_what_cannot_be_filled_in_is_named(text: str, missing: MissingValue) -> None:
    found = expand(text, VARIABLES, PLACES)
    assert found == missing
    assert missing.name in missing.render()


@pytest.mark.parametrize(
    "text", ["${", "${}", "${A", "${A:-", "${1A}", "${A:x}", "${A-b}", "${env:A}", "${A:-${B}}", "${cwd:-/}"]
)
def test_what_is_no_template_is_refused(text: str) -> None:
    assert isinstance(read_template(text), BadTemplate)


@settings(deadline=None)
@given(st.text() | st.text(alphabet="${}:-AB\n"))
def test_no_text_makes_expansion_raise_and_the_names_it_refers_to_are_enough_to_fill_it_in(text: str) -> None:
    names = references(text)
    assert isinstance(expand(text, dict.fromkeys(names, "x"), {"workspace": "w", "cwd": "c"}), str)
    found = expand(text, {}, {})
    assert isinstance(found, str) or found.name in names


@settings(deadline=None)
@given(st.text())
def test_a_value_is_put_in_as_it_is_and_never_expanded_again(value: str) -> None:
    found = expand("<${A}>", {"A": value}, {})
    assert found in {f"<{value}>", MissingValue("A", "unusable")}


# --- whose environment -----------------------------------------------------------------------------------


def test_the_daemon_keeps_what_describes_person_and_machine_and_no_token() -> None:
    environ = {
        "HOME": "/h", "PATH": "/bin", "LC_ALL": "C", "XDG_CONFIG_HOME": "/c", "https_proxy": "p",
        "SSL_CERT_FILE": "c", "UV_INDEX_URL": "u", "npm_config_registry": "r",
        "GITHUB_TOKEN": "t", "AWS_SECRET_ACCESS_KEY": "t", "npm_config_user_agent": "x", "SSH_AUTH_SOCK": "s",
        "XDG_SESSION_ID": "3", "LC_TERMINAL": "x", "PATHX": "x", "CARPOOL_INSTANCE": "x", "LANG": "a\udc80",
    }  # fmt: skip
    assert scrub(environ) == dict(list(environ.items())[:8])
    assert scrub({"PATH": "node_modules/.bin:/usr/bin::.:/bin"}) == {"PATH": "/usr/bin:/bin"}
    assert scrub({"PATH": "."}) == {}


def test_what_differs_between_two_terminals_is_volatile_and_credentials_are_not() -> None:
    assert all(
        map(is_volatile, ["TERM", "PWD", "_", "SSH_TTY", "TMUX_PANE", "TERM_SESSION_ID", "CARPOOL_INSTANCE"])
    )
    assert not any(
        map(is_volatile, ["PATH", "HOME", "SSH_AUTH_SOCK", "GITHUB_TOKEN", "TERMINAL", "XPWD", "PWD2", ""])
    )


def test_our_own_marks_are_the_ones_the_processes_carry() -> None:
    assert {paths.INSTANCE_MARK, paths.DAEMON_MARK} == OWN_MARKS


def test_a_caller_hands_on_everything_but_our_marks_and_what_no_process_can_take() -> None:
    assert of_caller(
        {"A": "1", "TERM": "x", "CARPOOL_INSTANCE": "i", "B": "\0", "C": "\udc80", "D=": "x", "": "x"}
    ) == {
        "A": "1",
        "TERM": "x",
    }


def test_an_env_file_is_read_literally() -> None:
    text = "# head\n\nA=1\r\nexport B = 'two words'\nC=\"x#y\"\nD=a # b\nE=\nF='\n"
    assert read_env_file(text, "e") == (
        {"A": "1", "B": "two words", "C": "x#y", "D": "a # b", "E": "", "F": "'"},
        [],
    )


def test_mistakes_in_an_env_file_are_told_by_line_and_name_and_never_by_value() -> None:
    _, problems = read_env_file("A=1\nhunter2 hunter2\nA=hunter2\n", "e")
    assert [problem.render() for problem in problems] == [
        "e:2: is not a line like NAME=value",
        "e:3: A: set twice, also on line 1; keep one",
    ]


@settings(deadline=None)
@given(st.text())
def test_no_env_file_makes_the_reader_raise(text: str) -> None:
    values, _ = read_env_file(text, "e")
    assert all(isinstance(value, str) for value in values.values())


@pytest.mark.parametrize(
    ("path", "there"),
    [("~", "/h"), ("~/a/b", "/h/a/b"), ("~user/a", "~user/a"), ("a/~/b", "a/~/b"), ("/a", "/a"), ("", "")],
)
def test_a_tilde_alone_is_the_home_directory(path: str, there: str) -> None:
    assert from_home(path, "/h") == there
