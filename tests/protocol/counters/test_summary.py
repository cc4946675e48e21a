"""Sums of counter rows, and the changes between two snapshots."""

from typing import Any

import pytest

from carpool_protocol.counters.call_counts import CallCounts
from carpool_protocol.counters.snapshot import CountedAgent, CounterRow, CountersSnapshot
from carpool_protocol.counters.summary import (
    DIMENSIONS,
    changes,
    seconds_between,
    shown_counts,
    sum_all,
    sum_by,
)


def row(agent: str = "x", server: str = "git", tool: str = "log", **more: Any) -> CounterRow:
    who = CountedAgent(agent, more.pop("profile", ""), more.pop("token", ""), more.pop("door", "shim"))
    node = more.pop("node", "")
    return CounterRow(who, server, tool, CallCounts(calls=more.pop("calls", 1), **more), node)


def snapshot(*rows: CounterRow, run: str = "r.0", age_s: float = 10.0) -> CountersSnapshot:
    return CountersSnapshot(enabled=True, run=run, since="", age_s=age_s, rows=list(rows))


@pytest.mark.parametrize(
    ("dimension", "sums"),
    [
        ("server", {"git": 3, "time": 4}),
        ("tool", {"git/diff": 2, "git/log": 1, "time/now": 4}),
        ("agent", {"x": 5, "y": 2}),
        ("profile", {"": 3, "ci": 4}),
        ("token", {"": 6, "t": 1}),
        ("door", {"http": 4, "shim": 3}),
        ("node", {"": 5, "alpha": 2}),
    ],
)
def test_rows_are_summed_by_each_dimension(dimension: str, sums: dict[str, int]) -> None:
    rows = [
        row(calls=1, token="t"),
        row("y", tool="diff", calls=2, node="alpha"),
        row(server="time", tool="now", calls=4, profile="ci", door="http"),
    ]
    assert {name: counts.calls for name, counts in sum_by(rows, dimension).items()} == sums
    assert sum_all(rows).calls == 7
    assert set(DIMENSIONS) == {"server", "tool", "agent", "profile", "token", "door", "node"}


def test_a_sum_changes_no_row() -> None:
    one, other = row(calls=1), row("y", calls=2)
    sum_by([one, other], "server")
    assert (one.counts.calls, other.counts.calls) == (1, 2)


def test_changes_are_what_was_counted_between_two_snapshots() -> None:
    found = changes(snapshot(row(calls=5), age_s=12.5), snapshot(row(calls=3)), "server")
    assert found["git"].calls == 2
    assert seconds_between(snapshot(age_s=12.5), snapshot()) == 2.5


def test_after_a_broker_has_died_all_that_the_next_one_counts_is_new() -> None:
    later, earlier = snapshot(row(calls=2), run="r.1", age_s=1.0), snapshot(row(calls=9))
    assert changes(later, earlier, "server")["git"].calls == 2
    assert seconds_between(later, earlier) == 1.0


def test_a_shown_group_has_percentiles_and_only_on_demand_buckets() -> None:
    counts = CallCounts(calls=2, answers=1)
    counts.server.observe(0.2)
    shown = shown_counts(counts)
    assert shown["in_flight"] == 1
    assert shown["waiting_s"] == {"count": 0, "sum": 0.0, "p50": None, "p90": None, "p99": None}
    assert 0.1 < shown["server_s"]["p50"] <= 0.25
    assert sum(shown_counts(counts, buckets=True)["server_s"]["buckets"]) == 1
