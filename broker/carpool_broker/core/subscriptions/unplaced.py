"""Subscriptions that an earlier broker has granted, and whose server is not sure to be known here.

An agent says once what it subscribes to, and is told once that it is: both at a broker that died. Such a
subscription holds, whoever serves its resource now (docs/decisions/0019). Owns which of them have no place
yet, or one for want of a better: they are looked for in each view that their session has from then on. An
agent whose subscription finds its place later than at once is told that the resource has changed: what became
of it meanwhile nobody knows.

Invariants (`check`): whatever is looked for is of a session that is here; what is a listen's is of one that
is in force. Knows nothing of: how a URI is placed (`subscribe`), how much of a listen was granted
(`listen_streams`), wording.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from carpool_broker.core.configuration.session_views import SessionViews
from carpool_broker.core.model.effects import SendResourceUpdated
from carpool_broker.core.model.session import Session
from carpool_broker.core.registry.uris import UriRoute
from carpool_broker.core.registry.view import View
from carpool_broker.core.subscriptions.subscription_table import SubscriptionTable
from carpool_protocol.ids import ABSENT, RawJson, ServerName, SessionId
from carpool_protocol.wire.jsonrpc import quote

CERTAIN_ROUTES = frozenset({"listed", "named"})
"""The routes that stay the same whatever other servers list later."""

ResourcePlace = tuple[ServerName, str]
"""A server, and its own URI."""


class UnplacedSubscriptions:
    """The subscriptions without a certain place, of all sessions. `place` tells which server tells of
    changes of a resource; `tell` tells an agent that it has changed.
    """

    def __init__(
        self,
        sessions: Mapping[SessionId, Session],
        session_views: SessionViews,
        interests: SubscriptionTable,
        *,
        place: Callable[[Session, str], UriRoute | None],
        tell: Callable[[SendResourceUpdated, Session], None],
    ) -> None:
        self._sessions = sessions
        self._session_views = session_views
        self._subscriptions = interests
        self._place = place
        self._tell = tell
        self._of_session: dict[SessionId, dict[tuple[RawJson, str], ResourcePlace | None]] = {}
        """By holder within the session (as in `SubscriptionTable`) and the URI as the agent spelled it: the
        place that it has for want of a better one.
        """
        self._seen: dict[SessionId, View] = {}
        """The view in which they were last looked for."""

    def of_session(self, session: SessionId) -> Collection[tuple[RawJson, str]]:
        """Return the holders and URIs that are looked for."""
        return self._of_session.get(session, {}).keys()

    def add(self, session: Session, uris: Iterable[str], holder: RawJson = ABSENT) -> None:
        """Add subscriptions that are in force, with a place or without."""
        lost = self._of_session.setdefault(session.id, {})
        for uri in uris:
            lost[holder, uri] = None
            self._recheck_one(session, holder, uri)
        self._drop_empty(session.id)

    def recheck(self) -> None:
        """Look for places again: views may have changed."""
        for who in list(self._of_session):
            session = self._sessions[who]
            view = self._session_views.view_of(session)
            if self._seen.get(who) is view:
                continue
            self._seen[who] = view
            for holder, uri in list(self._of_session[who]):
                if self._recheck_one(session, holder, uri):
                    self._tell(
                        SendResourceUpdated(who, uri, RawJson(b'{"uri":%b}' % quote(uri)), holder), session
                    )
            self._drop_empty(who)

    def _recheck_one(self, session: Session, holder: RawJson, uri: str) -> bool:
        """Look for a place in this view. Returns True if it differs from the one before."""
        route = self._place(session, uri)
        if route is None:
            return False
        lost = self._of_session[session.id]
        before, now = lost[holder, uri], (route.server, route.uri)
        if route.by in CERTAIN_ROUTES:
            del lost[holder, uri]
        else:
            lost[holder, uri] = now
        if before == now:
            return False
        if (
            route.by in CERTAIN_ROUTES
            or self._subscriptions.subscribed_spelling(session.id, *now, holder) is None
        ):
            self._subscriptions.subscribe(session.id, *now, uri, holder)
        if before is not None:
            self._leave_place(session.id, before, holder, uri)
        if holder:
            session.listens[holder].places += (now,)
        return True

    def remove(self, session: Session, uri: str) -> bool:
        """Remove a subscription of the session itself. Returns whether it was looked for."""
        lost = self._of_session.get(session.id, {})
        if (ABSENT, uri) not in lost:
            return False
        place = lost.pop((ABSENT, uri))
        if place is not None:
            self._leave_place(session.id, place, ABSENT, uri)
        self._drop_empty(session.id)
        return True

    def _leave_place(self, session: SessionId, place: ResourcePlace, holder: RawJson, uri: str) -> None:
        if self._subscriptions.subscribed_spelling(session, *place, holder) == uri:
            self._subscriptions.unsubscribe(session, *place, holder)

    def listen_ended(self, session: SessionId, listen: RawJson) -> None:
        """The listen is over: remove its subscriptions."""
        lost = self._of_session.get(session)
        if lost is not None:
            self._of_session[session] = {each: place for each, place in lost.items() if each[0] != listen}
            self._drop_empty(session)

    def workspace_left(self, session: Session) -> None:
        """The session has moved to another workspace. Subscriptions without a place are told as changed, for
        the last time.
        """
        for (holder, uri), place in self._of_session.get(session.id, {}).items():
            if place is None:
                self._tell(
                    SendResourceUpdated(session.id, uri, RawJson(b'{"uri":%b}' % quote(uri)), holder), session
                )
        self.session_closed(session.id)

    def session_closed(self, session: SessionId) -> None:
        """The session has closed."""
        self._of_session.pop(session, None)
        self._seen.pop(session, None)

    def _drop_empty(self, session: SessionId) -> None:
        if not self._of_session[session]:
            self.session_closed(session)

    def check(self) -> None:
        """Assert every invariant."""
        assert self._of_session.keys() <= self._sessions.keys(), "something is looked for that nobody wants"
        assert self._seen.keys() <= self._of_session.keys()
        for who, lost in self._of_session.items():
            assert lost
            assert all(self._sessions[who].listens[holder].granted for holder, _ in lost if holder)
