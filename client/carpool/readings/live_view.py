"""The tables of `carpool top` and of the web page, made of the broker's answers in the last minute.

Owns their columns, rows and the order of rows, the rates between two readings, and the sparklines of calls.
Pure: readings are parameters.

Refuses to know: terminals, keys, where readings come from.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from msgspec import Struct

from carpool.terminal import display
from carpool_protocol.counters.call_counts import CallCounts
from carpool_protocol.counters.histogram import DurationHistogram
from carpool_protocol.counters.snapshot import CountersSnapshot
from carpool_protocol.counters.summary import sum_by

TableName = Literal["servers", "agents", "calls", "tools", "nodes"]
Facts = Mapping[str, Any]

HISTORY: Final = 60
"""Readings that are kept: a minute of them, if one comes each second."""
SPARKLINE_CHARS: Final = 10
STATE: Final = "STATE"
"""The title of the columns with states, which have colours."""
_BARS: Final = "▁▂▃▄▅▆▇█"
_NONE: Final = CallCounts()
_DIMENSIONS: Final = ("server", "tool")


class Reading(Struct, frozen=True):
    """The broker's answers at one moment."""

    status: Facts
    counters: CountersSnapshot | None
    """None: nothing is counted."""
    calls: Sequence[Facts]
    took_s: float = 0.0
    """How long the broker took to answer."""
    cluster: Facts | None = None
    """The section `cluster` of `carpool status --json`; None: this machine is in no cluster."""


class TableRow(NamedTuple):
    """One row. `key` names what it is about; `values` are the cells as they are sorted."""

    key: str
    cells: tuple[str, ...]
    values: tuple[float | str, ...]


class Column(NamedTuple):
    """One column of a table."""

    title: str
    width: int
    is_number: bool = False


COLUMNS: Final[dict[TableName, tuple[Column, ...]]] = {
    "servers": (
        Column("SERVER", 13),
        Column(STATE, 12),
        Column("INST", 4, is_number=True),
        Column("OPEN", 4, is_number=True),
        Column("WAIT", 4, is_number=True),
        Column("CALLS/S", 7, is_number=True),
        Column("ERR/S", 5, is_number=True),
        Column("P50", 5, is_number=True),
        Column("P99", 5, is_number=True),
        Column("LAST MIN", SPARKLINE_CHARS),
    ),
    "agents": (
        Column("SESSION", 8),
        Column("AGENT", 18),
        Column("VIA", 6),
        Column("TOKEN", 10),
        Column("PID", 7, is_number=True),
        Column("OPEN", 4, is_number=True),
        Column("CALLS", 7, is_number=True),
        Column("LEASES", 12),
    ),
    "calls": (
        Column("CALL", 9),
        Column(STATE, 8),
        Column("AGE", 7, is_number=True),
        Column("TOOL", 24),
        Column("SESSION", 8),
        Column("AGENT", 12),
        Column("ON", 5, is_number=True),
    ),
    "tools": (
        Column("TOOL", 30),
        Column("CALLS/S", 7, is_number=True),
        Column("ERR/S", 5, is_number=True),
        Column("TOOL ERR/S", 10, is_number=True),
        Column("P50", 6, is_number=True),
        Column("P99", 6, is_number=True),
    ),
    "nodes": (
        Column("NODE", 11),
        Column(STATE, 11),
        Column("AT IT", 5, is_number=True),
        Column("HERE", 4, is_number=True),
        Column("LOAD", 4, is_number=True),
        Column("OPEN", 4, is_number=True),
        Column("RTT", 5, is_number=True),
        Column("VERSION", 7),
        Column("LABELS", 8),
        Column("OFFERS", 10),
    ),
}


