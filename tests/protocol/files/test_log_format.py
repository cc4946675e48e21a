"""Lines of logs: one printable line of JSON each, whatever the text is."""

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from carpool_protocol.files.log_format import log_line, message_of
from tests.behaviours import behaviour

AT = "2026-11-21T22:00:01.123Z"


@behaviour("logs:format")
@given(st.text(st.characters(exclude_categories=[])), st.text())
def test_any_text_comes_back_from_a_line_that_no_terminal_obeys(message: str, server: str) -> None:
    line = log_line(AT, "info", "broker", message, {"server": server})
    assert not any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 for char in line)
    assert not any(char in line for char in "\u2028\u2029\u202e\u2066\u200f")
    found = msgspec.json.decode(line.encode())
    assert found == json.loads(line)
    assert found["message"] == "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in message)
    assert message_of(line) == found["message"]


def test_empty_fields_are_left_out() -> None:
    line = log_line(AT, "info", "server", "x", {"server": "git", "instance": 0, "stream": ""})
    assert line == f'{{"at":"{AT}","level":"info","process":"server","server":"git","message":"x"}}'


def test_a_line_of_another_program_is_its_own_message() -> None:
    for text in ("Traceback (most recent call last):", "{", "{}", "[1]", '{"message"', "{" * 5000):
        assert message_of(text) == text
