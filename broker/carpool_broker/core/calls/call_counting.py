"""Counts calls when they end.

Owns which row a call counts in, and which field each of its ends is. Nothing is done for a call before it
ends: a snapshot adds the open ones. A call that was never sent counts under `(unknown)` unless a server was
found for it. Invariant (`check`): every call of the table that has ended was counted once. Refuses to know:
how many rows there are (`counters`), what an answer says to its agent.
"""

from bisect import bisect_left
from collections import Counter
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from carpool_broker.core.counters.call_counters import CallCounters
from carpool_broker.core.counters.counter_table import CounterTable
from carpool_broker.core.model.session import AT_SERVER, OpenCall
from carpool_broker.core.registry.builtin_tools import CARPOOL_SERVER
from carpool_protocol.counters.call_counts import UNKNOWN, add_code
from carpool_protocol.counters.histogram import BUCKETS_S
from carpool_protocol.counters.snapshot import CounterRow
from carpool_protocol.faults.fault_answers import TOOLS_CALL
from carpool_protocol.faults.kinds import KINDS, LOSSES
from carpool_protocol.faults.outcomes import ANSWERED
from carpool_protocol.ids import CallId, RawJson
from carpool_protocol.wire.result_repair import is_failed_result

BUILTIN: Final = "(built-in)"
"""The tool of a call that carpool itself has answered."""
_GOOD_END: Final = b'"isError":false}'
"""The end of most results: a search through them is not needed then."""


class OpenCalls(Protocol):
    """What is needed of the call table."""

    before: CallId
    calls: dict[CallId, OpenCall]
    opened: int
    withdrawn: int
    now: float


class CallCounting:
    """Counts the calls of one broker."""

    def __init__(self, call_table: OpenCalls) -> None:
        self._call_table = call_table
        self._before = call_table.before
        """Calls with smaller numbers are those of earlier brokers."""
        self._table = CounterTable()
        self.began_at = call_table.now
        """The time at which the counts began; 0 if they began with the broker."""
        self._ended_before = self._ended()

    def call_ended(self, open_call: OpenCall, outcome: str, body: RawJson, now: float) -> None:
        """A call ends. `outcome`: see `effects.WriteAudit`."""
        rows = open_call.session.counters
        since = open_call.since
        if (
            outcome == "ok"
            and rows is not None
            and open_call.sent_at == since
            and not open_call.node
            and open_call.stage == "sent"
            and open_call.asked.method == TOOLS_CALL
            and (counters := rows.get((open_call.server, open_call.target))) is not None
        ):
            seconds = now - since
            counters.direct[bisect_left(BUCKETS_S, seconds)] += 1
            counters.direct_s += seconds
            if seconds > counters.direct_longest_s:  # noqa: PLR1730 - each call passes here, and `max` costs more
                counters.direct_longest_s = seconds
            counters.bytes_in += open_call.size_bytes
            counters.bytes_out += len(body)
            if not body.endswith(_GOOD_END) and is_failed_result(body):
                counters.tool_errors += 1
        else:
            self._count(open_call, outcome, body, now)

    def _count(self, open_call: OpenCall, outcome: str, body: RawJson, now: float) -> None:
        is_answered = outcome in ANSWERED
        counts = self._counters_of(open_call, is_answered=is_answered).rest
        is_resumed = open_call.call < self._before
        counts.resumed += is_resumed
        counts.bytes_in += open_call.size_bytes
        if open_call.sent_at >= 0:
            counts.waiting.observe(open_call.sent_at - open_call.since)
            answered_at = now if open_call.answered_at < 0 else open_call.answered_at
            if is_answered or outcome == "error" or open_call.answered_at >= 0:
                counts.server.observe(answered_at - open_call.sent_at)
        if is_answered:
            counts.answers += 1
            counts.tool_errors += open_call.asked.method == TOOLS_CALL and is_failed_result(body)
        elif outcome == "cancelled":
            counts.cancelled += 1
            return
        elif outcome == "error":
            add_code(counts.errors, str(_code_of(body)))
        elif KINDS[outcome].delivered == "no" and outcome not in LOSSES:
            add_code(counts.refusals, outcome)
            return
        else:
            add_code(counts.errors, outcome)
        counts.bytes_out += len(body)
        if not is_resumed:
            counts.total.observe(now - open_call.since)

    def _counters_of(self, open_call: OpenCall, *, is_answered: bool = False) -> CallCounters:
        session, by = open_call.session, open_call.asked.by
        name = session.agent if not session.shared or by is None else by.agent or session.agent
        agent = self._table.agent_counters(name, session.profile, session.principal, session.carrier)
        if not session.shared:
            session.counters = agent.rows
        server, tool = _subject(open_call, is_answered=is_answered)
        return self._table.row(agent, server, tool, open_call.node)

    def snapshot(self) -> list[CounterRow]:
        """Return all rows, with the calls that are at servers now."""
        calls = [each for each in self._call_table.calls.values() if each.stage in AT_SERVER]
        in_flight = Counter(map(self._counters_of, calls))
        resumed = Counter(self._counters_of(each) for each in calls if each.call < self._before)
        return list(self._table.snapshot(in_flight, resumed))

    def check(self) -> None:
        """Assert every invariant."""
        self._table.check()
        ended = self._ended() - self._ended_before
        assert self._table.ended == ended, f"{self._table.ended} calls were counted, {ended} have ended"

    def _ended(self) -> int:
        table = self._call_table
        return table.opened - table.withdrawn - len(table.calls)


def _subject(open_call: OpenCall, *, is_answered: bool) -> tuple[str, str]:
    """Return the server and the tool that a call counts for. `is_answered`: it has a result without any
    server.
    """
    method = open_call.asked.method
    if open_call.key:
        return open_call.server, open_call.target if method == TOOLS_CALL else f"({method})"
    if is_answered:
        return CARPOOL_SERVER, BUILTIN
    return open_call.server or UNKNOWN, UNKNOWN  # the name is the agent's own


class _ErrorObject(Struct):
    code: int = 0


_read_error: Final = msgspec.json.Decoder(_ErrorObject).decode


def _code_of(body: RawJson) -> int:
    """Return the code of a server's JSON-RPC error; 0 if it has none."""
    try:
        return _read_error(body).code
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return 0
