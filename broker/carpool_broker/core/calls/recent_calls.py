"""The calls that have ended lately, with the times of their parts, while somebody watches.

Owns which calls are kept, for how long, and what is said of each. The call table has this record only while a
watcher has asked within `WATCH_S`, so calls cost nothing for it while nobody looks. Two allowances bound the
cost of watching: one for calls that are timed, one for failures, which are kept also where no further call is
timed. A row holds names, sizes and times, never the value of an argument or of a result.

Invariants: at most `MAX_KEPT` rows are kept, and at most `MAX_TIMED` open calls are timed; numbers of rows
only grow. Refuses to know: who watches, the time of day, how a row is shown.
"""

from collections import deque
from typing import Final

from msgspec import Struct

from carpool_broker.core.calls.audit import audit_subject
from carpool_broker.core.model.session import OpenCall
from carpool_protocol.faults.fault_answers import TOOLS_CALL
from carpool_protocol.faults.outcomes import ANSWERED
from carpool_protocol.ids import CallId, RawJson, call_name
from carpool_protocol.link.messages import CallTimed
from carpool_protocol.wire.result_repair import is_failed_result

WATCH_S: Final = 5.0
"""Calls are kept for so long after a watcher has asked."""
TIMED_PER_S: Final = 25
"""The most calls that are timed in a second. The rest is counted."""
FAILED_PER_S: Final = 25
"""The most further calls that are kept in a second because they failed."""
MAX_KEPT: Final = 256
MAX_TIMED: Final = 1024
MAX_CHARS: Final = 256
"""Names and URIs are cut at this length."""


class RecentCall(Struct, frozen=True, kw_only=True):
    """One call that has ended. Times are seconds; None: that part is not known, or the call had none."""

    number: int
    """Greater than those of all rows before it."""
    call: str
    session: str
    agent: str
    principal: str
    profile: str
    server: str
    tool: str
    method: str
    instance: int | None
    outcome: str
    """As in the audit: `ok`, `tool_error`, `error`, `cancelled`, or the code of an error."""
    ended_at: float
    """By the clock of the core."""
    total_s: float
    waiting_s: float | None = None
    """Until it could be sent: for its turn in the session, or for the list of its server."""
    hooks_s: float | None = None
    """With hooks, before it was sent."""
    queue_s: float | None = None
    """In the queue of its server, for an instance."""
    server_s: float | None = None
    """At its server, with the questions that the server asked meanwhile."""
    back_s: float | None = None
    """The rest: carpool's own part, with hooks on the answer."""
    bytes_in: int = 0
    bytes_out: int = 0


class _CallTimes:
    """The times of an open call."""

    __slots__ = ("instance", "queue_s", "ready_at", "server_s")

    def __init__(self, ready_at: float) -> None:
        self.ready_at = ready_at
        """The time at which it could be sent, before any hook had it."""
        self.queue_s: float | None = None
        self.server_s: float | None = None
        self.instance: int | None = None


class _Allowance:
    """A number of calls for each second, by the clock of the core."""

    def __init__(self, per_s: int) -> None:
        self._per_s = per_s
        self._begun_at = float("-inf")
        self._left = 0

    def take(self, now: float) -> bool:
        """Return whether one more may be had now."""
        if now - self._begun_at >= 1.0:
            self._begun_at, self._left = now, self._per_s
        self._left -= 1
        return self._left >= 0


class WatchedCalls:
    """The calls that have ended while somebody watched."""

    def __init__(self, now: float) -> None:
        self._since = now
        self.until = now + WATCH_S
        """Nothing is kept from this time on, unless a watcher asks again."""
        self.rows: deque[RecentCall] = deque(maxlen=MAX_KEPT)
        self.left_out = 0
        """Calls that came and ended while somebody watched and are not in `rows`: there were too many."""
        self._number = int(
            now * 1000
        )  # greater than those of an earlier record, which kept fewer in a second
        self._times: dict[CallId, _CallTimes] = {}
        self._may_time = _Allowance(TIMED_PER_S)
        self._may_keep = _Allowance(FAILED_PER_S)

    def rows_after(self, number: int) -> list[RecentCall]:
        """Return the rows with greater numbers, oldest first."""
        return [row for row in self.rows if row.number > number]

    @property
    def newest(self) -> int:
        """The number of the newest row. Before the first row it is smaller than the number of any row."""
        return self._number

    def call_ready(self, open_call: OpenCall, now: float) -> None:
        """A call may be sent, or given to hooks before that, for the first time.

        A call beyond the bounds is not timed, also not from a later moment on: the time in its hooks would
        count as waiting.
        """
        if len(self._times) < MAX_TIMED and self._may_time.take(now):
            self._times[open_call.call] = _CallTimes(now)

    def is_timed(self, call: CallId) -> bool:
        """True if the supervisor is to say how long this call took."""
        return call in self._times

    def call_timed(self, timed: CallTimed) -> None:
        """The supervisor reports the times of a call."""
        times = self._times.get(timed.call)
        if times is not None:
            times.queue_s, times.server_s = timed.waited_s, timed.served_s
            times.instance = int(timed.instance)

    def call_ended(self, open_call: OpenCall, outcome: str, body: RawJson, now: float) -> None:
        """The call ends. `outcome`: see `effects.WriteAudit`."""
        times = self._times.pop(open_call.call, None)
        if outcome == "ok" and open_call.asked.method == TOOLS_CALL and is_failed_result(body):
            outcome = "tool_error"
        is_failure = outcome not in ANSWERED and outcome != "cancelled"
        if times is None and not (is_failure and self._may_keep.take(now)):
            self.left_out += open_call.since >= self._since
            return
        self._number += 1
        self.rows.append(_row(self._number, open_call, times, (outcome, len(body)), now))

    def check(self) -> None:
        """Assert every invariant."""
        assert len(self._times) <= MAX_TIMED
        numbers = [row.number for row in self.rows]
        assert numbers == sorted(set(numbers)), "a number is given twice"


def _row(
    number: int, open_call: OpenCall, times: _CallTimes | None, end: tuple[str, int], now: float
) -> RecentCall:
    """Return the row of a call that ends. `end`: its outcome, and the bytes of its answer."""
    session, by, method = open_call.session, open_call.asked.by, open_call.asked.method
    agent = session.agent if by is None else by.agent or session.agent
    total_s = now - open_call.since
    waiting_s = hooks_s = back_s = None
    if times is not None:
        waiting_s = times.ready_at - open_call.since
        if open_call.sent_at >= 0:
            hooks_s = open_call.sent_at - times.ready_at
        if times.server_s is not None and hooks_s is not None:
            known_s = waiting_s + hooks_s + (times.queue_s or 0.0) + times.server_s
            back_s = max(0.0, total_s - known_s)
    return RecentCall(
        number=number,
        call=call_name(open_call.call),
        session=session.id,
        agent=agent[:MAX_CHARS],
        principal=session.principal,
        profile=session.profile,
        server=open_call.server[:MAX_CHARS],
        tool=audit_subject(method, open_call.target or open_call.asked.name)[:MAX_CHARS],
        method=method[:MAX_CHARS],
        instance=None if times is None else times.instance,
        outcome=end[0],
        ended_at=now,
        total_s=total_s,
        waiting_s=waiting_s,
        hooks_s=hooks_s,
        queue_s=None if times is None else times.queue_s,
        server_s=None if times is None else times.server_s,
        back_s=back_s,
        bytes_in=open_call.size_bytes,
        bytes_out=end[1],
    )
