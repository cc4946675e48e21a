"""The broker's decisions, all of them, behind one door.

Composes sessions, the ledger (calls), requests (what agents ask), asks (what agents are asked), the outlook
(views), greetings, parked calls and sources (configurations in force): takes an event, returns the effects in
order. Owns what is said to the supervisor as wanted. Pure: time comes in.

Invariants (`check`): those of its parts; every session's source is known.

Knows nothing of: how an era words requests and answers, sockets, processes.
"""

from typing import Final, assert_never

from carpool_broker.core import bereft, books, touched
from carpool_broker.core.asks import Asks
from carpool_broker.core.bounds import Bounds
from carpool_broker.core.course import Course
from carpool_broker.core.effects import AnyEffect, Reply
from carpool_broker.core.events import (
    AgentAnswered,
    AgentCalled,
    AgentCame,
    AgentCancelled,
    AgentDiscovered,
    AgentErred,
    AgentGreeted,
    AgentLeft,
    AgentListed,
    AgentListened,
    AgentPinged,
    AgentProgressed,
    AgentReady,
    AgentRooted,
    AgentRootsChanged,
    AgentSetLevel,
    AgentUnread,
    AgentWatched,
    AnyEvent,
    EndMeant,
    LimitsRead,
    SessionMoved,
    SourceDropped,
    SourceRead,
    SupervisorCame,
    SupervisorWent,
)
from carpool_broker.core.greetings import Greetings
from carpool_broker.core.hearing import Hearing
from carpool_broker.core.ledger import Ledger
from carpool_broker.core.listing import Family
from carpool_broker.core.outlook import Outlook
from carpool_broker.core.parked import Parked
from carpool_broker.core.registry import Changes, Registry
from carpool_broker.core.requests import Requests
from carpool_broker.core.roots import Roots
from carpool_broker.core.session import Session
from carpool_broker.core.view import View
from carpool_protocol.ids import EMPTY_OBJECT, PoolKey, SessionId
from carpool_protocol.messages import (
    Answered,
    Asked,
    AskWithdrawn,
    Catalog,
    Credit,
    Discover,
    Elicited,
    Failed,
    Logged,
    PoolChanged,
    Progressed,
    SessionGone,
    TaskTold,
    Updated,
    Wanted,
)

AWAY: Final = frozenset({"given_up", "stopped", "breaker_open", "half_open"})
"""States in which a server leaves every list."""


