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

from collections.abc import Callable, Iterable
from typing import Final

from carpool_broker.core.calls.tasks import Tasks
from carpool_broker.core.configuration.session_views import Outlook
from carpool_broker.core.model.answers import refusal
from carpool_broker.core.model.effects import Acknowledge, AnyEffect, EndListen, SayListChanged
from carpool_broker.core.model.events import AgentGranted, AgentListened, Notice
from carpool_broker.core.model.session import Listen, Session
from carpool_broker.core.registry.view import Route
from carpool_broker.core.subscriptions.subscribe import Watching
from carpool_broker.core.subscriptions.subscription_table import MAX_WATCHED, Interests
from carpool_protocol.ids import RawJson, SessionId
from carpool_protocol.link.messages import Feature

MAX_LISTENS: Final = 1024
"""Of one session: one that many agents share has one for each of them."""
MAX_URIS: Final = 1024

_METHOD: Final = "subscriptions/listen"
_SAYS: Final[dict[Notice, Feature]] = {
    "tools": "tools.listChanged",
    "prompts": "prompts.listChanged",
    "resources": "resources.listChanged",
}


class Listens:
    """All listens of all sessions."""

    def __init__(
        self,
        sessions: dict[SessionId, Session],
        outlook: Outlook,
        interests: Interests,
        watching: Watching,
        out: Callable[[AnyEffect], None],
        *,
        tasks: Tasks,
    ) -> None:
        self._sessions = sessions
        self._outlook = outlook
        self._interests = interests
        self._watching = watching
        self._tasks = tasks
        self._out = out
        self._before: dict[SessionId, AgentGranted] = {}
        """What was granted to the listen that comes next."""

    def granted(self, session: Session, event: AgentGranted) -> None:
        """The listen that comes next, under this id, has been granted this."""
        self._before[session.id] = event

    def accepts(self, session: Session, event: AgentListened) -> bool:
        """Whether it is to be granted what can be delivered now: not if it is refused, or in force since an
        earlier broker.
        """
        before = self._before.pop(session.id, None)
        if len(session.listens) >= MAX_LISTENS:
            self._refuse(
                session, event, "too_many_calls", f"At most {MAX_LISTENS} may listen in one session."
            )
        elif before is not None and _is_granted(session, event, before):
            self._restore(session, event, before)
        elif len(event.uris) > MAX_URIS:
            self._refuse(session, event, "bad_params", f"One listen may name {MAX_URIS} resources at most.")
        elif event.tasks and self._is_undeclared(session, event):
            pass
        elif event.uris and _named(session) + len(event.uris) > MAX_WATCHED:
            self._refuse(
                session,
                event,
                "too_many_calls",
                f"All listens of one session may name {MAX_WATCHED} resources.",
            )
        else:
            session.listens[event.id] = Listen(event)
            return True
        return False

    def _refuse(self, session: Session, event: AgentListened, slug: str, detail: str = "") -> None:
        self._out(refusal(session, event.id, event.by, slug, detail=detail, method=_METHOD))

    def _is_undeclared(self, session: Session, event: AgentListened) -> bool:
        """Whether it is refused because it names tasks. Where no server knows of any they are passed over."""
        refused = self._tasks.objection(session, event.id, event.by, _METHOD)
        if refused is not None:
            self._out(refused)
        return refused is not None

    def answer(self, session: Session, event: AgentListened, *, patient: bool) -> bool:
        """Put it in force. False: it is to wait for a catalog that may tell more of it. `patient`: it may."""
        listen = session.listens[event.id]
        routes: list[tuple[str, Route]] = []
        for uri in event.uris:
            place = self._watching.place(session, uri, patient=patient)
            if place is None:
                return False
            if isinstance(place, Route):
                routes.append((uri, place))
        for uri, route in routes:
            self._interests.subscribe(session.id, route.server, route.uri, uri, event.id)
        listen.places = tuple((route.server, route.uri) for _, route in routes)
        listen.granted = True
        features = self._outlook.view(session).capabilities()
        listen.families = tuple(family for family in event.families if _SAYS[family] in features)
        uris = tuple(uri for uri, _ in routes)
        listen.tasks = self._tasks.of(session, event.tasks)
        self._out(Acknowledge(session.id, event.id, listen.families, uris, listen.tasks))
        self._tasks.heard(listen.tasks, event.id, on=True)
        return True

    def _restore(self, session: Session, event: AgentListened, before: AgentGranted) -> None:
        """It is in force since an earlier broker, whoever serves here what it is for."""
        listen = session.listens[event.id] = Listen(event)
        listen.granted = True
        listen.families = tuple(family for family in event.families if family in before.families)
        granted = set(before.uris)
        uris = tuple(uri for uri in event.uris if uri in granted)
        tasks = [each for each in event.tasks if each in before.tasks]
        listen.tasks = self._tasks.of(session, tasks)
        listen.is_bereft = len(listen.tasks) < len(tasks)
        self._watching.astray.hold(session, uris, event.id)
        self._out(Acknowledge(session.id, event.id, listen.families, uris, listen.tasks))
        self._tasks.heard(listen.tasks, event.id, on=True)

    def resumed(self, session: Session) -> None:
        """This session has come from an earlier broker, with the listens that were in force there. Nobody has
        told it what became of the lists between the two: each says that they have changed.
        """
        self._before.pop(session.id, None)
        for listen in list(session.listens.values()):
            if listen.is_bereft:
                self._end(session, listen)
            elif listen.granted:
                self.say_old(session, listen)

    def supervisor_went(self) -> None:
        """Every task is gone with it."""
        for session in self._sessions.values():
            for listen in [each for each in session.listens.values() if each.tasks]:
                self._end(session, listen)

    def _end(self, session: Session, listen: Listen) -> None:
        """Its agent may listen anew, and is told then what there is."""
        self.cancelled(session, listen.event.id)
        self._out(EndListen(session.id, listen.event.id))

    def say_old(self, session: Session, listen: Listen) -> None:
        """Its lists may have changed since an earlier broker has said something on it."""
        for family in listen.families:
            self._out(SayListChanged(session.id, family, listen.event.id))

    def changed(self, session: Session, families: Iterable[Notice]) -> None:
        """Lists that this session sees are others now: every listen for them says so, each time."""
        changed = set(families)
        for request, listen in session.listens.items():
            for family in listen.families:
                if family in changed:
                    self._out(SayListChanged(session.id, family, request))

    def cancelled(self, session: Session, request: RawJson) -> bool:
        """Whether this id was a listen's; it has ended."""
        listen = session.listens.pop(request, None)
        if listen is None:
            return False
        self._watching.astray.end(session.id, request)
        for server, uri in listen.places:
            self._interests.unsubscribe(session.id, server, uri, request)
        self._tasks.heard(listen.tasks, request, on=False)
        return True

    def forget(self, session: Session) -> None:
        """The agent is gone; what it subscribed to is `interests`'."""
        session.listens.clear()
        self._before.pop(session.id, None)

    def check(self) -> None:
        """Assert every invariant."""
        assert self._before.keys() <= self._sessions.keys()
        for session in self._sessions.values():
            held = self._interests.holders(session.id)
            assert held <= session.listens.keys(), "a subscription of a listen that is over"
            for request, listen in session.listens.items():
                assert listen.event.id == request
                assert listen.granted or request not in held
                assert listen.granted or not listen.families


def _is_granted(session: Session, event: AgentListened, before: AgentGranted) -> bool:
    """Whether it is for this listen, and may still be had."""
    return before.id == event.id and _named(session) + len(event.uris) <= MAX_WATCHED


def _named(session: Session) -> int:
    """How many resources its listens name, those that wait for catalogs too."""
    return sum(len(listen.event.uris) for listen in session.listens.values())
