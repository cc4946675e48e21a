"""The broker's decisions, all of them, behind one door.

Composes sessions, the ledger (calls), requests (what agents ask), the outlook (views) and sources
(configurations in force): takes an event, returns the effects in order. Owns greetings, what is said to
the supervisor as wanted, and who is told that a list changed (rule 18). Pure: time comes in.

Invariants (`check`): those of its parts; every session's source is known.

Knows nothing of: how an era words requests and answers, sockets, processes.
"""

from collections.abc import Iterable
from typing import Final, assert_never

from carpool_broker.core.bounds import Bounds
from carpool_broker.core.effects import AnyEffect, Greet, Reply, SayListChanged, SayLog, SayUpdated
from carpool_broker.core.events import (
    AgentCalled,
    AgentCame,
    AgentCancelled,
    AgentErred,
    AgentGreeted,
    AgentLeft,
    AgentListed,
    AgentPinged,
    AgentSetLevel,
    AgentWatched,
    AnyEvent,
    LimitsRead,
    SourceDropped,
    SourceId,
    SourceRead,
    SupervisorCame,
    SupervisorWent,
)
from carpool_broker.core.ledger import Ledger
from carpool_broker.core.listing import FAMILIES, Family
from carpool_broker.core.outlook import FAILING, Outlook
from carpool_broker.core.registry import Changes, Registry
from carpool_broker.core.requests import Requests, notice_of
from carpool_broker.core.session import Session
from carpool_broker.core.view import View
from carpool_protocol.features import FEATURES
from carpool_protocol.ids import EMPTY_OBJECT, PoolKey, SessionId
from carpool_protocol.messages import (
    Answered,
    Catalog,
    Credit,
    Discover,
    Failed,
    Logged,
    PoolChanged,
    Progressed,
    Updated,
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
        self._wanted: set[PoolKey] = set()

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
        self.sources.check()
        self.requests.check()
        self.registry.check()
        for session in self.sessions.values():
            assert session.source in self.sources.sources

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
            case Credit():
                if self.ledger.credit_bytes is not None:
                    self.ledger.credit_bytes += event.size_bytes
                    self.ledger.pump_all(now)
            case Catalog() | PoolChanged() if event.key not in self._wanted:
                pass  # said before the supervisor heard that nobody wants this pool any more
            case Catalog():
                self.outlook.slow.discard(event.key)
                self._told(self.registry.learn(event))
                self._moved(now)
            case PoolChanged():
                self._pool_changed(event, now)
            case SourceRead():
                if self.sources.read(event):
                    self._told_source(event.source)
                self._say_wanted()
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
                self.sessions[event.session] = Session(
                    event.session, event.source, event.agent, event.pid, event.carrier
                )
            case SupervisorCame():
                self.states.clear()
                self.ledger.credit_bytes = event.credit_bytes
                self._out(self.sources.wanted())
                self.requests.interests.restart()
                self.requests.say_interests()
                self._discover_used()
                self.ledger.pump_all(now)
            case SupervisorWent():
                self.states.clear()
                self.outlook.slow.clear()
                self.ledger.supervisor_went()
            case _:
                session = self.sessions.get(event.session)
                if session is not None:
                    self._handle_agent(session, event, now)

    def _handle_agent(
        self,
        session: Session,
        event: AgentLeft
        | AgentGreeted
        | AgentPinged
        | AgentListed
        | AgentCancelled
        | AgentSetLevel
        | AgentWatched
        | AgentErred,
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
            case AgentLeft():
                self.requests.forget(session)
                self.ledger.forget(session)
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
        self.outlook.discover(self.outlook.view(session))
        announced = self.outlook.view(session).capabilities()
        features = tuple(feature for feature in FEATURES if feature in announced)
        self._out(Greet(session.id, event.id, session.version, self._instructions(session), features))

    def _updated(self, event: Updated) -> None:
        for session_id, spelled, exact in self.requests.interests.hearers(event.key, event.uri):
            uri = spelled if exact else self.view_of(session_id).outward_uri(event.key, event.uri)
            self._out(SayUpdated(session_id, uri, event.params))

    # --- what the servers do ---------------------------------------------------------------------------

    def _pool_changed(self, event: PoolChanged, now: float) -> None:
        self.states[event.key] = event
        changed = self.registry.hide(event.key) if event.state in AWAY else self.registry.show(event.key)
        self._told(changed)
        self._moved(now)

    def _told(self, changes: Changes) -> None:
        """The views of these scopes are others now."""
        if changes:
            for source_id, source in self.sources.sources.items():
                families = changes.get(source.in_force)
                if families:
                    self._told_source(source_id, families)

    def _told_source(self, source: SourceId, families: Iterable[Family] = FAMILIES) -> None:
        notices = {notice_of(family) for family in families}
        for session in self.sessions.values():
            if session.source == source:
                for notice in sorted(notices & session.listed):
                    session.listed.remove(notice)
                    self._out(SayListChanged(session.id, notice))

    def _moved(self, now: float) -> None:
        """Catalogs or pool states are others now: what waited for that may go on."""
        replaced = self.sources.advance()
        for source in replaced:
            self._told_source(source)
        if replaced:
            self._say_wanted()
        self.requests.moved(now)

    # --- views -----------------------------------------------------------------------------------------

    def view_of(self, session: SessionId) -> View:
        """What this session sees."""
        return self.outlook.view(self.sessions[session])

    def _discover_used(self) -> None:
        """A new supervisor knows nothing: ask for what sessions look at and for what shall be replaced."""
        for source in dict.fromkeys(session.source for session in self.sessions.values()):
            self.outlook.discover(self.registry.view(self.sources.scope(source)))
        for key in self.sources.to_discover():
            self._out(Discover(key))

    def _say_wanted(self) -> None:
        wanted = self.sources.wanted()
        self.ledger.learn_limits(wanted.pools)
        keys = {spec.key for spec in wanted.pools}
        for key in sorted(self._wanted - keys):
            self.states.pop(key, None)
            self._told(self.registry.forget(key))
        self._wanted = keys
        if self.ledger.credit_bytes is not None:
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
