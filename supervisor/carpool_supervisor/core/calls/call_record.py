"""The record of calls that lets a broker die without losing answers (rule 4, docs/decisions/0019).

Owns, for each call that a broker has sent and not reported as written, its session and, once it has ended,
its end. A new broker gets the record (`as_messages`), and for each call that it resumes the messages that it
has missed. Answers are kept unchanged; past `MAX_KEPT_BYTES` the oldest are dropped and their calls reported
as lost. So is a long answer that a broker took over and did not settle before it ended: it may be what ends
brokers. The entry itself stays until its broker or its session releases it, so a call without an entry was
seen by no server.

Invariants (`check`): a call is open or has ended, and is open exactly while `dispatcher` has it; `kept_bytes`
is the size of the kept answers. Knows nothing of: how calls run, brokers.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Final

from carpool_protocol.ids import CallId, PoolKey, RawJson, ServerName, SessionId, whole_of
from carpool_protocol.link.messages import (
    Call,
    CallAnswered,
    CallFailed,
    CallsRecorded,
    RecordedCall,
    RecordedSession,
)

MAX_KEPT_BYTES: Final = 96 * 1024 * 1024
"""The limit for kept answers. Without a broker the shell stops reading from servers before it is reached."""
CALLS_PER_MESSAGE: Final = 2048

MAX_GONE: Final = 4096
"""The number of forgotten sessions that are remembered."""

_TOO_LARGE: Final = "Its answer came while carpool was restarting, and there was no room to keep it."
LONG_BYTES: Final = 1024 * 1024
"""A shorter answer cannot be what ends a broker: it is sent again as often as brokers ask for it."""
TAKEN: Final = "carpool restarted twice before the answer was passed on."
_NO_TASK: Final = "It became a task, and the part of carpool that knew its agent has died."
_LINK: Final = "The processes of carpool had lost their connection, and the call was cancelled at its server."
_UNKNOWN: Final = "carpool has no record of it any more."

CallEnd = CallAnswered | CallFailed


class CallRecordEntry:
    """One call in the record."""

    __slots__ = ("caller", "digest", "end", "key", "method", "request", "session", "target")

    def __init__(self, call: Call) -> None:
        self.session = call.session
        self.request: RawJson = call.request
        self.digest = call.digest
        self.key: PoolKey = call.key
        self.method = call.method
        self.target = call.target
        self.caller = call.caller
        self.end: CallEnd | None = None
        """The end of the call; None while it is open."""

    def recorded(self, call: CallId, *, parked: bool = False) -> RecordedCall:
        """The entry as a message to a new broker."""
        session, is_over = whole_of(self.session), self.end is not None
        return RecordedCall(
            call,
            session,
            self.request,
            self.key,
            self.target,
            is_over,
            parked,
            digest=self.digest,
            method=self.method,
            caller=self.caller,
        )


class CallRecord:
    """All calls of one supervisor that a broker may still resume."""

    def __init__(self) -> None:
        self._open: dict[CallId, CallRecordEntry] = {}
        self._ended: dict[CallId, CallRecordEntry] = {}
        """In the order of their ends."""
        self._bare: dict[CallId, CallRecordEntry] = {}
        """Calls that have ended and whose answers were dropped."""
        self._taken: set[CallId] = set()
        """Calls whose long answers were sent again to the broker that there is now."""
        self.unresumable: set[SessionId] = set()
        """Sessions that no carrier can resume at another broker."""
        self._gone: dict[SessionId, None] = {}
        """Forgotten sessions, the latest last. One whose carrier was cut off may come to another broker."""
        self.kept_bytes = 0

    def add_call(self, call: Call) -> bool:
        """A broker has sent this call. Returns False if it had sent it before."""
        number = call.call
        if number in self._open or number in self._ended or number in self._bare:
            return False
        self._open[number] = CallRecordEntry(call)
        return True

    def call_ended(self, end: CallEnd) -> None:
        """Record the only end of a call. A call that is not in the record is ignored."""
        entry = self._open.pop(end.call, None)
        if entry is None:
            return
        entry.end = end
        self._ended[end.call] = entry
        self.kept_bytes += _size(end)
        if self.kept_bytes > MAX_KEPT_BYTES:
            self._make_room()

    def _make_room(self) -> None:
        while self.kept_bytes > MAX_KEPT_BYTES and self._ended:
            self._drop_answer(next(iter(self._ended)), _TOO_LARGE)

    def broker_ended_call(self, call: CallId) -> None:
        """The broker has ended the call itself, and its answer is on its way."""
        if call in self._open or call in self._ended:
            self._drop_answer(call, _UNKNOWN)

    def _drop_answer(self, call: CallId, text: str) -> None:
        """Drop the end of the call, now or when it ends, but keep its entry."""
        entry = self._open.pop(call, None)
        if entry is None:
            entry = self._ended.pop(call)
            self.kept_bytes -= _size(entry.end)
        entry.end = CallFailed(call, "lost", "maybe", text)
        self._bare[call] = entry

    def forget_calls(self, calls: Iterable[CallId]) -> None:
        """Remove calls whose answers were written or are unwanted."""
        ended, is_open, bare = self._ended, self._open, self._bare
        for call in calls:
            entry = ended.pop(call, None)
            if entry is not None:
                self.kept_bytes -= _size(entry.end)
            elif is_open.pop(call, None) is None:
                bare.pop(call, None)

    def session_closed(self, session: SessionId) -> None:
        """Remove the calls of a session whose agent is gone."""
        every = (*self._open.items(), *self._ended.items(), *self._bare.items())
        self.forget_calls([call for call, entry in every if whole_of(entry.session) == session])
        if session in self.unresumable:
            self.unresumable.discard(session)  # it comes to no other broker
        elif whole_of(session) == session:
            self._gone[session] = None
            if len(self._gone) > MAX_GONE:
                del self._gone[next(iter(self._gone))]

    def end_unresumable(self) -> list[SessionId]:
        """A new broker begins: remove the sessions that cannot be resumed. Returns them. Long answers that
        the one before had taken over are dropped.
        """
        for call in sorted(self._taken & self._ended.keys()):
            self._drop_answer(call, TAKEN)
        self._taken.clear()
        over = sorted(self.unresumable)
        for session in over:
            self.session_closed(session)
        return over

    def mark_open_cancelled(self) -> None:
        """All open calls are cancelled now. They stay in the record, so that none counts as never seen by a
        server.
        """
        for call in list(self._open):
            self._drop_answer(call, _LINK)

    # --- a new broker ------------------------------------------------------------------------------------

    def as_messages(
        self, holders: Iterable[tuple[SessionId, ServerName]], asked: Callable[[CallId], bool]
    ) -> list[CallsRecorded]:
        """The whole record as messages. `holders`: sessions that hold a lease, or must be told that one is
        lost; `asked`: true for an open call whose agent must give input in rounds.
        """
        for call, entry in list(self._ended.items()):
            if isinstance(entry.end, CallAnswered) and entry.end.task:  # it was cancelled with its broker
                self._drop_answer(call, _NO_TASK)
        calls = [
            *(e.recorded(call, parked=asked(call)) for call, e in self._open.items()),
            *(e.recorded(call) for each in (self._bare, self._ended) for call, e in each.items()),
        ]
        held: dict[SessionId, set[ServerName]] = {each.session: set() for each in calls}
        for session, server in sorted(holders):
            held.setdefault(whole_of(session), set()).add(server)
        sessions = [RecordedSession(session, sorted(servers)) for session, servers in held.items()]
        sessions += [RecordedSession(session, gone=True) for session in self._gone if session not in held]
        messages = [
            CallsRecorded([], calls[at : at + CALLS_PER_MESSAGE], last=False)
            for at in range(0, len(calls), CALLS_PER_MESSAGE)
        ]
        return [*messages, CallsRecorded(sessions, [])]

    def end_of_call(self, call: CallId) -> CallEnd | None:
        """The end of a call, to be reported now; None while it is open. It stays in the record."""
        if call in self._open:
            return None
        entry = self._ended.get(call) or self._bare.get(call)
        if entry is not None and isinstance(entry.end, CallAnswered) and len(entry.end.body) > LONG_BYTES:
            self._taken.add(call)
        return CallFailed(call, "lost", "maybe", _UNKNOWN) if entry is None else entry.end

    def check(self, calls: Collection[CallId]) -> None:
        """Assert every invariant. `calls`: all open calls of the dispatcher."""
        assert self._open.keys() <= set(calls), "an open call in the record that nobody runs"
        assert not self._open.keys() & self._ended.keys()
        assert not self._bare.keys() & (self._open.keys() | self._ended.keys())
        kept = (entry.end for entry in self._ended.values())
        assert self.kept_bytes == sum(map(_size, kept)) <= MAX_KEPT_BYTES


def _size(end: CallEnd | None) -> int:
    return len(end.body) if isinstance(end, CallAnswered) else 0