class LiveView:
    """The readings of the last minute. Rates of servers are those since the last reading; times and tools are
    those of all readings that are kept.
    """

    def __init__(self) -> None:
        self.now: Reading | None = None
        """The last reading; None before the first one."""
        self._sums: deque[_Sums | None] = deque(maxlen=HISTORY)
        """Those of the readings that are kept; None: nothing was counted."""
        self._found: dict[tuple[str, int], _Changes] = {}
        """The changes up to the last reading that were asked for already."""
        self._rates: dict[str, deque[float]] = {}

    def add(self, reading: Reading) -> None:
        """Take the next reading."""
        self.now = reading
        self._sums.append(None if reading.counters is None else _Sums.of(reading.counters))
        self._found.clear()
        known = set(reading.status["servers"])
        self._rates = {name: rates for name, rates in self._rates.items() if name in known}
        came = self._changes("server", since=-2)
        for name in known:
            rate = came.per_s(came.counts.get(name, _NONE).calls)
            self._rates.setdefault(name, deque(maxlen=HISTORY)).append(rate)

    def rows(
        self, table: TableName, *, sorted_by: int = 0, descending: bool = False, containing: str = ""
    ) -> list[TableRow]:
        """Return the rows of a table, in the order of one column. `containing`: only rows with this text."""
        if self.now is None:
            return []
        made = _MAKERS[table](self)
        wanted = containing.casefold()
        rows = [row for row in made if any(wanted in cell.casefold() for cell in row.cells)]
        return sorted(rows, key=lambda row: (row.values[sorted_by], row.key), reverse=descending)

    def server_rows(self) -> Iterator[TableRow]:
        """Yield the rows of all servers."""
        assert self.now is not None
        came, kept = self._changes("server", since=-2), self._changes("server")
        for name, server in self.now.status["servers"].items():
            counts = came.counts.get(name, _NONE)
            times = kept.counts.get(name, _NONE).total
            instances = server["instances"]
            calls_s, errors_s = came.per_s(counts.calls), came.per_s(_failed(counts))
            state = "paused" if server.get("paused") else str(server["state"])
            open_calls = sum(each["in_flight"] for each in instances)
            at = " ".join(sorted({each["node"] for each in instances if each.get("node")}))
            yield _row(
                name,
                (f"{name}@{at or '*'}" if server.get("node") else name, name),
                (state, state),
                (str(len(instances)), len(instances)),
                (str(open_calls), open_calls),
                (str(server["waiting"]), server["waiting"]),
                (f"{calls_s:.1f}", calls_s),
                (f"{errors_s:.1f}", errors_s),
                _time(times, 0.5),
                _time(times, 0.99),
                (sparkline(self._rates.get(name, ())), calls_s),
            )

    def agent_rows(self) -> Iterator[TableRow]:
        """Yield the rows of all sessions."""
        assert self.now is not None
        leases = self._leases()
        for each in self.now.status["sessions"]:
            held = ", ".join(leases.get(each["id"], ()))
            yield _row(
                each["id"],
                (each["id"], each["id"]),
                (each["agent"] or "-", each["agent"]),
                (each["carrier"], each["carrier"]),
                (each["principal"] or "-", each["principal"]),
                (str(each["pid"] or "-"), each["pid"]),
                (str(each["in_flight"]), each["in_flight"]),
                (str(each["calls"]), each["calls"]),
                (held or "-", held),
            )

    def call_rows(self) -> Iterator[TableRow]:
        """Yield the rows of all open calls."""
        assert self.now is not None
        for each in self.now.calls:
            tool = f"{each['server']}/{each['tool']}"
            yield _row(
                each["call"],
                (each["call"], each["call"]),
                (each["state"], each["state"]),
                (display.duration(each["age_s"]), each["age_s"]),
                (tool, tool),
                (each["session"], each["session"]),
                (each["agent"] or "-", each["agent"]),
                _place(each),
            )

    def tool_rows(self) -> Iterator[TableRow]:
        """Yield the rows of all tools that were called in the last minute."""
        kept = self._changes("tool")
        for name, counts in kept.counts.items():
            if counts.ended or counts.in_flight:
                rates = [kept.per_s(n) for n in (counts.calls, _failed(counts), counts.tool_errors)]
                yield _row(
                    name,
                    (name, name),
                    *((f"{rate:.1f}", rate) for rate in rates),
                    _time(counts.total, 0.5),
                    _time(counts.total, 0.99),
                )

    def node_rows(self) -> Iterator[TableRow]:
        """Yield the rows of this node, of the others, and of those that are silent."""
        assert self.now is not None
        cluster = self.now.cluster
        if cluster is None:
            return
        for each in (cluster["own"], *cluster["nodes"]):
            labels, offers = " ".join(each["labels"]), " ".join(each["servers"])
            latency_s = each.get("latency_s")
            yield _row(
                each["node"],
                (each["node"], each["node"]),
                (each["state"], each["state"]),
                *((str(each.get(key, "-")), each.get(key, -1)) for key in ("opened", "served")),
                *((str(each[key]), each[key]) for key in ("load", "open_calls")),
                ("-", -1.0) if latency_s is None else (display.short_duration(latency_s), latency_s),
                (each["version"], each["version"]),
                (labels or "-", labels),
                (offers or "-", offers),
            )
        for each in cluster["silent"]:
            unknown: tuple[str, float] = ("-", -1.0)
            words: tuple[str, str] = ("-", "")
            yield _row(
                each["node"], (each["node"], each["node"]), ("silent", "silent"), *[unknown] * 5, *[words] * 3
            )

    def head(self) -> str:
        """Return the line about all of carpool."""
        assert self.now is not None
        totals = self.now.status["totals"]
        saved = totals["memory_saved_bytes"]
        processes = "server process" if totals["instances"] == 1 else "server processes"
        agents = f"{_count(totals['sessions'], 'agent')}, {totals['instances']} {processes}"
        memory = f"{'saves' if saved >= 0 else 'costs'} {display.size(abs(saved))}"
        if there := totals.get("node_sessions"):
            agents += f" + {there} at nodes"
        open_calls = _count(totals["in_flight"], "open call")
        return f"{agents}, {open_calls}, {self.calls_per_s:.1f} calls/s, {memory}"

    @property
    def calls_per_s(self) -> float:
        """The calls of all servers in a second, between the last two readings."""
        came = self._changes("server", since=-2)
        return came.per_s(sum(counts.calls for counts in came.counts.values()))

    def details(self, table: TableName, key: str) -> list[str]:
        """Return lines about the thing that a row is about; none if it is gone."""
        if self.now is None:
            return []
        status = self.now.status
        if table == "servers" and key in status["servers"]:
            return list(_server_details(key, status["servers"][key]))
        if table == "agents":
            return [_facts(each) for each in status["sessions"] if each["id"] == key]
        if table == "calls":
            return [_facts(each) for each in self.now.calls if each["call"] == key]
        if table == "nodes" and self.now.cluster is not None:
            return list(_node_details(key, self.now.cluster))
        return []

    def _leases(self) -> dict[str, list[str]]:
        """Return the servers of which each session holds an instance."""
        assert self.now is not None
        held: dict[str, list[str]] = {}
        for name, server in self.now.status["servers"].items():
            for each in server["instances"]:
                if each["holder"]:
                    held.setdefault(each["holder"], []).append(name)
        return held

    def _changes(self, dimension: str, since: int = 0) -> "_Changes":
        """Return what was counted between a reading and the last one. `since`: its place among those that
        are kept.
        """
        key = dimension, since
        if key not in self._found:
            later, earlier = (self._sums[-1], self._sums[since]) if len(self._sums) >= 2 else (None, None)
            self._found[key] = (
                _Changes({}, 1.0) if later is None or earlier is None else later.after(earlier, dimension)
            )
        return self._found[key]


