"""What is shown of a program's words: none of the values that it was given, whole or in part."""

import base64
import json
import re
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from carpool_protocol.files.redaction import Mask
from tests.behaviours import behaviour

KEY = "-----BEGIN KEY-----\nMIIEabcdefgh\n  ijklmnopqrst\n}\n-----END KEY-----\n"
MASK = Mask(["hunter22", KEY, "on"], "***", 6)


def test_values_are_masked_and_short_ones_are_not() -> None:
    assert MASK.redact("hunter22 is on: hunter22") == "*** is on: ***"
    assert Mask(["", "on"], "…").redact("it is on") == "it is …"


def test_no_line_of_a_key_is_shown_wherever_what_is_shown_begins() -> None:
    assert MASK.redact(f"<{KEY}>") == "<***>"
    assert MASK.redact("MIIEabcdefgh\n  ijklmnopqrst\n}") == "***\n  ***\n}"
    assert "ijkl" not in MASK.redact(json.dumps({"env": KEY}))


def test_a_text_that_is_cut_within_a_value_does_not_show_how_that_begins() -> None:
    assert MASK.redact_cut("it was hunter2") == "it was ***"
    assert MASK.redact_cut("hunter22 and hunter22") == "*** and ***"
    assert MASK.redact_cut("the hunter hunts") == "the hunter hunts"
    assert MASK.redact_cut("hunter") == "***"
    assert MASK.redact_cut("hunt") == "hunt"


@given(st.text("ab", min_size=3, max_size=12), st.text("ab ", max_size=12), st.integers(0, 24))
def test_whatever_is_cut_shows_no_more_of_a_value_than_may_be_shown(value: str, before: str, at: int) -> None:
    text = (before + value)[:at]
    shown = Mask([value], "*", 3).redact_cut(text)
    assert value not in shown
    assert not any(shown.endswith(value[:size]) for size in range(3, len(value) + 1))


SPELLINGS: dict[str, Callable[[str], str]] = {
    "JSON": json.dumps,
    "JSON in UTF-8": lambda value: json.dumps(value, ensure_ascii=False),
    "repr": repr,
    "URL": lambda value: quote(value, safe=""),
    "URL, small escapes": lambda value: re.sub("%..", lambda it: it[0].lower(), quote(value, safe="")),
    "path": quote,
    "form": quote_plus,
    "base64": lambda value: base64.b64encode(value.encode()).decode(),
    "base64 of a URL": lambda value: base64.urlsafe_b64encode(value.encode()).decode(),
    "Basic": lambda value: base64.b64encode(f"me:{value}:".encode()).decode(),
    "Basic, another user": lambda value: base64.b64encode(f"you:{value}".encode()).decode(),
    "Basic, a third user": lambda value: base64.b64encode(f"root:{value}!".encode()).decode(),
}


@behaviour("private:masked-spellings")
@pytest.mark.parametrize("how", SPELLINGS)
@given(value=st.text(st.characters(codec="utf-8"), min_size=12, max_size=40))
@example(value='p@ss"w/rd\\Ünix+9 z')
@example(value="it's a 'secret' \"word\"")
@example(value="hunter22hunter22")
def test_a_value_is_masked_however_it_is_spelled(how: str, value: str) -> None:
    written = SPELLINGS[how](value)
    shown = Mask([value], "\0", 6).redact(f"<{written}>")
    # Characters of base64 at either side of the value are made of its neighbours too.
    around = f"<{SPELLINGS[how]('')}>"
    assert "\0" in shown
    assert len(shown.replace("\0", "")) <= len(around) + 4
