"""Told losses: calls that get `state_lost` because their agent could not know of the loss when it sent them
(rule 15).

Owns, for each session and server with a told loss, the calls that get the same error: all that the broker
read before it wrote the first of these answers to the agent's carrier. The broker reports that moment with
`AnswersWritten`; until then every call gets the error. It also reports the lowest number of calls that may
still come: a loss that concerns only lower calls, none of which is open here, is forgotten. A call that is
cancelled before its answer was written has told its agent nothing: if it was the only one, the loss counts as
untold again.

Invariant (`check`): a call is in the entry that it is indexed under, and in no other. Knows nothing of:
leases, instances, causes.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final, Generic, TypeVar

from carpool_protocol.ids import CallId, ServerName, SessionId
from carpool_protocol.link.messages import Call

C = TypeVar("C")
Key = tuple[SessionId, ServerName]
UNWRITTEN: Final = CallId(-1)


class _ToldLoss(Generic[C]):
    """One loss that an agent is told of."""

    __slots__ = ("calls", "cause", "upto")

    def __init__(self, cause: C) -> None:
        self.cause = cause
        self.calls: set[CallId] = set()
        """Calls with this error whose answers are not known to be written."""
        self.upto = UNWRITTEN
        """The last call that was read before an answer was written; `UNWRITTEN`: none was written yet."""


class ToldLosses(Generic[C]):
    """All told losses of one supervisor. `C`: the type of a cause."""

    def __init__(self) -> None:
        self._entries: dict[Key, _ToldLoss[C]] = {}
        self._entry_of: dict[CallId, Key] = {}
        self._servers_of: dict[SessionId, dict[ServerName, None]] = {}
        self._counts: Counter[ServerName] = Counter()
        """The number of entries of a server."""

    def __bool__(self) -> bool:
        return bool(self._entries)

    def loss_told(self, call: Call, server: ServerName, cause: C) -> None:
        """This call is the first that gets the error for a loss."""
        key = call.session, server
        self._forget(key)
        self._entries[key] = _ToldLoss(cause)
        self._servers_of.setdefault(call.session, {})[server] = None
        self._counts[server] += 1
        self._add(key, call.call)

    def cause_for_call(self, call: Call, server: ServerName) -> C | None:
        """The cause for which this call must not run either; None: it may run."""
        entry = self._entries.get((call.session, server))
        if entry is None or call.call > entry.upto != UNWRITTEN:
            return None
        return entry.cause

    def add_call(self, call: Call, server: ServerName) -> None:
        """This call gets the error with the cause from `cause_for_call`."""
        key = call.session, server
        if self._entries[key].upto == UNWRITTEN:
            self._add(key, call.call)

    def answers_written(self, calls: Iterable[CallId], newest: CallId) -> None:
        """The answers of these calls were written to their carriers. `newest`: the last call read by then."""
        for call in calls:
            key = self._entry_of.get(call)
            if key is not None:
                entry = self._entries[key]
                for each in entry.calls:
                    del self._entry_of[each]
                entry.calls.clear()
                entry.upto = max(newest, call)

    def calls_passed(self, oldest: CallId) -> None:
        """No call below this number comes any more: a loss that concerns only such calls is over."""
        over = [key for key, entry in self._entries.items() if UNWRITTEN < entry.upto < oldest]
        for key in over:
            self._remove(key)

    def call_cancelled(self, call: CallId) -> tuple[Key, C] | None:
        """The agent of this call gets no answer to it. Returns the loss that is untold by that."""
        key = self._entry_of.pop(call, None)
        if key is None:
            return None
        entry = self._entries[key]
        entry.calls.discard(call)
        if entry.calls:
            return None
        self._remove(key)
        return key, entry.cause

    def session_closed(self, session: SessionId) -> None:
        """Forget the losses of a session whose agent is gone."""
        for server in list(self._servers_of.get(session, ())):
            self._forget((session, server))

    def sessions(self) -> set[SessionId]:
        """The sessions with a told loss."""
        return set(self._servers_of)

    def concerns_server(self, server: ServerName) -> bool:
        """True if calls of this server may still come that must get the error."""
        return server in self._counts

    def _add(self, key: Key, call: CallId) -> None:
        self._entries[key].calls.add(call)
        self._entry_of[call] = key

    def _forget(self, key: Key) -> None:
        if key in self._entries:
            for call in self._remove(key).calls:
                del self._entry_of[call]

    def _remove(self, key: Key) -> _ToldLoss[C]:
        session, server = key
        servers = self._servers_of[session]
        del servers[server]
        if not servers:
            del self._servers_of[session]
        self._counts[server] -= 1
        if not self._counts[server]:
            del self._counts[server]
        return self._entries.pop(key)

    def check(self) -> None:
        """Assert every invariant."""
        indexed = {call: key for key, entry in self._entries.items() for call in entry.calls}
        assert indexed == self._entry_of
        known = {(session, server) for session, servers in self._servers_of.items() for server in servers}
        assert known == set(self._entries)
        assert self._counts == Counter(server for _, server in known)
        assert all(bool(each.calls) == (each.upto == UNWRITTEN) for each in self._entries.values())
