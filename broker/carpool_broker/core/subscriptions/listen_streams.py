"""`subscriptions/listen`: what agents of the stateless era hear of without asking each time.

Owns every listen from its request to its end: what it is granted (only what can be delivered), that this is
said before anything else on it, and what is said on which. A listen whose URIs may belong to a server that
has not told its catalog yet waits for that. One that an earlier broker has acknowledged is what was
acknowledged, no more and no less (`unplaced`); one for a task that is gone with a broker or a supervisor
ends, because its agent would wait for ever. Source: MCP 2026-07-28, basic/utilities/subscriptions: the
acknowledgement says what its agent is subscribed to, once.

Invariants (`check`): the subscriptions of a listen are in `subscription_table` under its id exactly while it
is granted. Knows nothing of: how it is worded, how long what waits does so (`deferred`), what changes
(`broker`), the union for servers (`subscription_table`).
"""

from collections.abc import Callable, Container, Iterable
from typing import Final

from carpool_broker.core.calls.tasks import AgentTasks
from carpool_broker.core.configuration.session_views import SessionViews
from carpool_broker.core.limits.memory_budgets import SubscriptionBudget, subscription_bytes
from carpool_broker.core.model.answers import error_reply
from carpool_broker.core.model.effects import AcknowledgeListen, AnyEffect, EndListen, SendListChanged
from carpool_broker.core.model.events import ListenRequested, ListenResumed, ListNotification
from carpool_broker.core.model.session import ListenStream, Session
from carpool_broker.core.registry.view import UriRoute
from carpool_broker.core.subscriptions.subscribe import NO_ROOM, OVERLONG_URI, SubscribeRequests
from carpool_broker.core.subscriptions.subscription_table import MAX_SUBSCRIPTIONS, SubscriptionTable
from carpool_protocol.ids import RawJson, SessionId
from carpool_protocol.link.messages import Feature
from carpool_protocol.wire.uri_normalization import MAX_CHARS

MAX_LISTENS: Final = 1024
"""The greatest number of listens of one session. A session that many agents share has one for
each of them.
"""
MAX_URIS: Final = 1024

_METHOD: Final = "subscriptions/listen"
_LIST_CHANGED_FEATURES: Final[dict[ListNotification, Feature]] = {
    "tools": "tools.listChanged",
    "prompts": "prompts.listChanged",
    "resources": "resources.listChanged",
}


