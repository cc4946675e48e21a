"""Log levels and subscriptions as agents of the handshake era ask for them, and where a URI is subscribed to.

Owns which subscriptions wait for catalogs that may still tell whose a URI is (rule 18). One that an earlier
broker has said yes to is not asked again: it holds (`unplaced`). Source: MCP 2025-11-25, server/resources
"Subscriptions".

Knows nothing of: who hears of what (`subscription_table`), how long what waits does so (`deferred`), listens
of the stateless era.
"""

from collections.abc import Callable

from msgspec import Struct

from carpool_broker.core.configuration.session_views import Outlook
from carpool_broker.core.model.answers import refusal
from carpool_broker.core.model.effects import AnyEffect, Reply, SayUpdated
from carpool_broker.core.model.events import AgentSetLevel, AgentWatched
from carpool_broker.core.model.session import Session
from carpool_broker.core.registry.registry import Registry
from carpool_broker.core.registry.resolve import kept_back
from carpool_broker.core.registry.view import Denied, Route
from carpool_broker.core.subscriptions.subscription_table import LEVELS, MAX_WATCHED, Interests
from carpool_broker.core.subscriptions.unplaced import Astray
from carpool_protocol.ids import EMPTY_OBJECT, RawJson, SessionId


class NoPlace(Struct, frozen=True):
    """Nobody here tells of changes of this resource."""

    fault: str
    detail: str = ""


class Watching:
    """Levels and subscriptions of all sessions."""

    def __init__(
        self,
        sessions: dict[SessionId, Session],
        registry: Registry,
        outlook: Outlook,
        interests: Interests,
        out: Callable[[AnyEffect], None],
        *,
        tell: Callable[[SayUpdated, Session], None],
    ) -> None:
        """`tell`: has an agent hear that a resource has changed."""
        self._registry = registry
        self._outlook = outlook
        self._interests = interests
        self._out = out
        self.astray = Astray(sessions, outlook, interests, place=self._sought, tell=tell)

    def set_level(self, session: Session, event: AgentSetLevel) -> None:
        """Which log messages the session wants."""
        if not session.greeted:
            self._refuse(session, event.id, "not_initialized")
        elif not self._interests.set_level(session.id, event.level):
            self._refuse(session, event.id, "bad_params", f"A level is one of {', '.join(LEVELS)}.")
        else:
            self._out(Reply(session.id, event.id, is_error=False, body=EMPTY_OBJECT))

    def accepts(self, session: Session, event: AgentWatched) -> bool:
        """Whether it is still to be answered: not if it is refused, or concerns what an earlier broker has
        granted.
        """
        if not session.greeted:
            self._refuse(session, event.id, "not_initialized")
        elif event.granted and self._has_room(session):
            self.astray.hold(session, (event.uri,))
            self._agree(session, event)
        elif not event.on and self.astray.drop(session, event.uri):
            self._agree(session, event)
        else:
            return True
        return False

    def answer(self, session: Session, event: AgentWatched, *, patient: bool) -> bool:
        """A subscription, or its end. It is answered here and kept up whatever instance serves. False: it is
        to wait for a catalog that may tell whose its URI is. `patient`: it may.
        """
        place = self.place(session, event.uri, patient=patient)
        if place is None:
            return False
        if isinstance(place, NoPlace):
            self._refuse(session, event.id, place.fault, place.detail)
        elif event.on and not self._has_room(session):
            detail = f"One agent may subscribe to {MAX_WATCHED} resources."
            self._refuse(session, event.id, "too_many_calls", detail)
        else:
            if event.on:
                self.astray.drop(session, event.uri)
                self._interests.subscribe(session.id, place.server, place.uri, event.uri)
            else:
                self._interests.unsubscribe(session.id, place.server, place.uri)
            self._agree(session, event)
        return True

    def _has_room(self, session: Session) -> bool:
        return self._interests.has_room(session.id, besides=len(self.astray.of(session.id)))

    def _agree(self, session: Session, event: AgentWatched) -> None:
        self._out(Reply(session.id, event.id, is_error=False, body=EMPTY_OBJECT))

    def _sought(self, session: Session, uri: str) -> Route | None:
        place = self.place(session, uri, patient=False)
        return place if isinstance(place, Route) else None

    def place(self, session: Session, uri: str, *, patient: bool) -> Route | NoPlace | None:
        """Where changes of this resource are told. `patient`: None while a catalog may still tell better."""
        view = self._outlook.view(session)
        route = view.route(uri)
        final = isinstance(route, Route) and route.by in ("listed", "named")
        if isinstance(route, Route) and route.server in self._outlook.unrooted(session):
            final = False
        if patient and not final and self._outlook.unsettled(session, view):
            return None
        if isinstance(route, Denied):
            return NoPlace("not_permitted", kept_back(route.profile))
        if not isinstance(route, Route):
            return NoPlace("unknown_resource")
        catalog = self._registry.catalog(route.key)
        if catalog is not None and "resources.subscribe" not in catalog.features:
            return NoPlace("unknown_method", f"{route.server} knows no subscriptions.")
        return route

    def _refuse(self, session: Session, request: RawJson, slug: str, detail: str = "") -> None:
        self._out(refusal(session, request, None, slug, detail=detail))

    def moved(self) -> None:
        """Catalogs or pool states are others now."""
        self.astray.look()

    def forget(self, session: Session) -> None:
        """The agent is gone."""
        self.astray.forget(session.id)

    def check(self) -> None:
        """Assert every invariant."""
        self.astray.check()
