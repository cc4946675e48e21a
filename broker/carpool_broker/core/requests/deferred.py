"""Requests that wait for catalogs or for their agent's roots (rules 6 and 18).

Owns the one table of them, each with a deadline: calls of a name that no catalog has yet, first pages of
lists, `server/discover`, subscriptions and listens. `dispatch` retries each of them when catalogs change,
and once more at its deadline.

Invariant (`check`): each request belongs to a connected session and has a timer.
Knows nothing of: what a request waits for, how it is answered.
"""

from collections.abc import Container, Iterable

from carpool_broker.core.model.events import (
    DiscoverRequested,
    ListenRequested,
    ListPageRequested,
    SubscribeRequested,
)
from carpool_broker.core.model.session import OpenCall, Session
from carpool_broker.core.model.timer_kinds import BrokerTimers
from carpool_protocol.ids import RawJson, SessionId

Question = ListPageRequested | DiscoverRequested | SubscribeRequested | ListenRequested
"""A request that carpool answers itself from the view of the session."""


class Deferred:
    """One waiting request."""

    __slots__ = ("id", "repeated", "request", "session")

    def __init__(self, session: Session, request: OpenCall | Question) -> None:
        self.session = session
        self.id = request.asked.id if isinstance(request, OpenCall) else request.id
        self.request = request
        self.repeated = False
        """The agent sent it to an earlier broker too, which may have answered it."""


class DeferredRequests:
    """Waiting requests of all sessions, those of one session in the order of arrival."""

    def __init__(self, timers: BrokerTimers) -> None:
        self._timers = timers
        self.by_session: dict[SessionId, dict[RawJson, Deferred]] = {}
        """By session and request id. A session without waiting requests has no entry."""

    def add(self, deferred: Deferred, now: float, wait_s: float) -> None:
        """Let a request wait, at most for `wait_s`."""
        session = deferred.session.id
        self.by_session.setdefault(session, {})[deferred.id] = deferred
        self._timers.arm("deferred_request", (session, deferred.id), now, wait_s)

    def of(self, session: SessionId) -> list[Deferred]:
        """The waiting requests of a session."""
        return list(self.by_session.get(session, {}).values())

    def all(self) -> list[Deferred]:
        """The waiting requests of all sessions."""
        return [deferred for waiting in self.by_session.values() for deferred in waiting.values()]

    def has(self, session: SessionId, request: RawJson) -> bool:
        """True if this request waits."""
        return request in self.by_session.get(session, ())

    def remove(self, session: SessionId, request: RawJson) -> None:
        """Remove a request; nothing happens if it does not wait."""
        waiting = self.by_session.get(session)
        if waiting is not None and waiting.pop(request, None) is not None:
            self._timers.disarm("deferred_request", (session, request))
            if not waiting:
                del self.by_session[session]

    def take(self, which: Iterable[tuple[SessionId, RawJson]]) -> list[Deferred]:
        """Remove these requests and return them."""
        taken: list[Deferred] = []
        for session, request in which:
            taken.append(self.by_session[session][request])
            self.remove(session, request)
        return taken

    def forget(self, session: Session) -> None:
        """Remove all requests of a session that ends."""
        for deferred in self.of(session.id):
            self.remove(session.id, deferred.id)

    def check(self, sessions: Container[SessionId]) -> None:
        """Assert every invariant."""
        waiting = {(session, request) for session, held in self.by_session.items() for request in held}
        assert waiting == self._timers.keys("deferred_request")
        assert all(session in sessions for session in self.by_session)
        assert all(self.by_session.values()), "an empty entry"