class BrokerCore:
    """All decisions of the broker. See `carpool_protocol.machine.Machine`."""

    def __init__(
        self, registry: Registry, bounds: Bounds, list_wait_s: float, *, secret: bytes = b""
    ) -> None:
        """`secret`: nobody outside knows it; without one no call of the stateless era can be parked."""
        self._effects: list[AnyEffect] = []
        self.registry = registry
        self.sessions: dict[SessionId, Session] = {}
        self.outlook = Outlook(registry, self._out)
        self.states = self.outlook.states
        self.sources = self.outlook.sources
        self.ledger = Ledger(self.sessions, bounds, self._out)
        self.requests = Requests(self.sessions, registry, self.outlook, self.ledger, self._out)
        self.requests.list_wait_s, self.requests.tasks.secret = list_wait_s, secret
        self.parked = Parked(self.sessions, self.ledger, self._out, secret, self.requests.place)
        self.requests.retried = self.parked.retried
        self.ledger.states = self.states
        interests, tasks = self.requests.interests, self.requests.tasks
        course = Course(registry, interests, self.parked, self._is_linked, self._out, tasks=tasks)
        self.ledger.aftermath = course
        self.hearing = Hearing(self.sessions, self.outlook, self.ledger, self.requests, self._out)
        self.asks = Asks(self.sessions, self.ledger, self.parked, self._out)
        self.roots = Roots(self.sessions, self.sources, self._out)
        self.greetings = Greetings(self.outlook, self.roots, self._out, self._look, self._follow)
        self._rare = (*self.requests.deadlines(), *self.parked.deadlines())
        """All deadlines but those of calls: most of the time there are none. Looked at once per burst."""
        self._wanted: set[PoolKey] = set()
        self._said: Wanted | None = None
        """What the supervisor knows to be wanted."""

    def handle(self, event: AnyEvent, now: float) -> list[AnyEffect]:
        """Take one event; return what is to be done, in order."""
        effects: list[AnyEffect] = []
        self._effects = effects
        # The two events of every call come first.
        if type(event) is Answered:
            self.ledger.answered(event, now)
        elif type(event) is AgentCalled:
            if event.by is not None and (session := self.sessions.get(event.session)) is not None:
                self.greetings.met(session, event.by, settles=True)
            self.requests.called(event, now)
        else:
            self._handle_rare(event, now)
        return effects

    def tick(self, now: float) -> list[AnyEffect]:
        """Time has passed."""
        effects: list[AnyEffect] = []
        self._effects = effects
        self.ledger.overdue(now)
        self.requests.overdue(now)
        self.parked.overdue(now)
        return effects

    def next_deadline(self) -> float | None:
        """When `tick` has something to do at the latest."""
        earliest = self.ledger.next_deadline()
        for deadlines in self._rare:
            if deadlines:
                due = deadlines.next_deadline()
                if earliest is None or (due is not None and due < earliest):
                    earliest = due
        return earliest

    def check(self) -> None:
        """Assert every invariant of every part."""
        books.check(self.ledger, self.sessions)
        self.asks.check()
        self.parked.check()
        self.roots.check()
        self.outlook.check(self.sessions.values())
        self.requests.check()
        self.registry.check()

    check_touched = touched.check_touched

    def _out(self, effect: AnyEffect) -> None:
        self._effects.append(effect)

    def _handle_rare(self, event: AnyEvent, now: float) -> None:  # noqa: C901 - an arm per event
        match event:
            case AgentCalled() | Answered():  # pragma: no cover
                pass  # handled in `handle`
            case Failed():
                self.ledger.failed(event, now)
            case Progressed():
                self.ledger.progressed(event)
            case Logged():
                self.hearing.logged(event)
            case Updated():
                self.ledger.fresh.changed(event.key, event.uri)
                self.hearing.updated(event)
            case Asked():
                self.asks.asked(event, now)
            case AskWithdrawn():
                self.asks.withdrawn(event)
            case Elicited():
                self.asks.elicited(event)
            case TaskTold():
                self.requests.tasks.told(event)
            case Credit():
                if self.ledger.credit_bytes is not None:
                    self.ledger.credit_bytes += event.size_bytes
                    self.ledger.pump_all(now)
            case Catalog() | PoolChanged() if event.key not in self._wanted:
                pass  # said before the supervisor heard that nobody wants this pool any more
            case Catalog():
                self.outlook.slow.discard(event.key)
                self.requests.hints.told(event, now)
                self.ledger.fresh.forget(event.key)
                self._told(self.registry.learn(event))
                self._moved(now, event.key)
            case PoolChanged():
                self._pool_changed(event, now)
            case SourceRead():
                self.sources.read(event)
                self._follow()
                for each in self.sessions.values():
                    if each.source == event.source:
                        self.roots.look(each)
                self._moved(now)
            case SourceDropped():
                self.sources.drop(event.source)
                self._say_wanted()
            case LimitsRead():
                self.ledger.bounds = event.bounds
                self.requests.list_wait_s = event.list_wait_s
                for each in self.sessions.values():
                    self.ledger.pump(each, now)
            case AgentCame():
                came = Session(event.session, event.source, event.agent, event.pid, event.carrier)
                came.asking = came.control = event.control
                came.shared = came.stateless = event.shared
                came.anonymous, came.max_open_calls = event.anonymous, event.max_open_calls
                self.sessions[event.session] = came
                self.outlook.enter(came)
                if event.shared and self.sources.enter(event.source, asking=came.asking, stateless=True):
                    self._follow()
            case SupervisorCame():
                self.states.clear()
                self.ledger.credit_bytes = event.credit_bytes
                self._said = self.sources.wanted()
                self._out(self._said)
                self._effects += bereft.said(self.sessions.values())
                self.requests.hints.supervisor_came()
                self.requests.interests.restart()
                self.requests.watching.say_interests()
                self._discover_used()
                self.ledger.pump_all(now)
            case EndMeant():
                self.requests.end()
            case SupervisorWent():
                self.asks.supervisor_went()
                self.ledger.supervisor_went()
                self.requests.tasks.supervisor_went()
                bereft.note(self.sessions.values(), self.states)
                self.states.clear()
                self.outlook.slow.clear()
            case _:
                session = self.sessions.get(event.session)
                if session is not None:
                    self._handle_agent(session, event, now)

    def _handle_agent(  # noqa: C901 - an arm per event
        self,
        session: Session,
        event: SessionMoved
        | AgentLeft
        | AgentUnread
        | AgentGreeted
        | AgentReady
        | AgentRootsChanged
        | AgentPinged
        | AgentListed
        | AgentCancelled
        | AgentSetLevel
        | AgentWatched
        | AgentErred
        | AgentAnswered
        | AgentRooted
        | AgentProgressed
        | AgentDiscovered
        | AgentListened,
        now: float,
    ) -> None:
        match event:
            case AgentGreeted():
                self.greetings.greet(session, event)
            case AgentPinged():
                self._out(Reply(session.id, event.id, is_error=False, body=EMPTY_OBJECT))
            case AgentListed():
                if event.by is not None:
                    self.greetings.met(session, event.by, settles=True)
                self.requests.lists.listed(session, event, now)
            case AgentDiscovered():
                self.greetings.met(session, event.by, settles=False)
                self.requests.lists.discovered(session, event, now)
            case AgentListened():
                self.greetings.met(session, event.by, settles=True)
                self.requests.listens.listened(session, event, now)
            case AgentCancelled():
                self.requests.cancelled(session, event, now)
            case AgentSetLevel():
                self.requests.watching.set_level(session, event)
            case AgentWatched():
                self.requests.watching.watched(event, now, patient=True)
            case AgentErred():
                self.requests.refuse(session, event.id, event.fault, event.detail)
            case AgentAnswered():
                self.asks.answered(session, event)
            case AgentRooted():
                if self.roots.answered(session, event):
                    self.requests.moved(now)
            case AgentProgressed():
                self.asks.progressed(session, event)
            case AgentUnread():
                self.ledger.has_read(session, event.unread_bytes, now)
            case AgentReady():
                self.roots.ready(session)
            case AgentRootsChanged():
                self.roots.changed(session)
            case SessionMoved():
                self._move(session, event, now)
            case AgentLeft():
                self.roots.forget(session)
                self.requests.forget(session)
                self.parked.forget(session)
                self.ledger.forget(session)
                self.ledger.fresh.forget_session(session.id)
                self.asks.forget(session)
                self._out(SessionGone(session.id))
                self.outlook.leave(session)
                del self.sessions[session.id]
                self.requests.watching.say_interests()
            case _:
                assert_never(event)

    # --- what an agent does ----------------------------------------------------------------------------

    def _move(self, session: Session, event: SessionMoved, now: float) -> None:
        """Its configuration comes from another source: nothing of it is lost, but it is served elsewhere."""
        session.rooting = False
        session.source = event.source
        if (session.asking or session.stateless) and not session.control:
            self.sources.enter(event.source, asking=session.asking, stateless=session.stateless)
        before = bereft.places(session)
        self._follow()
        self._effects += bereft.moved(session, before)
        self.roots.look(session)
        if session.served:
            self.outlook.discover(session, self.outlook.view(session))
        self._moved(now)

    # --- what the servers do ---------------------------------------------------------------------------

    def _pool_changed(self, event: PoolChanged, now: float) -> None:
        self.outlook.learn(event, now)
        self.ledger.fresh.forget(event.key)
        changed = self.registry.hide(event.key) if event.state in AWAY else self.registry.show(event.key)
        self._told(changed)
        self._moved(now, event.key)

    def _told(self, changes: Changes) -> None:
        """The views of these scopes are others now."""
        if changes:
            for session in self.sessions.values():
                self.hearing.tell(session, changes.get(session.scope, ()))

    def _moved(self, now: float, key: PoolKey | None = None) -> None:
        """Catalogs or pool states are others now (`key`'s): what waited for that may go on."""
        if self.sources.advance(key):
            self._follow()
        self.requests.moved(now)

    def _follow(self) -> None:
        """Other scopes are in force, or other pools wanted: sessions go along, the supervisor is told."""
        moved = self.outlook.follow(self.sessions.values())
        self._say_wanted()
        self._led(moved)

    def _look(self, session: Session) -> None:
        """Something has become known of this session that decides what it sees."""
        self._led(self.outlook.follow([session]))

    def _led(self, moved: list[tuple[Session, frozenset[Family]]]) -> None:
        for session, families in moved:
            self.hearing.tell(session, families)
            self.requests.followed(session)

    def _is_linked(self) -> bool:
        return self.ledger.credit_bytes is not None

    # --- views -----------------------------------------------------------------------------------------

    def view_of(self, session: SessionId) -> View:
        """What this session sees."""
        return self.outlook.view(self.sessions[session])

    def _discover_used(self) -> None:
        """A new supervisor knows nothing: ask for what sessions look at and for what shall be replaced."""
        looking = {(s.scope, s.rooting): s for s in self.sessions.values() if s.served}
        for session in looking.values():
            self.outlook.discover(session, self.outlook.view(session))
        for key in self.sources.to_discover():
            self._out(Discover(key))

    def _say_wanted(self) -> None:
        wanted = self.sources.wanted()
        self.ledger.learn_limits(wanted.pools)
        keys = {spec.key for spec in wanted.pools}
        for key in sorted(self._wanted - keys):
            self.states.pop(key, None)
            self.ledger.fresh.forget(key)
            self.outlook.retry_at.pop(key, None)
            self._told(self.registry.forget(key))
        self.outlook.slow &= keys
        self.requests.hints.keep(keys)
        self._wanted = keys
        if self.ledger.credit_bytes is not None:
            if wanted != self._said:
                self._said = wanted
                self._out(wanted)
            self.requests.watching.say_interests()
            for key in self.sources.to_discover():
                self._out(Discover(key))
