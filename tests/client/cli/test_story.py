"""The verb `story`: the steps of one call in words, from what both journals hold."""

from typing import Any

import pytest

from carpool.cli.story import page
from carpool.logs.story_steps import story_steps
from carpool_protocol.ids import CallId, call_name, call_named, call_of
from tests.behaviours import behaviour

CALL = 7


def entry(at: float, event: str, *effects: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"at": at, "event": {"type": event, **fields}, "effects": list(effects)}


def live(*, broker: list[Any] | None = None, supervisor: list[Any] | None = None) -> dict[str, Any]:
    return {
        "run": "r",
        "broker": broker or [],
        "supervisor": supervisor or [],
        "pids": {"3": 4711},
        "nodes": {},
    }


def words(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [(step.where, step.text) for step in sorted(story_steps(found, CALL), key=lambda step: step.at)]


@behaviour("audit:story")
def test_a_call_is_told_from_its_request_to_its_answer_over_both_processes() -> None:
    found = live(
        broker=[
            entry(1.0, "CallRequested", session="s2"),
            entry(
                2.0,
                "CallAnswered",
                {"type": "Reply", "call": 6},
                {"type": "Call", "call": CALL, "key": "g:1"},
                call=6,
            ),
            entry(
                5.0,
                "CallAnswered",
                {"type": "WriteAudit", "call": CALL, "outcome": "ok"},
                {"type": "Reply", "call": CALL},
                call=CALL,
            ),
        ],
        supervisor=[
            entry(3.0, "Call", {"type": "Spawn", "instance": 3, "server": "git"}),
            entry(
                3.5, "InstanceFit", {"type": "WriteCall", "instance": 3, "wire": 1, "call": {"call": CALL}}
            ),
            entry(4.0, "ServerAnswered", {"type": "CallAnswered", "call": CALL, "is_error": False}),
        ],
    )
    assert words(found) == [
        ("broker", "came from s2"),
        ("broker", "went to the supervisor, for g"),
        ("supervisor", "starts instance #3 of git"),
        ("supervisor", "waits in the line of its pool"),
        ("supervisor", "handed to instance #3 (pid 4711), under wire id 1"),
        ("supervisor", "its server answered"),
        ("broker", "its answer came from the supervisor"),
        ("broker", "ended: ok"),
        ("broker", "answered to its agent"),
    ]


def test_a_cancelled_call_is_told_too() -> None:
    found = live(
        broker=[entry(1.0, "RequestCancelled", {"type": "CancelCall", "call": CALL}, session="s2")],
        supervisor=[entry(2.0, "CancelCall", {"type": "WriteCancel", "instance": 9}, call=CALL)],
    )
    assert words(found) == [
        ("broker", "its agent cancelled it"),
        ("supervisor", "is told that nobody waits for it"),
        ("supervisor", "tells instance #9 to stop it"),
    ]


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
