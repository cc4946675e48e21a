"""Counts calls where the call table sends and ends them.

Owns which row a call counts in, and which field each of its ends is. A call has its row from the moment it is
sent; one that ends earlier is counted then, and under `(unknown)` unless a server was found for it. So every
call counts as one of `calls`, and as one end. Invariant (`check`): a row's `calls` are its ends and the open
calls that have it. Refuses to know: how many rows there are (`counters`), what an answer says to its agent.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Struct

from carpool_broker.core.counters.counter_table import AgentCounters, CounterTable
from carpool_broker.core.model.session import OpenCall
from carpool_broker.core.registry.builtin_tools import CARPOOL_SERVER
from carpool_protocol.counters.call_counts import CallCounts, add_code
from carpool_protocol.faults.faults import TOOLS_CALL
from carpool_protocol.faults.kinds import KINDS
from carpool_protocol.ids import CallId, RawJson
from carpool_protocol.wire.result_repair import is_failed_result

UNKNOWN: Final = "(unknown)"
"""The server or tool of a call that no server was found for."""
BUILTIN: Final = "(built-in)"
"""The tool of a call that carpool itself has answered."""
_ANSWERS: Final = frozenset({"ok", "kept", "task", "input_required"})
"""The outcomes of an audit record that are a result for the agent."""


class CallCounting:
    """Counts the calls of one broker. Calls with numbers below `before` are those of earlier brokers."""

    def __init__(self, before: CallId, began_at: float) -> None:
        self.table = CounterTable()
        self.began_at = began_at
        """The time at which the counts began; 0 if they began with the broker."""
        self._before = before

    def call_sent(self, open_call: OpenCall, now: float) -> None:
        """A call goes to the supervisor."""
        self._count_call(open_call).waiting.observe(now - open_call.since)

    def call_resumed(self, open_call: OpenCall) -> None:
        """A call that an earlier broker has sent goes on here."""
        self._count_call(open_call)

    def server_answered(self, open_call: OpenCall, now: float) -> None:
        """The server has answered a call that was sent."""
        counts = open_call.counts
        if counts is not None and open_call.sent_at >= 0:
            counts.server.observe(now - open_call.sent_at)

    def call_ended(self, open_call: OpenCall, outcome: str, body: RawJson, now: float) -> None:
        """A call ends. `outcome`: see `effects.WriteAudit`."""
        counts = open_call.counts
        if counts is None:
            counts = self._count_call(open_call, is_answered=outcome in _ANSWERS)
        open_call.counts = None
        if outcome in _ANSWERS:
            counts.answers += 1
            if open_call.asked.method == TOOLS_CALL and is_failed_result(body):
                counts.tool_errors += 1
        elif outcome == "cancelled":
            counts.cancelled += 1
            return
        elif outcome == "error":
            add_code(counts.errors, str(_code_of(body)))
        elif KINDS[outcome].delivered == "no":
            add_code(counts.refusals, outcome)
            return
        else:
            add_code(counts.errors, outcome)
        counts.bytes_out += len(body)
        if open_call.call > self._before:
            counts.total.observe(now - open_call.since)

    def _count_call(self, open_call: OpenCall, *, is_answered: bool = False) -> CallCounts:
        session = open_call.session
        agent = session.counters
        if agent is None or session.shared or agent.agent.agent != session.agent:
            agent = self._agent_of(open_call)
        counts = self.table.row(agent, *_subject(open_call, is_answered=is_answered))
        open_call.counts = counts
        counts.calls += 1
        counts.bytes_in += open_call.size_bytes
        if open_call.call < self._before:
            counts.resumed += 1
        return counts

    def _agent_of(self, open_call: OpenCall) -> AgentCounters:
        session, by = open_call.session, open_call.asked.by
        name = session.agent if not session.shared or by is None else by.agent or session.agent
        found = self.table.agent_counters(name, session.profile, session.principal, session.carrier)
        session.counters = found
        return found

    def check(self, calls: Iterable[OpenCall]) -> None:
        """Assert every invariant."""
        self.table.check()
        open_calls = Counter(id(each.counts) for each in calls if each.counts is not None)
        rows = [row.counts for row in self.table.rows()]
        for row in rows:
            assert row.in_flight == open_calls[id(row)], "a call was counted twice, or its end was not"
            assert row.waiting.count <= row.calls
            assert row.server.count <= row.calls
            assert row.total.count <= row.ended
        assert open_calls.keys() <= {id(row) for row in rows}, "an open call has a row of another table"


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
