"""Verdicts on a bridge name a fault where it passes on other things with carpool, or than it is said to."""

from dataclasses import replace
from typing import Any, Final

import pytest

from tests.programs.bridge_places import (
    ANSWERS,
    FEATURES,
    NEW_LIST,
    NEXT_AGENT,
    PLACES,
    SERVER_DIES,
    judge_deaths,
    judge_tours,
)
from tests.programs.bridge_tours import BridgeTour
from tests.programs.bridges import BRIDGE_PROGRAMS, CANCEL, LISTS, PASSED_ON, PROGRESS, QUESTIONS
from tests.programs.features import Verdict
from tests.programs.script import Json
from tests.programs.test_sdk_clients import STEPS

ALL: Final = frozenset(PASSED_ON)
CHANGED: Final = ["notifications/tools/list_changed", {}]
ASKED: Final = ["elicitation/create", {"message": "Which?"}]


def said(text: str, **more: Any) -> Json:
    whole = {
        "asks": [],
        "progress": [],
        "notices": [],
        "answer": {"content": [{"type": "text", "text": text}]},
    }
    return {**whole, **more}


def listed(*tools: str, **more: Any) -> Json:
    return {**said(""), "answer": {"tools": [{"name": each} for each in tools]}, **more}


def tour(head: str) -> BridgeTour:
    """A tour of a bridge that passes everything on; `head` is in front of the names of tools."""
    steps = {feature: said(feature) for feature in STEPS}
    steps["list"] = listed(f"{head}pid")
    steps["progress"] = said("steps are done, told", progress=[[1, 3, "step 1"]])
    steps["question"] = said('the user said {"action": "accept"}', asks=[ASKED])
    steps["list grows"] = said("1 grown", notices=[CHANGED])
    steps["grown list"] = listed(f"{head}pid", f"{head}grown_1")
    return BridgeTour(steps, cancelled=True)


DIRECT: Final = tour("")
THROUGH: Final = tour("odd__")


def without(whole: BridgeTour, feature: str) -> BridgeTour:
    """The tour of a bridge that does not pass this on."""
    steps = dict(whole.steps)
    match feature:
        case "cancel reaches the server":
            return replace(whole, cancelled=False)
        case "lists that change":
            steps["list grows"] = said("1 grown")
        case "questions to the user":
            steps["question"] = said('the user said {"code": -32601, "message": "no"}')
        case "progress":
            steps["progress"] = said("steps are done, not asked for")
        case _:
            raise ValueError(feature)
    return replace(whole, steps=steps)


def faults(says: frozenset[str], direct: BridgeTour, through: BridgeTour) -> dict[str, str]:
    found = judge_tours(says, direct, through)
    return {feature: verdict.fault for feature, verdict in found.items() if verdict.fault}


def test_a_bridge_that_passes_all_on_in_both_arms_has_no_fault() -> None:
    assert faults(ALL, DIRECT, THROUGH) == {}
    assert {each.direct for each in judge_tours(ALL, DIRECT, THROUGH).values()} == {"yes"}


@pytest.mark.parametrize("feature", PASSED_ON)
def test_what_passes_directly_alone_is_a_fault(feature: str) -> None:
    assert faults(ALL, DIRECT, without(THROUGH, feature)) == {
        feature: "the bridge passes it on without carpool alone"
    }


@pytest.mark.parametrize("feature", PASSED_ON)
def test_what_does_not_pass_in_both_arms_is_no_fault(feature: str) -> None:
    says = ALL - {feature}
    assert faults(says, without(DIRECT, feature), without(THROUGH, feature)) == {}


@pytest.mark.parametrize("feature", PASSED_ON)
def test_a_bridge_that_begins_to_pass_something_on_is_noticed(feature: str) -> None:
    words = "the bridge by itself passes on something else than `bridges.py` says"
    assert faults(ALL - {feature}, DIRECT, THROUGH) == {feature: words}
    assert faults(ALL, without(DIRECT, feature), without(THROUGH, feature)) == {feature: words}


@pytest.mark.parametrize(
    ("step", "other", "feature"),
    [
        ("large", said("less"), ANSWERS),
        ("list", listed("odd__pid", "odd__more"), ANSWERS),
        ("progress", said("steps are done, told", progress=[[1, 3, "another"]]), PROGRESS),
        ("question", said('the user said {"action": "accept", "more": 1}', asks=[ASKED]), QUESTIONS),
        ("list shrinks", said("other", notices=[CHANGED]), LISTS),
    ],
)
def test_what_a_client_sees_in_another_way_is_a_fault(step: str, other: Json, feature: str) -> None:
    through = replace(THROUGH, steps={**THROUGH.steps, step: other})
    assert [*faults(ALL, DIRECT, through)] == [feature]


def test_an_old_list_through_carpool_is_a_fault() -> None:
    says = ALL - {LISTS}
    old = replace(
        without(THROUGH, LISTS), steps={**without(THROUGH, LISTS).steps, "grown list": listed("odd__pid")}
    )
    assert faults(says, without(DIRECT, LISTS), old) == {
        NEW_LIST: "the list that a client gets is an old one"
    }


@pytest.mark.parametrize(
    ("restores", "direct", "through", "faulty"),
    [
        (True, ("well", "well"), ("well", "well"), set()),
        (False, ("gone", "well"), ("gone", "well"), set()),
        (True, ("well", "well"), ("gone", "well"), {SERVER_DIES}),
        (False, ("gone", "well"), ("gone", "gone"), {NEXT_AGENT}),
        (False, ("well", "well"), ("well", "well"), {SERVER_DIES}),
        (True, ("gone", "well"), ("gone", "well"), {SERVER_DIES}),
    ],
)
def test_an_agent_that_is_lost_through_carpool_alone_is_a_fault(
    restores: bool, direct: tuple[str, str], through: tuple[str, str], faulty: set[str]
) -> None:
    found: dict[str, Verdict] = judge_deaths(restores, direct, through)
    assert {feature for feature, verdict in found.items() if verdict.fault} == faulty


def test_every_bridge_stands_in_front_of_carpool_behind_it_or_around_it() -> None:
    assert {each.program for each in PLACES.values()} == set(BRIDGE_PROGRAMS)
    assert all(len(each.features) == len(set(each.features)) for each in PLACES.values())
    assert {CANCEL, "down and up between calls"} <= set(FEATURES)
