"""Steps of a call that crossed to another node: where it crossed, and the order by two clocks."""

from typing import Any

from carpool.logs.story_steps import Crossing, StoryStep, aligned, crossings, story_steps
from tests.behaviours import behaviour

CALL = 7


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
