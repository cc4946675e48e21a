"""The verb `story`: its page, and the names of calls."""

import pytest

from carpool.cli.story import page
from carpool_protocol.ids import CallId, call_name, call_named, call_of


def test_what_is_in_the_audit_alone_is_told_as_that() -> None:
    line = {
        "at": "2026-11-22T14:00:00.000Z",
        "id": "c7",
        "name": "x\x1b[2J",
        "server": "git",
        "delivered": "yes",
    }
    shown = page("c7", line, [])
    assert "x\\x1b[2J of git" in shown
    assert "forgotten" in shown


@pytest.mark.parametrize("call", [CallId(1), CallId(17), call_of(3, 4), call_of(12, 1)])
def test_a_call_is_found_by_its_name(call: CallId) -> None:
    assert call_named(call_name(call)) == call


@pytest.mark.parametrize(
    "name", ["", "c", "17", "c-1", "c1.", "c.1", "c0.1", "c01", "cc1", "c1.2.3", "c\u0661", "c" + "9" * 30]
)
def test_what_is_the_name_of_no_call_is_none(name: str) -> None:
    assert call_named(name) is None
