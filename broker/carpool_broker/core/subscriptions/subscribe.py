"""Log levels and subscriptions as agents of the handshake era ask for them, and where a URI is subscribed to.

Owns subscriptions that wait for catalogs which may still tell whose a URI is (rule 18), bounded by `wait_s`;
and that the supervisor hears what sessions want. One that an earlier broker has said yes to is not asked
again: it holds (`unplaced`). Source: MCP 2025-11-25, server/resources "Subscriptions".

Invariant (`check`): what waits has a deadline and belongs to a session that is there.
Knows nothing of: who hears of what (`subscription_table`), listens of the stateless era.
"""

from collections.abc import Callable

from msgspec import Struct

from carpool_broker.core.configuration.session_views import Outlook
from carpool_broker.core.model.answers import refusal
from carpool_broker.core.model.effects import AnyEffect, Reply
from carpool_broker.core.model.events import AgentSetLevel, AgentWatched
from carpool_broker.core.model.session import Session
from carpool_broker.core.registry.registry import Registry
from carpool_broker.core.registry.resolve import kept_back
from carpool_broker.core.registry.view import Denied, Route
from carpool_broker.core.subscriptions.subscription_table import LEVELS, MAX_WATCHED, Interests
from carpool_broker.core.subscriptions.unplaced import Astray
from carpool_protocol.ids import EMPTY_OBJECT, RawJson, SessionId
from carpool_protocol.machine.deadlines import Deadlines

Who = tuple[SessionId, RawJson]


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
    ) -> None:
        self._sessions = sessions
        self._registry = registry
        self._outlook = outlook
        self._interests = interests
        self._out = out
        self.linked: Callable[[], bool] = lambda: False
        """Whether a supervisor is there."""
        self.wait_s = 10.0
        self.waits: Deadlines[Who] = Deadlines()
        self.astray = Astray(sessions, outlook, interests, self._sought)
        self._early: dict[Who, AgentWatched] = {}
        """Subscriptions to resources of a server that may not have told its catalog yet."""

    def set_level(self, session: Session, event: AgentSetLevel) -> None:
        """Which log messages the session wants."""
        if not session.greeted:
            self._refuse(session, event.id, "not_initialized")
        elif not self._interests.set_level(session.id, event.level):
            self._refuse(session, event.id, "bad_params", f"A level is one of {', '.join(LEVELS)}.")
        else:
            self._out(Reply(session.id, event.id, is_error=False, body=EMPTY_OBJECT))
            self.say_interests()

    def watched(self, event: AgentWatched, now: float, *, patient: bool) -> None:
        """A subscription, or its end. It is answered here and kept up whatever instance serves."""
        session = self._sessions[event.session]
        if not session.greeted:
            self._refuse(session, event.id, "not_initialized")
            return
        if event.granted and self._has_room(session):
            self.astray.hold(session, (event.uri,))
            self._agree(session, event)
            return
        if not event.on and self.astray.drop(session, event.uri):
            self._agree(session, event)
            return
        who = (session.id, event.id)
        place = self.place(session, event.uri, patient=patient)
        if place is None:
            if who not in self._early:
                self._outlook.discover(session, self._outlook.view(session))
                self._early[who] = event
                self.waits.arm(who, now, self.wait_s)
            return
        self._forget(who)
        if isinstance(place, NoPlace):
            self._refuse(session, event.id, place.fault, place.detail)
            return
        if event.on and not self._has_room(session):
            detail = f"One agent may subscribe to {MAX_WATCHED} resources."
            self._refuse(session, event.id, "too_many_calls", detail)
            return
        if event.on:
            self.astray.drop(session, event.uri)
            self._interests.subscribe(session.id, place.server, place.uri, event.uri)
        else:
            self._interests.unsubscribe(session.id, place.server, place.uri)
        self._agree(session, event)

    def _has_room(self, session: Session) -> bool:
        return self._interests.has_room(session.id, besides=len(self.astray.of(session.id)))

    def _agree(self, session: Session, event: AgentWatched) -> None:
        self._out(Reply(session.id, event.id, is_error=False, body=EMPTY_OBJECT))
        self.say_interests()

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

    def say_interests(self) -> None:
        """Tell the supervisor what it does not know yet of levels and subscriptions."""
        if self.linked():
            for news in self._interests.news():
                self._out(news)

    def _refuse(self, session: Session, request: RawJson, slug: str, detail: str = "") -> None:
        self._out(refusal(session, request, None, slug, detail=detail))

    # --- waiting ---------------------------------------------------------------------------------------

    def cancelled(self, session: Session, request: RawJson) -> None:
        """A subscription that waits is not wanted any more."""
        self._forget((session.id, request))

    def waited(self, who: Who, now: float, *, patient: bool) -> None:
        """It has waited long enough. `patient`: it may once more."""
        self.watched(self._early.pop(who), now, patient=patient)

    def moved(self, now: float) -> None:
        """Catalogs or pool states are others now: what waited for that may go on."""
        for early in list(self._early.values()):
            self.watched(early, now, patient=True)
        if self.astray.look():
            self.say_interests()

    def has_early(self, session: Session) -> bool:
        """Whether a subscription of this session waits."""
        return any(who[0] == session.id for who in self._early)

    def forget(self, session: Session) -> None:
        """The agent is gone."""
        self.astray.forget(session.id)
        for who in [who for who in self._early if who[0] == session.id]:
            self._forget(who)

    def _forget(self, who: Who) -> None:
        self._early.pop(who, None)
        self.waits.disarm(who)

    def check(self) -> None:
        """Assert every invariant."""
        self.astray.check()
        assert len(self.waits) == len(self._early)
        assert all(who in self.waits and who[0] in self._sessions for who in self._early)