class ListenStreams:
    """The listens of all sessions."""

    def __init__(
        self,
        sessions: dict[SessionId, Session],
        session_views: SessionViews,
        interests: SubscriptionTable,
        watching: SubscribeRequests,
        out: Callable[[AnyEffect], None],
        *,
        budget: SubscriptionBudget,
        tasks: AgentTasks,
    ) -> None:
        self._sessions = sessions
        self._session_views = session_views
        self._subscriptions = interests
        self._budget = budget
        self._subscribe = watching
        self._tasks = tasks
        self._emit = out
        self._resumed_grants: dict[SessionId, ListenResumed] = {}
        """What was granted to the listen that comes next."""

    def grant_resumed(self, session: Session, event: ListenResumed) -> None:
        """The listen that comes next under this id has been granted this by an earlier broker."""
        self._resumed_grants[session.id] = event

    def accepts(self, session: Session, event: ListenRequested) -> bool:
        """Return whether the listen is still to be granted. It is not if it is refused, or in force since an
        earlier broker.
        """
        before = self._resumed_grants.pop(session.id, None)
        if len(session.listens) >= MAX_LISTENS:
            self._refuse(
                session, event, "too_many_calls", f"At most {MAX_LISTENS} may listen in one session."
            )
        elif any(len(uri) > MAX_CHARS for uri in event.uris):
            self._refuse(session, event, "bad_params", OVERLONG_URI)
        elif before is not None and self._is_granted(session, event, before):
            self._restore(session, event, before)
        elif len(event.uris) > MAX_URIS:
            self._refuse(session, event, "bad_params", f"One listen may name {MAX_URIS} resources at most.")
        elif event.tasks and self._refuse_undeclared(session, event):
            pass
        elif event.uris and _count_uris(session) + len(event.uris) > MAX_SUBSCRIPTIONS:
            self._refuse(
                session,
                event,
                "too_many_calls",
                f"All listens of one session may name {MAX_SUBSCRIPTIONS} resources.",
            )
        elif (event.uris or event.tasks) and not self._budget.has_room(session, _size_bytes(event)):
            self._refuse(session, event, "too_many_calls", NO_ROOM)
        else:
            self._add_listen(session, event)
            return True
        return False

    def _add_listen(self, session: Session, event: ListenRequested) -> ListenStream:
        self._budget.count(session, _size_bytes(event))
        listen = session.listens[event.id] = ListenStream(event)
        return listen

    def _is_granted(self, session: Session, event: ListenRequested, before: ListenResumed) -> bool:
        """True if this listen asks for it, and it can still be granted."""
        return (
            before.id == event.id
            and _count_uris(session) + len(event.uris) <= MAX_SUBSCRIPTIONS
            and self._budget.has_room(session, _size_bytes(event), is_granted=True)
        )

    def _refuse(self, session: Session, event: ListenRequested, slug: str, detail: str = "") -> None:
        self._emit(error_reply(session, event.id, event.by, slug, detail=detail, method=_METHOD))

    def _refuse_undeclared(self, session: Session, event: ListenRequested) -> bool:
        """Refuse a listen that names tasks, if its agent has not declared them. Tasks are passed over where
        no server supports them.
        """
        refused = self._tasks.objection(session, event.id, event.by, _METHOD)
        if refused is not None:
            self._emit(refused)
        return refused is not None

    def answer(self, session: Session, event: ListenRequested, *, patient: bool) -> bool:
        """Put the listen in force. False: it must wait for a catalog that may tell more, which only happens
        if `patient`.
        """
        listen = session.listens[event.id]
        routes: list[tuple[str, UriRoute]] = []
        for uri in event.uris:
            place = self._subscribe.publisher_of(session, uri, patient=patient)
            if place is None:
                return False
            if isinstance(place, UriRoute):
                routes.append((uri, place))
        for uri, route in routes:
            self._subscriptions.subscribe(session.id, route.server, route.uri, uri, event.id)
        listen.places = tuple((route.server, route.uri) for _, route in routes)
        listen.granted = True
        features = self._session_views.view_of(session).capabilities()
        listen.families = tuple(
            family for family in event.families if _LIST_CHANGED_FEATURES[family] in features
        )
        uris = tuple(uri for uri, _ in routes)
        listen.tasks = self._tasks.of_session(session, event.tasks)
        self._emit(AcknowledgeListen(session.id, event.id, listen.families, uris, listen.tasks))
        self._tasks.set_listening(listen.tasks, event.id, on=True)
        return True

    def _restore(self, session: Session, event: ListenRequested, before: ListenResumed) -> None:
        """Put a listen in force that an earlier broker had granted, whichever server serves its resources
        here.
        """
        listen = self._add_listen(session, event)
        listen.granted = True
        listen.families = tuple(family for family in event.families if family in before.families)
        granted = set(before.uris)
        uris = tuple(uri for uri in event.uris if uri in granted)
        tasks = [each for each in event.tasks if each in before.tasks]
        listen.tasks = self._tasks.of_session(session, tasks)
        listen.is_bereft = len(listen.tasks) < len(tasks)
        self._subscribe.unplaced.add(session, uris, event.id)
        self._emit(AcknowledgeListen(session.id, event.id, listen.families, uris, listen.tasks))
        self._tasks.set_listening(listen.tasks, event.id, on=True)

    def session_resumed(self, session: Session) -> None:
        """The session has come from an earlier broker with these listens. Each is told that its lists have
        changed, because the agent has not heard what changed in between.
        """
        self._resumed_grants.pop(session.id, None)
        for listen in list(session.listens.values()):
            if listen.is_bereft:
                self._end_listen(session, listen)
            elif listen.granted:
                self.say_old(session, listen)

    def tasks_lost(self, lost: Container[str]) -> None:
        """These tasks are gone with their supervisor: the listens that hear of them end."""
        for session in self._sessions.values():
            for listen in [
                each for each in session.listens.values() if any(map(lost.__contains__, each.tasks))
            ]:
                self._end_listen(session, listen)

    def _end_listen(self, session: Session, listen: ListenStream) -> None:
        """End a listen. Its agent may listen again, and then hears what there is."""
        self.cancel_listen(session, listen.event.id)
        self._emit(EndListen(session.id, listen.event.id))

    def say_old(self, session: Session, listen: ListenStream) -> None:
        """Tell a listen that its lists may have changed since an earlier broker last wrote on it."""
        for family in listen.families:
            self._emit(SendListChanged(session.id, family, listen.event.id))

    def lists_changed(self, session: Session, families: Iterable[ListNotification]) -> None:
        """Lists that this session sees have changed: tell every listen for them, each time."""
        changed = set(families)
        for request, listen in session.listens.items():
            for family in listen.families:
                if family in changed:
                    self._emit(SendListChanged(session.id, family, request))

    def cancel_listen(self, session: Session, request: RawJson) -> bool:
        """End the listen with this id. Returns False if there is none."""
        listen = session.listens.pop(request, None)
        if listen is None:
            return False
        self._budget.count(session, -_size_bytes(listen.event))
        self._subscribe.unplaced.listen_ended(session.id, request)
        for server, uri in listen.places:
            self._subscriptions.unsubscribe(session.id, server, uri, request)
        self._tasks.set_listening(listen.tasks, request, on=False)
        return True

    def session_closed(self, session: Session) -> None:
        """The session has closed. Its subscriptions are in `SubscriptionTable`."""
        session.listens.clear()
        self._resumed_grants.pop(session.id, None)

    def check(self) -> None:
        """Assert every invariant."""
        assert self._resumed_grants.keys() <= self._sessions.keys()
        for session in self._sessions.values():
            held = self._subscriptions.holders(session.id)
            assert held <= session.listens.keys(), "a subscription of a listen that is over"
            named = sum(_size_bytes(listen.event) for listen in session.listens.values())
            assert session.subscription_bytes == named + self._subscriptions.own_bytes(session.id)
            for request, listen in session.listens.items():
                assert listen.event.id == request
                assert listen.granted or request not in held
                assert listen.granted or not listen.families


def _size_bytes(event: ListenRequested) -> int:
    return subscription_bytes(event.uris) + subscription_bytes(event.tasks)


def _count_uris(session: Session) -> int:
    """Return how many resources its listens name, also those that wait for catalogs."""
    return sum(len(listen.event.uris) for listen in session.listens.values())