class _Changes(NamedTuple):
    """The counts between two snapshots, by one dimension, and the seconds between them."""

    counts: dict[str, CallCounts]
    seconds: float

    def per_s(self, count: int) -> float:
        """Return a rate. A count is negative where an open call has turned out to be of another row."""
        return max(count, 0) / self.seconds


class _Sums(NamedTuple):
    """The sums of one snapshot by each dimension that the tables have: a minute of rows would be too much."""

    run: str
    age_s: float
    by: dict[str, dict[str, CallCounts]]

    @classmethod
    def of(cls, counters: CountersSnapshot) -> "_Sums":
        """Sum the rows up."""
        return cls(counters.run, counters.age_s, {name: sum_by(counters.rows, name) for name in _DIMENSIONS})

    def after(self, earlier: "_Sums", dimension: str) -> _Changes:
        """Return what was counted after an earlier snapshot. If another broker has counted, that is all."""
        is_same = earlier.run == self.run
        before = earlier.by[dimension] if is_same else {}
        seconds = self.age_s - earlier.age_s if is_same else self.age_s
        counts = {name: sums.minus(before.get(name, _NONE)) for name, sums in self.by[dimension].items()}
        return _Changes(counts, max(seconds, 0.001))


_MAKERS: Final[dict[TableName, Callable[[LiveView], Iterator[TableRow]]]] = {
    "servers": LiveView.server_rows,
    "agents": LiveView.agent_rows,
    "calls": LiveView.call_rows,
    "tools": LiveView.tool_rows,
    "nodes": LiveView.node_rows,
}


