"""The broker's decisions, all of them, behind one door.

Composes sessions, the ledger (calls), requests (what agents ask), asks (what agents are asked), the outlook
(views) and sources (configurations in force): takes an event, returns the effects in order. Owns greetings,
what is said to the supervisor as wanted, and who is told that a list changed (rule 18). Pure: time comes in.

Invariants (`check`): those of its parts; every session's source is known.

Knows nothing of: how an era words requests and answers, sockets, processes.
"""

from collections.abc import Iterable
from typing import Final, assert_never

from carpool_broker.core.asks import Asks
from carpool_broker.core.bounds import Bounds
from carpool_broker.core.effects import AnyEffect, Greet, Reply, SayListChanged, SayLog, SayUpdated
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
    AgentWatched,
    AnyEvent,
    LimitsRead,
    SessionMoved,
    SourceDropped,
    SourceRead,
    SupervisorCame,
    SupervisorWent,
)
from carpool_broker.core.ledger import Ledger
from carpool_broker.core.listing import Family
from carpool_broker.core.outlook import FAILING, Outlook
from carpool_broker.core.registry import Changes, Registry
from carpool_broker.core.requests import Requests, notice_of
from carpool_broker.core.roots import Roots
from carpool_broker.core.session import Session
from carpool_broker.core.view import View
from carpool_protocol.features import FEATURES
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
    SessionNote,
    SessionRekeyed,
    Sessions,
    Updated,
    Wanted,
)

VERSIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Versions of the handshake era, the newest first: what we answer to a version that we do not know."""

AWAY: Final = frozenset({"given_up", "stopped"})
"""States in which a server leaves every list."""


class BrokerCore:
    """All decisions of the broker. See `carpool_protocol.machine.Machine`."""

    def __init__(self, registry: Registry, bounds: Bounds, list_wait_s: float) -> None:
        self._effects: list[AnyEffect] = []
        self.registry = registry
        self.sessions: dict[SessionId, Session] = {}
        self.outlook = Outlook(registry, self._out)
        self.states = self.outlook.states
        self.sources = self.outlook.sources
        self.ledger = Ledger(self.sessions, bounds, self._out)
        self.requests = Requests(self.sessions, registry, self.outlook, self.ledger, self._out)
        self.requests.list_wait_s = list_wait_s
        self.asks = Asks(self.sessions, self.ledger, self._out)
        self.roots = Roots(self.sessions, self.sources, self._out)
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
        return effects

    def next_deadline(self) -> float | None:
        """When `tick` has something to do at the latest."""
        calls, requests = self.ledger.next_deadline(), self.requests.next_deadline()
        if calls is None or requests is None:
            return requests if calls is None else calls
        return min(calls, requests)

    def check(self) -> None:
        """Assert every invariant of every part."""
        self.ledger.check()
        self.asks.check()
        self.roots.check()
        self.outlook.check(self.sessions.values())
        self.requests.check()
        self.registry.check()

    def _out(self, effect: AnyEffect) -> None:
        self._effects.append(effect)

    def _handle_rare(self, event: AnyEvent, now: float) -> None:  # noqa: C901 - an arm per event
        match event:
            case AgentCalled():  # pragma: no cover - handled in `handle`
                self.requests.called(event, now)
            case Answered():  # pragma: no cover - handled in `handle`
                self.ledger.answered(event, now)
            case Failed():
                self.ledger.failed(event, now)
            case Progressed():
                self.ledger.progressed(event)
            case Logged():
                wants_log = self.requests.interests.wants_log
                if event.session in self.sessions and wants_log(event.session, event.level):
                    self._out(SayLog(event.session, event.params))
            case Updated():
                self._updated(event)
            case Asked():
                self.asks.asked(event)
            case AskWithdrawn():
                self.asks.withdrawn(event)
            case Elicited():
                self.asks.elicited(event)
            case Credit():
                if self.ledger.credit_bytes is not None:
                    self.ledger.credit_bytes += event.size_bytes
                    self.ledger.pump_all(now)
            case Catalog() | PoolChanged() if event.key not in self._wanted:
                pass  # said before the supervisor heard that nobody wants this pool any more
            case Catalog():
                self.outlook.slow.discard(event.key)
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
                came.asking = event.control
                self.sessions[event.session] = came
                self.outlook.enter(came)
            case SupervisorCame():
                self.states.clear()
                self.ledger.credit_bytes = event.credit_bytes
                self._said = self.sources.wanted()
                self._out(self._said)
                self._say_sessions()
                self.requests.interests.restart()
                self.requests.say_interests()
                self._discover_used()
                self.ledger.pump_all(now)
            case SupervisorWent():
                self.asks.supervisor_went()
                self.ledger.supervisor_went()
                self._note_bereft()
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
                self._greet(session, event)
            case AgentPinged():
                self._out(Reply(session.id, event.id, is_error=False, body=EMPTY_OBJECT))
            case AgentListed():
                self.requests.listed(session, event, now)
            case AgentCancelled():
                self.requests.cancelled(session, event, now)
            case AgentSetLevel():
                self.requests.set_level(session, event)
            case AgentWatched():
                self.requests.watched(event, now, patient=True)
            case AgentErred():
                self.requests.refuse(session, event.id, event.fault, event.detail)
            case AgentAnswered():
                self.asks.answered(session, event)
            case AgentRooted():
                if self.roots.answered(session, event):
                    self.requests.moved(now)
            case AgentProgressed():
                self.asks.progressed(session, event)
            case AgentReady():
                self.roots.ready(session)
            case AgentRootsChanged():
                self.roots.changed(session)
            case AgentDiscovered() | AgentListened():
                pass  # nobody says these yet
            case SessionMoved():
                self._move(session, event, now)
            case AgentLeft():
                self.roots.forget(session)
                self.requests.forget(session)
                self.ledger.forget(session)
                self.asks.forget(session)
                self._out(SessionGone(session.id))
                self.outlook.leave(session)
                del self.sessions[session.id]
                self.requests.say_interests()
            case _:
                assert_never(event)

    # --- what an agent does ----------------------------------------------------------------------------

    def _greet(self, session: Session, event: AgentGreeted) -> None:
        if session.greeted:
            self.requests.refuse(session, event.id, "bad_params", "This session has been initialized before.")
            return
        session.greeted = True
        session.version = event.version if event.version in VERSIONS else VERSIONS[0]
        session.agent = event.agent or session.agent
        session.capabilities = event.capabilities
        self._classify(session)
        self.roots.greeted(session)
        self.outlook.discover(session, self.outlook.view(session))
        announced = self.outlook.view(session).capabilities()
        features = tuple(feature for feature in FEATURES if feature in announced)
        self._out(Greet(session.id, event.id, session.version, self._instructions(session), features))

    def _classify(self, session: Session) -> None:
        """An agent that can be asked sees the servers that were greeted for such agents (rule 12)."""
        if session.capabilities.asking:
            session.asking = True
            if self.sources.ask(session.source):
                self._follow()
            else:
                self.outlook.follow([session])

    def _move(self, session: Session, event: SessionMoved, now: float) -> None:
        """Its configuration comes from another source: nothing of it is lost, but it is served elsewhere."""
        session.rooting = False
        session.source = event.source
        if session.capabilities.asking:
            self.sources.ask(event.source)
        old = {entry.server: entry.key for entry in session.scope.servers}
        self._follow()
        for entry in session.scope.servers:
            if entry.server in session.used and old.get(entry.server, entry.key) != entry.key:
                self._out(SessionRekeyed(session.id, old[entry.server], entry.key))
        self.roots.look(session)
        if session.greeted:
            self.outlook.discover(session, self.outlook.view(session))
        self._moved(now)

    def _updated(self, event: Updated) -> None:
        for session_id, spelled, exact in self.requests.interests.hearers(event.key, event.uri):
            uri = spelled if exact else self.view_of(session_id).outward_uri(event.key, event.uri)
            self._out(SayUpdated(session_id, uri, event.params))

    # --- what the servers do ---------------------------------------------------------------------------

    def _pool_changed(self, event: PoolChanged, now: float) -> None:
        self.states[event.key] = event
        changed = self.registry.hide(event.key) if event.state in AWAY else self.registry.show(event.key)
        self._told(changed)
        self._moved(now, event.key)

    def _told(self, changes: Changes) -> None:
        """The views of these scopes are others now."""
        if changes:
            for session in self.sessions.values():
                self._tell(session, changes.get(session.scope, ()))

    def _tell(self, session: Session, families: Iterable[Family]) -> None:
        """Whoever holds an old list is told, once."""
        notices = {notice_of(family) for family in families}
        for notice in sorted(notices & session.listed):
            session.listed.remove(notice)
            self._out(SayListChanged(session.id, notice))

    def _moved(self, now: float, key: PoolKey | None = None) -> None:
        """Catalogs or pool states are others now (`key`'s): what waited for that may go on."""
        if self.sources.advance(key):
            self._follow()
        self.requests.moved(now)

    def _follow(self) -> None:
        """Other scopes are in force, or other pools wanted: sessions go along, the supervisor is told."""
        moved = self.outlook.follow(self.sessions.values())
        self._say_wanted()
        for session, families in moved:
            self._tell(session, families)
            self.requests.followed(session)

    # --- views -----------------------------------------------------------------------------------------

    def view_of(self, session: SessionId) -> View:
        """What this session sees."""
        return self.outlook.view(self.sessions[session])

    def _note_bereft(self) -> None:
        """Who has called a server in mode `session` may have had state there."""
        for session in self.sessions.values():
            for entry in self.view_of(session.id).scope.servers if session.called else ():
                state = self.states.get(entry.key)
                if entry.server in session.called and state is not None and state.mode == "session":
                    session.bereft.add(entry.key)
            session.called.clear()

    def _say_sessions(self) -> None:
        """Who is there: some may have left, and some have lost what they had, while no supervisor was."""
        if self.sessions:
            notes = [SessionNote(each.id, sorted(each.bereft)) for each in self.sessions.values()]
            self._out(Sessions(notes))
        for each in self.sessions.values():
            each.bereft.clear()

    def _discover_used(self) -> None:
        """A new supervisor knows nothing: ask for what sessions look at and for what shall be replaced."""
        looking = {(s.scope, s.rooting): s for s in self.sessions.values() if s.greeted}
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
            self._told(self.registry.forget(key))
        self.outlook.slow &= keys
        self._wanted = keys
        if self.ledger.credit_bytes is not None:
            if wanted != self._said:
                self._said = wanted
                self._out(wanted)
            self.requests.say_interests()
            for key in self.sources.to_discover():
                self._out(Discover(key))

    def _instructions(self, session: Session) -> str:
        """What servers say of themselves, and which are missing (rule 18)."""
        view = self.outlook.view(session)
        parts = [view.instructions] if view.instructions else []
        missing = [
            f"{entry.server} ({self.states[entry.key].state.replace('_', ' ')})"
            for entry in view.scope.servers
            if entry.key in self.states and self.states[entry.key].state in FAILING
        ]
        missing += [f"{server} (misconfigured)" for server in self.sources.misconfigured(session.source)]
        if missing:
            parts.append(f"Not available now: {', '.join(missing)}. The user can run `carpool status`.")
        return "\n\n".join(parts)
