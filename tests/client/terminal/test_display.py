"""What reaches a terminal."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool.terminal import display
from tests.behaviours import behaviour


def test_control_sequences_are_shown_not_obeyed() -> None:
    assert display.printable("a\x1b[31mb\x07\x9b\u202ec\r") == "a\\x1b[31mb\\x07\\x9b\\u202ec\\x0d"
    assert display.printable("a\nb") == "a\\nb"
    assert display.printable("a\nb\tc", lines=True) == "a\nb\tc"


UNSEEN = (
    *"\u200b\u200c\u200d\u200e\u2060\u2063\ufeff\xad\u061c\u180e\u034f\u115f\u2028\u202e\u2066\ufe0f",
    *"\ufff9\u3164\U000e0041\U000e0100",
)
EMOJI = "\u26a0\ufe0f 1\ufe0f\u20e3 \u2764\ufe0f\u200d\U0001f525 \U0001f469\u200d\U0001f4bb"
SIGN = "\u26a0\ufe0f"


@behaviour("catalogs:terminal")
@pytest.mark.parametrize("unseen", UNSEEN)
def test_every_text_and_what_a_person_decides_by_spell_out_the_same_unseen_characters(unseen: str) -> None:
    assert display.is_unseen(unseen)
    code = display.spelled(unseen)
    assert code.isascii()
    assert display.printable(f"a{unseen}b") == display.spelled(f"a{unseen}b") == f"a{code}b"
    assert display.printable(f"{SIGN}{unseen}a") == f"{SIGN}{code}a", "one belongs to the emoji"


@pytest.mark.parametrize("text", [EMOJI, "a\xa0b\u3000c\u2003d", "na\u00efve \u65e5\u672c"])
def test_emoji_and_blanks_that_take_room_stay_in_texts(text: str) -> None:
    assert display.printable(text) == text


def test_what_a_person_decides_by_hides_nothing() -> None:
    assert display.spelled("na\u00efve caf\u00e9, \u65e5\u672c") == "na\u00efve caf\u00e9, \u65e5\u672c"
    unseen = "\u200b\u00a0\u00ad\U000e0041\u3164\u2800\ufe0f\U000e0100\n\t\u202e"
    shown = display.spelled(f"a{unseen}b")
    assert shown == r"a\u200b\xa0\xad\U000e0041\u3164\u2800\ufe0f\U000e0100\x0a\x09\u202eb"


@given(st.text(st.characters(codec=None)))
@settings(deadline=None)
def test_nothing_printable_ever_holds_a_control_character_or_cannot_be_written(text: str) -> None:
    shown = display.printable(text)
    assert all(char == "\t" or (char >= " " and not "\x7f" <= char <= "\x9f") for char in shown)
    assert not any(map(display.is_unseen, display._IN_EMOJI.sub("", shown).replace("\t", "")))
    shown.encode()


def test_json_for_programs_is_ascii_and_says_the_same() -> None:
    raw = '{"a":\r"\u202e\x7f\u2028\U0001f600","b":"\\ud83d","c":1.0,"d":'.encode() + b"9" * 5000 + b"}"
    shown = display.ascii_json(raw)
    assert shown.isascii()
    assert shown.isprintable()
    read = json.loads(shown, parse_int=str)
    assert read == {"a": "\u202e\x7f\u2028\U0001f600", "b": "\ud83d", "c": 1.0, "d": "9" * 5000}


def test_columns_are_aligned_and_safe() -> None:
    table = display.columns(["NAME", "N"], [["a", 1], ["long\x1b", 23]], right={"N"})
    assert table.splitlines() == ["NAME       N", "a          1", "long\\x1b  23"]
    assert display.columns(["NAME"], []) == ""


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        *((0, "0 B"), (1023, "1023 B"), (2048, "2 KB"), (1.5 * 2**20, "1.5 MB"), (300 * 2**20, "300 MB")),
        *((-3 * 2**20, "-3.0 MB"), (12 * 2**30, "12.0 GB")),
    ],
)
def test_sizes_read_well(size_bytes: float, text: str) -> None:
    assert display.size(size_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.9, "1 s"), (180, "3 min"), (12_000, "3 h 20 min"), (187_200, "2 d 4 h")]
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert display.duration(seconds) == text


def test_one_line_is_one_line_of_bounded_width() -> None:
    assert display.one_line("first\nsecond") == "first"
    assert display.one_line("x" * 100, 10) == "x" * 9 + "…"
