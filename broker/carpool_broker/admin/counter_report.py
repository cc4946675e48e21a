"""The counters as `carpool/counters` and `status` report them.

Owns the run id, the UTC time since which is counted, and the two earlier moments with which recent failures
are found. Refuses to know: what is counted and when (`core/calls/call_counting`), the supervisor's counts but
for their place.
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.calls.call_counting import CallCounting
from carpool_broker.core.counters.recent_failures import RecentCalls, RecentFailures, sums_by_server
from carpool_protocol.counters.call_counts import CallCounts
from carpool_protocol.counters.snapshot import CountersSnapshot, ServerCounts, ServersProblem
from carpool_protocol.counters.summary import shown_counts, sum_all, sum_by
from carpool_protocol.link.messages import Surveyed
from carpool_protocol.runtime.wallclock import unix_s, utc_text


class CounterFacts(Struct, frozen=True, kw_only=True):
    """What `status` says of the counters."""

    snapshot: CountersSnapshot
    recent: dict[str, RecentCalls]
    """Calls that ended lately, by server."""
    window_s: float
    """The seconds that `recent` is about."""


class CounterReport:
    """Reports the counters of one broker."""

    def __init__(self, core: BrokerCore, run: str, clock: Callable[[], float]) -> None:
        """`run`: names this broker among all. `clock`: the clock of the core."""
        self._core = core
        self._run = run
        self._clock = clock
        self._began_at = clock()
        self._seen = core.call_table.counting
        """The counts that were reported last, or those of the beginning."""
        self._switched = 0
        """How often other counts were found than before."""
        self._since = ""
        self._recent = RecentFailures(self._began_at)
        self._counted_by = core.call_table.counting

    def snapshot(
        self, surveyed: Surveyed | None = None, servers_problem: ServersProblem = ""
    ) -> CountersSnapshot:
        """Return all counters. `surveyed`: the supervisor's answer; `servers_problem`: why there is none."""
        counting = self._core.call_table.counting
        servers = {} if surveyed is None else {str(name): each for name, each in surveyed.counts.items()}
        servers_run = "" if surveyed is None else self._core.recovery.epoch
        if counting is None:
            return CountersSnapshot(
                enabled=False,
                run="",
                since="",
                age_s=0.0,
                rows=[],
                servers_run=servers_run,
                servers=servers,
                servers_problem=servers_problem,
            )
        began_at = counting.began_at or self._began_at
        self._note_counts(counting, began_at)
        return CountersSnapshot(
            enabled=True,
            run=f"{self._run}-{self._switched}" if self._switched else self._run,
            since=self._since,
            age_s=round(self._clock() - began_at, 3),
            rows=counting.snapshot(),
            servers_run=servers_run,
            servers=servers,
            servers_problem=servers_problem,
        )

    def _note_counts(self, counting: CallCounting, began_at: float) -> None:
        """Give counts that began anew a number and a time of their own."""
        if counting is not self._seen:
            self._seen = counting
            self._switched += 1
            self._since = ""
        self._since = self._since or utc_text(unix_s() - (self._clock() - began_at))

    def facts(self, surveyed: Surveyed | None) -> CounterFacts:
        """Return what `status` says of the counters."""
        self.note_moment()
        snapshot = self.snapshot(surveyed)
        return CounterFacts(
            snapshot=snapshot,
            recent=self._recent.recent(sums_by_server(snapshot.rows)),
            window_s=self._recent.window_s(self._clock()),
        )

    def note_moment(self) -> None:
        """Keep the sums of now for later comparison, if it is time. Call it at the broker's pace."""
        counting, now = self._core.call_table.counting, self._clock()
        if counting is not self._counted_by:
            self._counted_by, self._recent = counting, RecentFailures(now)
        if counting is not None and self._recent.is_due(now):
            self._recent.note(sums_by_server(counting.snapshot()), now)


def counters_section(facts: CounterFacts) -> dict[str, Any]:
    """Return the key `counters` of `status`."""
    snapshot = facts.snapshot
    return {
        "enabled": snapshot.enabled,
        "run": snapshot.run,
        "since": snapshot.since,
        "age_s": snapshot.age_s,
        "total": shown_counts(sum_all(snapshot.rows)),
        "servers": _server_sections(snapshot),
        "recent": {
            "window_s": round(facts.window_s, 1),
            "servers": {
                name: {"ended": each.ended, "failed": each.failed, "mostly_failed": each.mostly_failed}
                for name, each in facts.recent.items()
            },
        },
    }


def _server_sections(snapshot: CountersSnapshot) -> dict[str, Any]:
    """Return the calls of each server, and what the supervisor has counted of its processes."""
    sums = sum_by(snapshot.rows, "server")
    return {
        name: {
            **shown_counts(sums.get(name, CallCounts())),
            "processes": asdict(snapshot.servers.get(name, ServerCounts())),
        }
        for name in sorted(sums.keys() | snapshot.servers.keys())
    }
