"""`carpool stats`: the counters for people, and what came between two snapshots."""

from itertools import islice
from typing import Any

import pytest

from carpool.cli import stats
from carpool.terminal import display
from carpool_protocol.counters.call_counts import CallCounts
from carpool_protocol.counters.snapshot import CountedAgent, CounterRow, CountersSnapshot
from tests.behaviours import behaviour

AGENT = CountedAgent("x", "", "", "shim")


def counts(seconds: float = 0.02, **fields: Any) -> CallCounts:
    made = CallCounts(**fields)
    made.calls = made.ended + 1
    for _ in range(made.answers):
        made.total.observe(seconds)
    return made


def snapshot(
    *rows: tuple[str, CallCounts], run: str = "r.0", age_s: float = 100.0, enabled: bool = True
) -> CountersSnapshot:
    found = [CounterRow(AGENT, server, "log", each) for server, each in rows]
    return CountersSnapshot(enabled=enabled, run=run, since="2026-11-22T10:00:00Z", age_s=age_s, rows=found)


@behaviour("counters:stats")
def test_the_page_has_counts_times_and_codes_of_each_group() -> None:
    page = stats.stats_page(
        snapshot(
            ("git", counts(answers=3, errors={"timed_out": 2, "-32603": 1})),
            ("time", counts(answers=1, refusals={"breaker_open": 4})),
        ),
        "server",
    )
    head, table, times, codes = page.split("\n\n")
    assert head == "since 2026-11-22T10:00:00Z (100 s), run r.0"
    cells = {line.split()[0]: line.split()[1:] for line in table.splitlines()[1:]}
    assert cells["git"][:7] == ["7", "1", "3", "0", "3", "0", "0"]
    assert cells["all"][:7] == ["13", "2", "4", "0", "3", "4", "0"]
    assert times.splitlines()[1].split()[:4] == ["git", "-", "-", "-"]
    assert codes.splitlines() == ["errors of git: timed_out 2, -32603 1", "refusals of time: breaker_open 4"]


@behaviour("counters:stats")
def test_a_server_with_the_name_of_the_sum_has_its_row_and_its_codes() -> None:
    found = snapshot(("all", counts(answers=3, errors={"timed_out": 2})), ("git", counts(answers=4)))
    page = stats.stats_page(found, "server")
    rows = [line.split()[:2] for line in page.split("\n\n")[1].splitlines()[1:]]
    assert rows == [["all", "6"], ["git", "5"], ["all", "11"]]
    assert "errors of all: timed_out 2" in page


def test_before_any_call_the_page_says_so() -> None:
    assert stats.stats_page(snapshot(), "server").endswith("no calls")


def test_what_an_agent_calls_itself_cannot_play_with_the_terminal() -> None:
    hostile = CounterRow(CountedAgent("\x1b[2J", "", "", "shim"), "git", "log", counts(answers=1))
    page = stats.stats_page(
        CountersSnapshot(enabled=True, run="r", since="", age_s=1.0, rows=[hostile]), "agent"
    )
    assert "\x1b" not in page
    assert "\\x1b[2J" in page


@behaviour("counters:stats")
def test_an_interval_has_the_rates_of_what_came_in_it() -> None:
    earlier = snapshot(("git", counts(answers=3)), ("time", counts(answers=1)))
    later = snapshot(("git", counts(answers=8)), ("time", counts(answers=1)), age_s=102.0)
    head, table, _ = stats.interval_page(later, earlier, "server").split("\n\n")
    assert head == "in 2.0 s"
    (row,) = table.splitlines()[1:]
    assert row.split()[:4] == ["git", "1", "2.5", "2.5"]
    document = stats.interval_document(later, earlier, "server")
    assert document["interval_s"] == 2.0
    assert [each["calls"] for each in document["groups"]] == [5, 0]


def test_an_interval_over_the_death_of_a_broker_says_so_and_counts_nothing_twice() -> None:
    earlier = snapshot(("git", counts(answers=900)))
    later = snapshot(("git", counts(answers=2)), run="r.1", age_s=1.0)
    page = stats.interval_page(later, earlier, "server")
    assert page.startswith("in 1.0 s; another broker counts since ")
    assert page.splitlines()[3].split()[:3] == ["git", "1", "3.0"]


def test_watching_compares_each_snapshot_with_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = [snapshot(age_s=float(age)) for age in range(1, 4)]
    first, left = snapshot(age_s=0.0), iter(taken)
    monkeypatch.setattr(stats, "take_snapshot", lambda: next(left))
    found = [(one.age_s, other.age_s) for one, other in islice(stats.snapshots(first, 0.0), 3)]
    assert found == [(0.0, 1.0), (1.0, 2.0), (2.0, 3.0)]


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.0003, "0.3ms"), (0.045, "45ms"), (2.54, "2.5s"), (90.2, "90s")]
)
def test_durations_are_short(seconds: float, shown: str) -> None:
    assert display.short_duration(seconds) == shown
