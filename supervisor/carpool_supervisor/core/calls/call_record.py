"""What is remembered of calls so that a broker may die (rule 4, docs/decisions/0019).

Owns, for every call that a broker has sent and not reported as written: whose it is, and once it has ended
how. A broker that begins is told the list (`told`), and hears of each call that it resumes what it would have
heard of it. An answer is kept as it was said; past `MAX_KEPT_BYTES` the oldest are forgotten and their calls
told as lost. That a call was there is never forgotten before its broker or its session lets go of it: a call
that is not in the record is one that no server saw.

Invariants (`check`): a call is open or has ended, and open exactly while the desk has it; `kept_bytes` is
what the kept answers hold.
Knows nothing of: how calls run, who is a broker.
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
"""Of answers. While no broker is there the shell stops reading from servers before that."""
CALLS_PER_MESSAGE: Final = 2048

MAX_GONE: Final = 4096
"""Sessions that were given up are remembered until so many others were."""

_TOO_LARGE: Final = "Its answer came while carpool was started again, and there was no room to keep it."
_NO_TASK: Final = "It became a task, and the part of carpool that knew whose has died."
_LINK: Final = (
    "The parts of carpool had lost touch with each other, and its server was told that nobody waits."
)
_UNKNOWN: Final = "Nothing is known of it any more."

CallEnd = CallAnswered | CallFailed


class CallRecordEntry:
    """One call."""

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
        """How it ended; None while it is open."""

    def recorded(self, call: CallId, *, parked: bool = False) -> RecordedCall:
        """What a broker that begins is told of it."""
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
    """All calls of one supervisor that a broker may still ask for."""

    def __init__(self) -> None:
        self._open: dict[CallId, CallRecordEntry] = {}
        self._ended: dict[CallId, CallRecordEntry] = {}
        """In the order in which they ended."""
        self._bare: dict[CallId, CallRecordEntry] = {}
        """Ended, and how is forgotten."""
        self.unresumable: set[SessionId] = set()
        """Sessions that nobody brings to another broker."""
        self._gone: dict[SessionId, None] = {}
        """Sessions given up, the latest last. One whose carrier was cut off may come to another broker."""
        self.kept_bytes = 0

    def add_call(self, call: Call) -> bool:
        """A broker has sent it. False: it has done so before."""
        number = call.call
        if number in self._open or number in self._ended or number in self._bare:
            return False
        self._open[number] = CallRecordEntry(call)
        return True

    def call_ended(self, end: CallEnd) -> None:
        """This is said of it, once. Nothing happens for a call that nobody wants any more."""
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
        """The broker has ended it by itself, and its answer is on its way."""
        if call in self._open or call in self._ended:
            self._drop_answer(call, _UNKNOWN)

    def _drop_answer(self, call: CallId, text: str) -> None:
        """Forget how it ended, or will end, but not that it was there."""
        entry = self._open.pop(call, None)
        if entry is None:
            entry = self._ended.pop(call)
            self.kept_bytes -= _size(entry.end)
        entry.end = CallFailed(call, "lost", "maybe", text)
        self._bare[call] = entry

    def forget_calls(self, calls: Iterable[CallId]) -> None:
        """Their answers are where they belong, or nobody wants them."""
        ended, is_open, bare = self._ended, self._open, self._bare
        for call in calls:
            entry = ended.pop(call, None)
            if entry is not None:
                self.kept_bytes -= _size(entry.end)
            elif is_open.pop(call, None) is None:
                bare.pop(call, None)

    def session_closed(self, session: SessionId) -> None:
        """Its agent is gone."""
        every = (*self._open.items(), *self._ended.items(), *self._bare.items())
        self.forget_calls([call for call, entry in every if whole_of(entry.session) == session])
        if session in self.unresumable:
            self.unresumable.discard(session)  # it comes to no other broker
        elif whole_of(session) == session:
            self._gone[session] = None
            if len(self._gone) > MAX_GONE:
                del self._gone[next(iter(self._gone))]

    def end_unresumable(self) -> list[SessionId]:
        """Another broker begins: forget these sessions. Returns them."""
        over = sorted(self.unresumable)
        for session in over:
            self.session_closed(session)
        return over

    def mark_open_cancelled(self) -> None:
        """All that is open is cancelled now. Nobody may take such a call for one that no server saw."""
        for call in list(self._open):
            self._drop_answer(call, _LINK)

    # --- a broker that begins ----------------------------------------------------------------------------

    def as_messages(
        self, holders: Iterable[tuple[SessionId, ServerName]], asked: Callable[[CallId], bool]
    ) -> list[CallsRecorded]:
        """Everything, as messages. `holders`: who has a lease of what, or is to hear that it is lost;
        `asked`: whether the agent behind an open call is asked for something in rounds.
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
        """What is to be said of it now: how it ended; None while it is open. It stays in the record."""
        if call in self._open:
            return None
        entry = self._ended.get(call) or self._bare.get(call)
        return CallFailed(call, "lost", "maybe", _UNKNOWN) if entry is None else entry.end

    def check(self, calls: Collection[CallId]) -> None:
        """Assert every invariant. `calls`: all that are open at the desk."""
        assert self._open.keys() <= set(calls), "an open call in the record that nobody runs"
        assert not self._open.keys() & self._ended.keys()
        assert not self._bare.keys() & (self._open.keys() | self._ended.keys())
        kept = (entry.end for entry in self._ended.values())
        assert self.kept_bytes == sum(map(_size, kept)) <= MAX_KEPT_BYTES


def _size(end: CallEnd | None) -> int:
    return len(end.body) if isinstance(end, CallAnswered) else 0
