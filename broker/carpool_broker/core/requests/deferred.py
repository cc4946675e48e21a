"""Requests that wait because catalogs or their agent's roots are on their way (rules 6 and 18).

Owns the one table of them, with a deadline each: calls of a name that nobody has told yet, first pages of
lists, `server/discover`, subscriptions and listens. `dispatch` tries each anew when catalogs change, and at
its deadline once more with what is known then.

Invariant (`check`): each belongs to a session that is here, and has a deadline.
Knows nothing of: what a request waits for, how it is answered.
"""

from collections.abc import Container, Iterable

from carpool_broker.core.model.events import AgentDiscovered, AgentListed, AgentListened, AgentWatched
from carpool_broker.core.model.session import Owed, Session
from carpool_broker.core.model.timer_kinds import BrokerTimers
from carpool_protocol.ids import RawJson, SessionId

Question = AgentListed | AgentDiscovered | AgentWatched | AgentListened
"""A request that carpool answers itself from what the session sees."""


class Deferred:
    """One request that waits."""

    __slots__ = ("id", "repeated", "request", "session")

    def __init__(self, session: Session, request: Owed | Question) -> None:
        self.session = session
        self.id = request.asked.id if isinstance(request, Owed) else request.id
        self.request = request
        self.repeated = False
        """Its agent has said it to an earlier broker before, and may have had an answer there."""


class DeferredRequests:
    """Those of all sessions. They keep the order in which each session has sent them."""

    def __init__(self, timers: BrokerTimers) -> None:
        self._timers = timers
        self.by_session: dict[SessionId, dict[RawJson, Deferred]] = {}
        """Those of a session by request id; only of sessions that have some."""

    def add(self, deferred: Deferred, now: float, wait_s: float) -> None:
        """It waits from now on, so long at most."""
        session = deferred.session.id
        self.by_session.setdefault(session, {})[deferred.id] = deferred
        self._timers.arm("deferred_request", (session, deferred.id), now, wait_s)

    def of(self, session: SessionId) -> list[Deferred]:
        """What of this session waits."""
        return list(self.by_session.get(session, {}).values())

    def all(self) -> list[Deferred]:
        """Everything that waits."""
        return [deferred for waiting in self.by_session.values() for deferred in waiting.values()]

    def has(self, session: SessionId, request: RawJson) -> bool:
        """Whether this request waits."""
        return request in self.by_session.get(session, ())

    def remove(self, session: SessionId, request: RawJson) -> None:
        """It waits no more, if it did."""
        waiting = self.by_session.get(session)
        if waiting is not None and waiting.pop(request, None) is not None:
            self._timers.disarm("deferred_request", (session, request))
            if not waiting:
                del self.by_session[session]

    def take(self, which: Iterable[tuple[SessionId, RawJson]]) -> list[Deferred]:
        """These wait no more."""
        taken: list[Deferred] = []
        for session, request in which:
            taken.append(self.by_session[session][request])
            self.remove(session, request)
        return taken

    def forget(self, session: Session) -> None:
        """The agent is gone."""
        for deferred in self.of(session.id):
            self.remove(session.id, deferred.id)

    def check(self, sessions: Container[SessionId]) -> None:
        """Assert every invariant."""
        waiting = {(session, request) for session, held in self.by_session.items() for request in held}
        assert waiting == self._timers.keys("deferred_request")
        assert all(session in sessions for session in self.by_session)
        assert all(self.by_session.values()), "a session of which nothing waits"
