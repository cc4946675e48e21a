"""The PATH of servers, put together."""

import os

from hypothesis import given
from hypothesis import strategies as st

from carpool_protocol.runtime.search_path import merged_path, missing_program, not_found_text
from tests.behaviours import behaviour

ENTRIES = st.lists(st.sampled_from(["/a", "/b", "/p/bin", "/c d", "", ".", "rel/bin", "~/bin", "/\udcff"]))


def joined(entries: list[str]) -> str:
    return os.pathsep.join(entries)


@behaviour("path:login")
def test_the_login_shell_comes_first_whatever_the_daemon_was_started_with() -> None:
    def everything(_: str) -> bool:
        return True

    assert merged_path("/home/a/bin:/usr/bin", "/usr/bin:/opt/x:tools", everything) == [
        "/home/a/bin",
        "/usr/bin",
        "/opt/x",
    ]
    assert merged_path(None, "/usr/bin:/bin", everything) == ["/usr/bin", "/bin"]


@behaviour("path:clones")
@behaviour("path:login")
@given(ENTRIES | st.none(), ENTRIES)
def test_every_entry_is_absolute_and_stands_once_and_only_the_login_shell_names_one_of_a_project(
    login: list[str] | None, own: list[str]
) -> None:
    said = merged_path(
        None if login is None else joined(login), joined(own), lambda each: not each.startswith("/p/")
    )
    anywhere = {"/a", "/b", "/c d"}
    usable = {*anywhere, "/p/bin"}
    assert set(said) == usable & {*(login or ())} | anywhere & {*own}
    assert len(said) == len(set(said))
    first = [each for each in dict.fromkeys(login or ()) if each in usable]
    assert said[: len(first)] == first
    joined(said).encode()


def test_the_sentence_about_a_missing_program_is_read_back_from_a_longer_text() -> None:
    text = f"could not be started: {not_found_text('uvx')} (3 times)"
    assert missing_program(text) == "uvx"
    assert missing_program("the command /x/uvx does not exist") == ""


def test_arguments_in_place_of_a_program_lead_to_args_and_are_not_repeated() -> None:
    text = not_found_text("uvx --token=secret-7 mcp-server-time")
    assert text == "`command` names one program: leave `uvx` there, and put what follows it into `args`"
    assert missing_program(f"could not be started: {text}") == ""