def sparkline(values: Iterable[float]) -> str:
    """Return values as bars, the last one on the right; the highest fills its place."""
    found = list(values)
    if not found or not max(found):
        return ""
    # As many neighbours share a bar as are needed to fit.
    each = -(-len(found) // SPARKLINE_CHARS)
    start = len(found) % each
    parts = [found[:start]] if start else []
    parts += [found[at : at + each] for at in range(start, len(found), each)]
    levels = [sum(part) / len(part) for part in parts]
    highest = max(levels)
    return "".join(_BARS[round(level / highest * (len(_BARS) - 1))] for level in levels)


def _row(key: str, *cells: tuple[str, float | str]) -> TableRow:
    return TableRow(
        key, tuple(display.printable(text) for text, _ in cells), tuple(value for _, value in cells)
    )


def _place(call: Facts) -> tuple[str, float]:
    """Return where a call runs: its node if that is another one, else its instance."""
    instance = call["instance"]
    if instance is None:
        return "-", -1
    return call.get("node") or f"#{instance}", instance


def _failed(counts: CallCounts) -> int:
    return sum(counts.errors.values()) + sum(counts.refusals.values())


def _time(times: DurationHistogram, fraction: float) -> tuple[str, float]:
    at = times.percentile(fraction)
    return ("-", -1.0) if at is None else (display.short_duration(at), at)


def _server_details(name: str, server: Facts) -> Iterator[str]:
    restarts = server["restarts"]
    tools = f"{_count(server['tools'], 'tool')}, {_count(restarts, 'restart')}"
    yield f"{name}: {server['state']}, {server['sharing']}, {tools}"
    for each in server["instances"]:
        agent = f" ({each['holder_agent']})" if each.get("holder_agent") else ""
        holder = f", leased to {each['holder']}{agent}" if each["holder"] else ""
        calls = f"{each['state']}: {each['in_flight']} open, {_count(each['calls'], 'call')}"
        memory, cpu = display.size(each["pss_bytes"] or 0), each["cpu_percent"] or 0
        if each.get("node"):
            yield f"#{each['id']} at node {each['node']} {calls}{holder}"
        else:
            yield f"#{each['id']} pid {each['pid']} {calls}, {memory}, {cpu:.0f} % CPU{holder}"
    if server["last_error"]:
        yield f"last error: {server['last_error']}"


def _node_details(name: str, cluster: Facts) -> Iterator[str]:
    """Yield what a node offers and which of it is used here, or for how long it is silent."""
    for each in (cluster["own"], *cluster["nodes"]):
        if each["node"] == name:
            yield f"{name} offers {', '.join(each['servers']) or 'nothing'}"
            here = [server for server, nodes in cluster["servers"].items() if name in nodes]
            if here:
                yield f"here as {', '.join(here)}"
            ahead_s = each.get("clock_ahead_s")
            if ahead_s is not None:
                yield f"its clock is {abs(ahead_s):.3f} s {'ahead of' if ahead_s > 0 else 'behind'} this one"
    for each in cluster["silent"]:
        if each["node"] == name:
            yield f"{name} has not been heard for {display.duration(each['for_s'])}: see `carpool doctor`"


def _facts(about: Facts) -> str:
    """Return the facts about a session or a call that say something."""
    shown = ((name, _words(value)) for name, value in about.items())
    return "  ".join(f"{name} {words}" for name, words in shown if words)


def _words(value: Any) -> str:
    """Return a fact as people read it; empty if it says nothing."""
    if isinstance(value, Mapping):
        parts = ((name, _words(each)) for name, each in value.items())
        return ", ".join(f"{name} {words}" for name, words in parts if words)
    if isinstance(value, list | tuple):
        return ", ".join(filter(None, map(_words, value)))
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, float):
        return f"{value:.1f}" if value else ""
    return "" if value in {None, 0} else str(value)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
