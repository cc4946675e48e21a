"""Sums of counter rows by one dimension, and what people and programs are shown of a group of calls.

Owns the dimensions, the keys of a shown group (docs/counters.md) and the rates between two snapshots. Pure
functions. Refuses to know: where snapshots come from, tables and colours.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from carpool_protocol.counters.call_counts import HISTOGRAMS, CallCounts
from carpool_protocol.counters.histogram import DurationHistogram
from carpool_protocol.counters.snapshot import CounterRow, CountersSnapshot

DIMENSIONS: Final[Mapping[str, Callable[[CounterRow], str]]] = {
    "server": lambda row: row.server,
    "tool": lambda row: f"{row.server}/{row.tool}",
    "agent": lambda row: row.agent.agent,
    "profile": lambda row: row.agent.profile,
    "token": lambda row: row.agent.token,
    "door": lambda row: row.agent.door,
    "node": lambda row: row.node,
}
"""By what rows are summed: the name of a dimension, and a row's value in it."""

PERCENTILES: Final = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))


def sum_by(rows: Iterable[CounterRow], dimension: str) -> dict[str, CallCounts]:
    """Return the sums of these rows, by their value in this dimension, in the order of the names."""
    value_of = DIMENSIONS[dimension]
    sums: dict[str, CallCounts] = {}
    for row in rows:
        sums.setdefault(value_of(row), CallCounts()).merge(row.counts)
    return dict(sorted(sums.items()))


def sum_all(rows: Iterable[CounterRow]) -> CallCounts:
    """Return the sum of all rows."""
    total = CallCounts()
    for row in rows:
        total.merge(row.counts)
    return total


def shown_counts(counts: CallCounts, *, buckets: bool = False) -> dict[str, Any]:
    """Return a group as `--json` shows it. `buckets`: with the counts of the histograms."""
    return {
        "calls": counts.calls,
        "in_flight": counts.in_flight,
        "resumed": counts.resumed,
        "answers": counts.answers,
        "tool_errors": counts.tool_errors,
        "errors": dict(sorted(counts.errors.items())),
        "refusals": dict(sorted(counts.refusals.items())),
        "cancelled": counts.cancelled,
        "bytes_in": counts.bytes_in,
        "bytes_out": counts.bytes_out,
        **{f"{name}_s": shown_times(getattr(counts, name), buckets=buckets) for name in HISTOGRAMS},
    }


def shown_times(times: DurationHistogram, *, buckets: bool = False) -> dict[str, Any]:
    """Return the number of durations, their sum and their percentiles."""
    found: dict[str, Any] = {"count": times.count, "sum": round(times.sum_s, 6)}
    for name, fraction in PERCENTILES:
        at = times.percentile(fraction)
        found[name] = None if at is None else round(at, 6)
    return {**found, "buckets": times.counts} if buckets else found


def changes(later: CountersSnapshot, earlier: CountersSnapshot, dimension: str) -> dict[str, CallCounts]:
    """Return what was counted between two snapshots, by this dimension. If another broker has counted the
    later one, that is all of it.
    """
    sums = sum_by(later.rows, dimension)
    before = sum_by(earlier.rows, dimension) if earlier.run == later.run else {}
    return {name: counts.minus(before.get(name, CallCounts())) for name, counts in sums.items()}


def seconds_between(later: CountersSnapshot, earlier: CountersSnapshot) -> float:
    """Return the time that `changes` of these snapshots is about."""
    if earlier.run == later.run:
        return later.age_s - earlier.age_s
    return later.age_s
