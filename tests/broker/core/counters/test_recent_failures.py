"""The rule by which the calls of a server count as failing."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_broker.core.counters.recent_failures import (
    CAUSED_BY_OTHERS,
    STEP_S,
    RecentCalls,
    RecentFailures,
    failures,
    sums_by_server,
)
from carpool_protocol.counters.call_counts import OTHER, UNKNOWN, CallCounts
from carpool_protocol.counters.snapshot import CountedAgent, CounterRow
from carpool_protocol.faults.kinds import KINDS
from tests.behaviours import behaviour

AGENT = CountedAgent("x", "", "", "shim")


@behaviour("counters:failing")
@pytest.mark.parametrize(
    ("ended", "failed", "mostly"),
    [
        (0, 0, False),
        (1, 1, False),
        (2, 2, False),
        (3, 3, True),
        (6, 3, True),
        (7, 3, False),
        (8, 4, True),
    ],
)
def test_calls_mostly_fail_when_at_least_half_and_three_of_those_that_ended_did(
    ended: int, failed: int, mostly: bool
) -> None:
    assert RecentCalls(ended, failed).mostly_failed is mostly


@behaviour("counters:failing")
def test_time_outs_and_refusals_count_and_what_agents_and_operators_cause_does_not() -> None:
    counts = CallCounts(
        answers=9,
        cancelled=5,
        errors={"timed_out": 2, "-32603": 1, "0": 1, "-32602": 7, "url_declined": 7},
        refusals={"waiting_line_full": 3, "breaker_open": 1, "stopped": 7, "unknown_tool": 7, "closing": 7},
    )
    assert failures(counts) == 8
    assert sums_by_server([CounterRow(AGENT, "git", "log", counts)]) == {"git": RecentCalls(17, 8)}


@behaviour("counters:failing")
def test_rows_of_no_single_server_are_no_server_that_fails() -> None:
    bad = CallCounts(errors={"timed_out": 9})
    assert sums_by_server([CounterRow(AGENT, name, "log", bad) for name in (UNKNOWN, OTHER)]) == {}


@behaviour("counters:failing")
@pytest.mark.parametrize(
    "code",
    [
        "paused",
        "operator_cancelled_unsent",
        "operator_cancelled",
        "hook_failed",
        "answer_hook_failed",
        "offline",
    ],
)
def test_what_an_operator_or_a_hook_does_to_calls_is_no_failure_of_their_server(code: str) -> None:
    assert failures(CallCounts(errors={code: 1}, refusals={code: 1})) == 0


def test_the_page_on_counters_names_the_codes_that_others_cause() -> None:
    text = (Path(__file__).parents[4] / "docs" / "counters.md").read_text(encoding="utf-8")
    (part,) = re.findall(r"- Neither failed nor counted .*?\((`.*?)\)", text, re.DOTALL)
    assert {*re.findall(r"`(\w+)`", part)} == CAUSED_BY_OTHERS <= KINDS.keys()


@behaviour("counters:failing")
def test_failures_are_forgotten_after_some_minutes() -> None:
    recent, bad = RecentFailures(0.0), {"git": RecentCalls(5, 5)}
    assert recent.recent(bad) == bad
    for now in (STEP_S, 2 * STEP_S):
        assert recent.is_due(now)
        assert recent.recent(bad) == bad, "they are not older than the older moment"
        recent.note(bad, now)
    assert recent.recent(bad) == {}
    good = {"git": RecentCalls(9, 5)}
    assert recent.recent(good) == {"git": RecentCalls(4, 0)}
    assert recent.window_s(3 * STEP_S) == 2 * STEP_S


@given(st.lists(st.floats(0, 3 * STEP_S), min_size=1, max_size=30))
def test_the_window_reaches_back_one_step_at_least_once_it_has_run_so_long(pauses: list[float]) -> None:
    recent, now, pause = RecentFailures(0.0), 0.0, 0.0
    for pause in pauses:
        now += pause
        if recent.is_due(now):
            recent.note({}, now)
        assert recent.window_s(now) >= min(now, STEP_S)
        assert not recent.is_due(now)
