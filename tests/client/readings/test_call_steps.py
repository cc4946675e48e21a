"""The steps of one call in words, from what both journals hold, and where it crossed to another node."""

from typing import Any

from carpool.cli.story import page
from carpool.readings.call_steps import Crossing, StoryStep, aligned, crossings, story_steps
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


def handed(at: float, instance: int, wire: int) -> dict[str, Any]:
    effect = {"type": "WriteCall", "instance": instance, "wire": wire, "call": {"call": CALL}}
    return {"at": at, "event": {"type": "Call"}, "effects": [effect]}


ANSWERED = {
    "at": 3.0,
    "event": {"type": "ServerAnswered"},
    "effects": [{"type": "CallAnswered", "call": CALL, "is_error": False}],
}
LIVE: dict[str, Any] = {
    "broker": [],
    "supervisor": [handed(1.0, 4, 1), handed(2.0, 5, 9), ANSWERED],
    "pids": {"4": 4711},
    "nodes": {"5": {"node": "alpha", "session": 3}},
}


@behaviour("cluster:story")
def test_a_call_crosses_where_it_is_handed_to_a_session_at_another_node() -> None:
    assert crossings(LIVE, CALL) == [Crossing("alpha", 3, 9, 2.0, 3.0)]
    words = [step.text for step in story_steps(LIVE, CALL)]
    assert words[0] == "handed to instance #4 (pid 4711), under wire id 1"
    assert words[1] == "handed to node alpha (instance #5), under wire id 9"


@behaviour("cluster:story")
def test_a_call_that_is_open_at_another_node_has_no_end() -> None:
    open_one = {**LIVE, "supervisor": LIVE["supervisor"][:2]}
    assert crossings(open_one, CALL) == [Crossing("alpha", 3, 9, 2.0, None)]
    assert crossings({**LIVE, "nodes": {}}, CALL) == []


def at_node(*times: float) -> list[StoryStep]:
    return [StoryStep(at, "alpha broker", "x") for at in times]


@behaviour("cluster:story")
def test_steps_of_a_node_with_the_same_clock_stay_where_they_are() -> None:
    assert aligned(at_node(2.1, 2.9), Crossing("alpha", 3, 9, 2.0, 3.0)) == (at_node(2.1, 2.9), 0.0)
    assert aligned(at_node(2.1, 2.9), Crossing("alpha", 3, 9, 2.0, None)) == (at_node(2.1, 2.9), 0.0)
    assert aligned([], Crossing("alpha", 3, 9, 2.0, 3.0)) == ([], 0.0)


@behaviour("cluster:story")
def test_steps_of_a_node_with_another_clock_come_between_hand_over_and_end() -> None:
    for wrong_by_s in (-60.0, 60.0):
        steps, ahead_s = aligned(
            at_node(2.1 + wrong_by_s, 2.9 + wrong_by_s), Crossing("alpha", 3, 9, 2.0, 3.0)
        )
        assert 2.0 <= steps[0].at <= steps[1].at <= 3.0
        assert abs(ahead_s - wrong_by_s) <= 0.2


@behaviour("cluster:story")
def test_steps_that_are_further_apart_than_the_call_took_stay_within_the_call() -> None:
    for ended_at in (3.0, None):
        steps, _ = aligned(at_node(0.0, 2.5, 1e10), Crossing("alpha", 3, 9, 2.0, ended_at))
        page("c7", None, steps)
        assert all(step.at >= 2.0 for step in steps)
        assert ended_at is None or all(step.at <= ended_at for step in steps)
