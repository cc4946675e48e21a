"""Log levels and subscriptions as agents of the handshake era ask for them, and where a URI is subscribed to.

Owns which subscriptions wait for catalogs that may still tell whose a URI is (rule 18). One that an earlier
broker has said yes to is not asked again: it holds (`unplaced`). Source: MCP 2025-11-25, server/resources
"Subscriptions".

Knows nothing of: who hears of what (`subscription_table`), how long what waits does so (`deferred`), listens
of the stateless era.
"""

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from carpool_broker.core.configuration.session_views import SessionViews
from carpool_broker.core.limits.memory_budgets import SubscriptionBudget, subscription_bytes
from carpool_broker.core.model.answers import error_reply
from carpool_broker.core.model.effects import AnyEffect, Reply, SendResourceUpdated
from carpool_broker.core.model.events import LogLevelRequested, SubscribeRequested
from carpool_broker.core.model.session import Session
from carpool_broker.core.registry.registry import Registry
from carpool_broker.core.registry.request_target import denied_by
from carpool_broker.core.registry.view import DeniedName, UriRoute
from carpool_broker.core.subscriptions.subscription_table import MAX_SUBSCRIPTIONS, SubscriptionTable
from carpool_broker.core.subscriptions.unplaced import UnplacedSubscriptions
from carpool_protocol.ids import EMPTY_OBJECT, RawJson, SessionId
from carpool_protocol.wire.log_levels import LEVELS
from carpool_protocol.wire.uri_normalization import MAX_CHARS

OVERLONG_URI: Final = f"The URI of a subscription has {MAX_CHARS} characters at most."
NO_ROOM: Final = (
    f"One agent may subscribe to {MAX_SUBSCRIPTIONS} resources, and all agents of one token together to as "
    "many as there is memory for. End subscriptions that are not needed."
)


class NoPublisher(Struct, frozen=True):
    """No server here tells of changes of this resource."""

    fault: str
    detail: str = ""


class SubscribeRequests:
    """The log levels and subscriptions of all sessions."""

    def __init__(
        self,
        sessions: dict[SessionId, Session],
        registry: Registry,
        session_views: SessionViews,
        interests: SubscriptionTable,
        out: Callable[[AnyEffect], None],
        *,
        budget: SubscriptionBudget,
        tell: Callable[[SendResourceUpdated, Session], None],
    ) -> None:
        """`tell` tells an agent that a resource has changed."""
        self._registry = registry
        self._session_views = session_views
        self._subscriptions = interests
        self._budget = budget
        self._emit = out
        self.unplaced = UnplacedSubscriptions(
            sessions, session_views, interests, place=self._find_publisher, tell=tell
        )

    def set_level(self, session: Session, event: LogLevelRequested) -> None:
        """Set which log messages the session wants."""
        if not session.greeted:
            self._refuse(session, event.id, "not_initialized")
        elif not self._subscriptions.set_level(session.id, event.level):
            self._refuse(session, event.id, "bad_params", f"A level is one of {', '.join(LEVELS)}.")
        else:
            self._emit(Reply(session.id, event.id, is_error=False, body=EMPTY_OBJECT))

    def accepts(self, session: Session, event: SubscribeRequested) -> bool:
        """Return whether the request is still to be answered. It is not if it is refused, or about a
        subscription that an earlier broker has granted.
        """
        if not session.greeted:
            self._refuse(session, event.id, "not_initialized")
        elif len(event.uri) > MAX_CHARS:
            self._refuse(session, event.id, "bad_params", OVERLONG_URI)
        elif event.granted and self._has_room(session, event):
            self.unplaced.add(session, (event.uri,))
            self._accept(session, event)
        elif not event.on and self.unplaced.remove(session, event.uri):
            self._accept(session, event)
        else:
            return True
        return False

    def answer(self, session: Session, event: SubscribeRequested, *, patient: bool) -> bool:
        """Answer `resources/subscribe` or `resources/unsubscribe`. The subscription holds whichever instance
        serves. False: it must wait for a catalog that may tell which server has its URI, which only happens
        if `patient`.
        """
        place = self.publisher_of(session, event.uri, patient=patient)
        if place is None:
            return False
        if isinstance(place, NoPublisher):
            self._refuse(session, event.id, place.fault, place.detail)
        elif event.on and not self._has_room(session, event):
            self._refuse(session, event.id, "too_many_calls", NO_ROOM)
        else:
            if event.on:
                self.unplaced.remove(session, event.uri)
                self._subscriptions.subscribe(session.id, place.server, place.uri, event.uri)
            else:
                self._subscriptions.unsubscribe(session.id, place.server, place.uri)
            self._accept(session, event)
        return True

    def _has_room(self, session: Session, event: SubscribeRequested) -> bool:
        besides = len(self.unplaced.of_session(session.id))
        size_bytes = subscription_bytes([event.uri])
        return self._subscriptions.has_room(session.id, besides=besides) and self._budget.has_room(
            session, size_bytes, is_granted=event.granted
        )

    def _accept(self, session: Session, event: SubscribeRequested) -> None:
        self._emit(Reply(session.id, event.id, is_error=False, body=EMPTY_OBJECT))

    def _find_publisher(self, session: Session, uri: str) -> UriRoute | None:
        place = self.publisher_of(session, uri, patient=False)
        return place if isinstance(place, UriRoute) else None

    def publisher_of(self, session: Session, uri: str, *, patient: bool) -> UriRoute | NoPublisher | None:
        """Return the server that tells of changes of this resource. If `patient`, None while a catalog may
        still tell better.
        """
        view = self._session_views.view_of(session)
        route = view.route(uri)
        final = isinstance(route, UriRoute) and route.by in ("listed", "named")
        if isinstance(route, UriRoute) and route.server in self._session_views.servers_awaiting_roots(
            session
        ):
            final = False
        if patient and not final and self._session_views.has_pending_servers(session, view):
            return None
        if isinstance(route, DeniedName):
            return NoPublisher("not_permitted", denied_by(route.profile))
        if not isinstance(route, UriRoute):
            return NoPublisher("unknown_resource")
        catalog = self._registry.told_catalog(route.key)
        if catalog is not None and "resources.subscribe" not in catalog.features:
            return NoPublisher("unknown_method", f"{route.server} knows no subscriptions.")
        return route

    def _refuse(self, session: Session, request: RawJson, slug: str, detail: str = "") -> None:
        self._emit(error_reply(session, request, None, slug, detail=detail))

    def catalogs_changed(self) -> None:
        """Catalogs or states of pools have changed."""
        self.unplaced.recheck()

    def session_closed(self, session: Session) -> None:
        """The session has closed."""
        self.unplaced.session_closed(session.id)

    def check(self) -> None:
        """Assert every invariant."""
        self.unplaced.check()
