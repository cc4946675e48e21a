"""The verb `stats`: calls, errors and times by server, tool, agent, profile, token or door.

Owns the layout of the counters for people, and the document for programs; with `--watch` what came between
two snapshots. Refuses to know: what is counted (docs/counters.md), how rows are summed
(`carpool_protocol.counters`).
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import click
import msgspec
from msgspec.structs import asdict

from carpool.cli.main import broker_request_or_fail, json_option, open_session
from carpool.terminal import display
from carpool.terminal.verb_output import fail, print_json
from carpool_protocol.counters.call_counts import HISTOGRAMS, CallCounts
from carpool_protocol.counters.histogram import BUCKETS_S, DurationHistogram
from carpool_protocol.counters.snapshot import CountersSnapshot
from carpool_protocol.counters.summary import (
    DIMENSIONS,
    PERCENTILES,
    changes,
    seconds_between,
    shown_counts,
    sum_all,
    sum_by,
)

WATCH_S: Final = 2.0
"""Seconds between two snapshots, unless `--watch` says so."""
ALL: Final = "all"
"""The name of the last row, the sum of all."""


@click.command()
@click.option(
    "--by",
    type=click.Choice(list(DIMENSIONS)),
    default="server",
    show_default=True,
    help="Sum the calls by this.",
)
@click.option(
    "--watch",
    "watch_s",
    is_flag=False,
    flag_value=WATCH_S,
    type=click.FloatRange(0.1),
    metavar="[SECONDS]",
    help=f"Go on with what came in each interval of {WATCH_S:g} s, or of SECONDS, until Ctrl-C.",
)
@json_option
def stats(*, by: str, watch_s: float | None, as_json: bool) -> None:
    """Show calls, errors, refusals and times since the broker started."""
    first = take_snapshot()
    if watch_s is None:
        if as_json:
            print_json(stats_document(first, by))
        else:
            click.echo(stats_page(first, by))
        return
    for earlier, later in snapshots(first, watch_s):
        if as_json:
            click.echo(json.dumps(interval_document(later, earlier, by)))
        else:
            click.echo(interval_page(later, earlier, by) + "\n")


def take_snapshot() -> CountersSnapshot:
    """Return all counters of the running carpool. Ends the verb if they are off."""
    with open_session(control=True) as broker:
        answer = broker_request_or_fail(broker, "carpool/counters", {})
    snapshot = msgspec.convert(answer, CountersSnapshot)
    if not snapshot.enabled:
        fail("carpool counts nothing: `counters` is false in the configuration; true counts from then on")
    return snapshot


def snapshots(first: CountersSnapshot, pause_s: float) -> Iterator[tuple[CountersSnapshot, CountersSnapshot]]:
    """Yield each snapshot and the next one, after a pause."""
    earlier = first
    while True:
        time.sleep(pause_s)
        later = take_snapshot()
        yield earlier, later
        earlier = later


# --- for programs ---------------------------------------------------------------------------------------


def stats_document(snapshot: CountersSnapshot, by: str) -> dict[str, Any]:
    """Return what `--json` prints."""
    return {
        **_origin(snapshot),
        "by": by,
        "buckets_s": list(BUCKETS_S),
        "total": shown_counts(sum_all(snapshot.rows), buckets=True),
        "groups": _groups(sum_by(snapshot.rows, by)),
        "servers_run": snapshot.servers_run,
        "servers_problem": snapshot.servers_problem,
        "servers": {name: asdict(counts) for name, counts in sorted(snapshot.servers.items())},
    }


def interval_document(later: CountersSnapshot, earlier: CountersSnapshot, by: str) -> dict[str, Any]:
    """Return what `--json --watch` prints for one interval."""
    return {
        **_origin(later),
        "by": by,
        "interval_s": round(seconds_between(later, earlier), 3),
        "groups": _groups(changes(later, earlier, by)),
    }


def _origin(snapshot: CountersSnapshot) -> dict[str, Any]:
    return {"run": snapshot.run, "since": snapshot.since, "age_s": snapshot.age_s}


def _groups(sums: Mapping[str, CallCounts]) -> list[dict[str, Any]]:
    return [{"name": name, **shown_counts(counts, buckets=True)} for name, counts in sums.items()]


# --- for people -----------------------------------------------------------------------------------------


class _Row(NamedTuple):
    """A row of the tables: a group of calls, or the sum of all."""

    name: str
    counts: CallCounts
    in_flight: int
    is_total: bool = False


def stats_page(snapshot: CountersSnapshot, by: str) -> str:
    """Return the counts, the times and the codes since counting began."""
    sums = sum_by(snapshot.rows, by)
    rows = _with_total([_Row(name, counts, counts.in_flight) for name, counts in sums.items()])
    head = f"since {snapshot.since} ({display.duration(snapshot.age_s)}), run {snapshot.run}"
    if not rows:
        return f"{head}: no calls"
    return _page(head, _counts_table(rows, by), rows, by)


def interval_page(later: CountersSnapshot, earlier: CountersSnapshot, by: str) -> str:
    """Return the rates and the times of one interval."""
    interval_s = seconds_between(later, earlier)
    new = "" if later.run == earlier.run else f"; another broker counts since {later.since}"
    open_now = {name: counts.in_flight for name, counts in sum_by(later.rows, by).items()}
    came = [
        _Row(name, counts, open_now.get(name, 0))
        for name, counts in changes(later, earlier, by).items()
        if counts != CallCounts()
    ]
    head = f"in {interval_s:.1f} s{new}"
    if not came or not interval_s:
        return f"{head}: no calls"
    rows = _with_total(came, sum(open_now.values()))
    return _page(head, _rates_table(rows, interval_s, by), rows, by)


def _page(head: str, table: str, rows: Sequence[_Row], by: str) -> str:
    return "\n\n".join(part for part in (head, table, times_table(rows, by), _codes(rows)) if part)


def _with_total(rows: list[_Row], in_flight: int | None = None) -> list[_Row]:
    """Return the rows with their sum as the last one, if there are several. `in_flight`: that of the sum."""
    if len(rows) < 2:
        return rows
    total = CallCounts()
    for row in rows:
        total.merge(row.counts)
    in_all = total.in_flight if in_flight is None else in_flight
    return [*rows, _Row(ALL, total, in_all, is_total=True)]


_SPARE_COUNTS: Final = ("IN", "OUT", "TOOL ERRORS", "CANCELLED")
"""The counts that a narrow terminal does without, in this order."""


def _counts_table(groups: Sequence[_Row], by: str) -> str:
    heads = ["CALLS", "IN FLIGHT", "ANSWERS", "TOOL ERRORS", "ERRORS", "REFUSED", "CANCELLED", "IN", "OUT"]
    rows = [
        [
            name or "-",
            counts.calls,
            in_flight,
            counts.answers,
            counts.tool_errors,
            sum(counts.errors.values()),
            sum(counts.refusals.values()),
            counts.cancelled,
            display.size(counts.bytes_in),
            display.size(counts.bytes_out),
        ]
        for name, counts, in_flight, _ in groups
    ]
    return display.columns([by.upper(), *heads], rows, right=set(heads), spare=_SPARE_COUNTS)


def _rates_table(groups: Sequence[_Row], interval_s: float, by: str) -> str:
    heads = ["IN FLIGHT", "CALLS/S", "ANSWERS/S", "ERRORS/S", "REFUSED/S", "IN/S", "OUT/S"]
    rows = [
        [
            name or "-",
            in_flight,
            *(
                f"{count / interval_s:.1f}"
                for count in (
                    counts.calls,
                    counts.answers,
                    sum(counts.errors.values()),
                    sum(counts.refusals.values()),
                )
            ),
            display.size(counts.bytes_in / interval_s),
            display.size(counts.bytes_out / interval_s),
        ]
        for name, counts, in_flight, _ in groups
    ]
    return display.columns([by.upper(), *heads], rows, right=set(heads), spare=("IN/S", "OUT/S"))


_SPARE_TIMES: Final = (
    *("WAITING p90", "SERVER p90", "TOTAL p90", "WAITING p50", "WAITING p99"),
    *("SERVER p50", "SERVER p99"),
)
"""The times that a narrow terminal does without, in this order."""


def times_table(groups: Sequence[_Row], by: str) -> str:
    """Return the percentiles of the three times, for groups that have any."""
    heads = [f"{name.upper()} {at}" for name in HISTOGRAMS for at, _ in PERCENTILES]
    rows = [
        [name or "-", *(cell for each in HISTOGRAMS for cell in _percentiles(getattr(counts, each)))]
        for name, counts, *_ in groups
        if any(getattr(counts, each).count for each in HISTOGRAMS)
    ]
    return display.columns([by.upper(), *heads], rows, right=set(heads), spare=_SPARE_TIMES)


def _percentiles(times: DurationHistogram) -> list[str]:
    found = (times.percentile(fraction) for _, fraction in PERCENTILES)
    return ["-" if at is None else display.short_duration(at) for at in found]


def _codes(groups: Sequence[_Row]) -> str:
    """Return a line for each group with errors or refusals: how often which code."""
    lines = []
    for name, counts, _, is_total in groups:
        for what, codes in (("errors", counts.errors), ("refusals", counts.refusals)):
            if codes and not is_total:
                ordered = sorted(codes.items(), key=lambda each: (-each[1], each[0]))
                lines.append(f"{what} of {name or '-'}: {', '.join(f'{code} {n}' for code, n in ordered)}")
    return "\n".join(map(display.printable, lines))
