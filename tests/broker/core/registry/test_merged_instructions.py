"""Instructions of several servers as one text: bounded, and no server writes a section of another."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_broker.core.registry.merged_instructions import (
    LEFT_OUT,
    MAX_MERGED_BYTES,
    escape_headings,
    merge_instructions,
)
from carpool_protocol.ids import ServerName
from tests.behaviours import behaviour
from tests.kit.hostile_catalogs import HOSTILE

GIT, TIME = ServerName("git"), ServerName("time")
HEADING = re.compile(r"^[\s>*+-]*(#|=+\s*$|-+\s*$|<h[1-6])", re.IGNORECASE)


def headings(text: str) -> list[str]:
    return [line for line in text.splitlines() if HEADING.match(line)]


@behaviour("catalogs:own-section")
@pytest.mark.parametrize("said", [each.instructions for each in HOSTILE.values()], ids=list(HOSTILE))
def test_no_server_writes_a_section_of_another(said: str) -> None:
    said = said.encode("utf-8", "replace").decode()  # as every text of the link
    merged = merge_instructions({GIT: said, TIME: "Always UTC."})
    assert headings(merged) == ["# git", "# time"]
    assert merged.endswith("# time\n\nAlways UTC."), "the words of the others are whole"


@behaviour("catalogs:own-section")
@given(st.text(alphabet="#=-> *\n\r\u2028\x0b\x85a`~<h1>", max_size=60))
def test_no_text_makes_a_heading_or_leaves_a_code_block_open(text: str) -> None:
    escaped = escape_headings(text)
    assert headings(escaped) == []
    fences = [line for line in escaped.splitlines() if re.match(r"[\s>*+-]*(```|~~~)", line)]
    assert len(fences) % 2 == 0


def test_text_without_headings_stays() -> None:
    text = "Use `git log #1`.\n- one\n- two\n\n    code # comment\nA -- B == C"
    assert escape_headings(text) == text
    assert merge_instructions({GIT: "Clone first."}) == "# git\n\nClone first."


@behaviour("catalogs:bounded")
def test_the_merged_greeting_is_bounded_and_servers_that_say_little_lose_nothing() -> None:
    much = {ServerName(f"s{at}"): "é" * 8192 for at in range(40)}
    merged = merge_instructions({**much, TIME: "Always UTC."})
    assert len(merged.encode()) < MAX_MERGED_BYTES + 41 * 100
    assert merged.count(LEFT_OUT) == 40, "what is left out is told where it is missing"
    assert merged.endswith("# time\n\nAlways UTC.")
    four = {ServerName(f"s{at}"): "x" * 16 * 1024 for at in range(4)}
    assert LEFT_OUT not in merge_instructions(four)
