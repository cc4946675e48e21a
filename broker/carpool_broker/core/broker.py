"""The broker's decisions, all of them, behind one door.

Composes sessions, the ledger (calls), the registry (views) and sources (configurations in force):
takes an event, returns the effects in order. Owns what a session may do when, which name means
which tool, and who is told that a list changed (rule 18). Pure: time comes in.

Invariants (`check`): those of its parts; every session's source is known; a list that waits, waits
for a pool that may still tell its catalog.

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
from carpool_broker.core.interests import LEVELS, Interests
from carpool_broker.core.ledger import Ledger
from carpool_broker.core.listing import FAMILIES, Family
from carpool_broker.core.outward import needed
from carpool_broker.core.registry import Changes, Registry
from carpool_broker.core.routing import NoTarget, Target, find
from carpool_broker.core.session import Notice, Owed, Session
from carpool_broker.core.sources import Sources
from carpool_broker.core.view import BadCursor, Route, View, ViewTool
from carpool_protocol.deadlines import Deadlines
from carpool_protocol.faults import TOOLS_CALL, fault, for_method
from carpool_protocol.features import FEATURES
from carpool_protocol.ids import EMPTY_OBJECT, CallId, PoolKey, RawJson, ServerName, SessionId
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
FAILING: Final = frozenset({"given_up", "stopped", "backing_off"})
"""States in which no list waits for a pool's catalog."""


class BrokerCore:
    """All decisions of the broker. See `carpool_protocol.machine.Machine`."""

    def __init__(self, registry: Registry, bounds: Bounds, list_wait_s: float) -> None:
        self._effects: list[AnyEffect] = []
        self.registry = registry
        self.list_wait_s = list_wait_s
        self.sessions: dict[SessionId, Session] = {}
        self.states: dict[PoolKey, PoolChanged] = {}
        self.sources = Sources(registry, self.states)
        self.ledger = Ledger(self.sessions, bounds, self._out)
        self.interests = Interests(lambda session: self.sources.scope(self.sessions[session].source))
        self.list_waits: Deadlines[tuple[SessionId, RawJson]] = Deadlines()
        self.name_waits: Deadlines[CallId] = Deadlines()
        self._nameless: dict[CallId, Owed] = {}
        self.watch_waits: Deadlines[tuple[SessionId, RawJson]] = Deadlines()
        self._early: dict[tuple[SessionId, RawJson], AgentWatched] = {}
        """Subscriptions to resources of a server that may not have told its catalog yet."""
        self._wanted: set[PoolKey] = set()
        self._slow: set[PoolKey] = set()
        """Pools that a list has once waited for in vain: the next one does not (rule 18)."""

    def handle(self, event: AnyEvent, now: float) -> list[AnyEffect]:
        """Take one event; return what is to be done, in order."""
        effects: list[AnyEffect] = []
        self._effects = effects
        # The two events of every call come first.
        if type(event) is Answered:
            self.ledger.answered(event, now)
        elif type(event) is AgentCalled:
            self._called(event, now)
        else:
            self._handle_rare(event, now)
        return effects

    def tick(self, now: float) -> list[AnyEffect]:
        """Time has passed."""
        effects: list[AnyEffect] = []
        self._effects = effects
        self.ledger.overdue(now)
        for session_id, request in self.list_waits.due(now):
            session = self.sessions[session_id]
            self._slow |= self._view(session).unknown
            self._answer_list(session, request, session.lists.pop(request))
        for who in self.watch_waits.due(now):
            self._watched(self._early.pop(who), now, patient=False)
        for call in self.name_waits.due(now):
            self._resolve(self._nameless.pop(call), now, patient=False)
        return effects

    def next_deadline(self) -> float | None:
        """When `tick` has something to do at the latest."""
        return min(
            (
                at
                for at in (
                    self.ledger.next_deadline(),
                    self.list_waits.next_deadline(),
                    self.name_waits.next_deadline(),
                    self.watch_waits.next_deadline(),
                )
                if at is not None
            ),
            default=None,
        )

    def check(self) -> None:
        """Assert every invariant of every part."""
        self.ledger.check()
        self.sources.check()
        self.interests.check(self.sessions)
        self.registry.check()
        for session in self.sessions.values():
            assert session.source in self.sources.sources
            for request in session.lists:
                assert (session.id, request) in self.list_waits
        unresolved = {call for call, owed in self.ledger.calls.items() if owed.stage == "unresolved"}
        assert unresolved == set(self._nameless)
        assert all(who in self.watch_waits and who[0] in self.sessions for who in self._early)
        assert all(call in self.name_waits for call in unresolved)

    def _out(self, effect: AnyEffect) -> None:
        self._effects.append(effect)

    def _handle_rare(self, event: AnyEvent, now: float) -> None:  # noqa: C901 - an arm per event
        match event:
            case AgentCalled():  # pragma: no cover - handled in `handle`
                self._called(event, now)
            case Answered():  # pragma: no cover - handled in `handle`
                self.ledger.answered(event, now)
            case Failed():
                self.ledger.failed(event, now)
            case Progressed():
                self.ledger.progressed(event)
            case Logged():
                if event.session in self.sessions and self.interests.wants_log(event.session, event.level):
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
                self._slow.discard(event.key)
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
                self.list_wait_s = event.list_wait_s
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
                self.interests.restart()
                self._say_interests()
                self._discover_used()
                self.ledger.pump_all(now)
            case SupervisorWent():
                self.states.clear()
                self._slow.clear()
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
                self._listed(session, event, now)
            case AgentCancelled():
                self._cancelled(session, event, now)
            case AgentSetLevel():
                self._set_level(session, event)
            case AgentWatched():
                self._watched(event, now, patient=True)
            case AgentErred():
                self._refuse(session, event.id, event.fault, event.detail)
            case AgentLeft():
                for request in session.lists:
                    self.list_waits.disarm((session.id, request))
                for owed in session.owed.values():
                    self._resolved(owed)
                self.ledger.forget(session)
                self.interests.forget(session.id)
                for who in [who for who in self._early if who[0] == session.id]:
                    self._forget_early(who)
                del self.sessions[session.id]
                self._say_interests()
            case _:
                assert_never(event)

    # --- what an agent does ----------------------------------------------------------------------------

    def _greet(self, session: Session, event: AgentGreeted) -> None:
        if session.greeted:
            self._refuse(session, event.id, "bad_params", "This session has been initialized before.")
            return
        session.greeted = True
        session.version = event.version if event.version in VERSIONS else VERSIONS[0]
        session.agent = event.agent or session.agent
        self._discover(self._view(session))
        announced = self._view(session).capabilities()
        features = tuple(feature for feature in FEATURES if feature in announced)
        self._out(Greet(session.id, event.id, session.version, self._instructions(session), features))

    def _listed(self, session: Session, event: AgentListed, now: float) -> None:
        if not session.greeted:
            self._refuse(session, event.id, "not_initialized", "")
            return
        if event.id in session.lists or event.id in session.owed:
            self._refuse(session, event.id, "duplicate_request_id", "")
            return
        view = self._view(session)
        if event.cursor is None and self._unsettled(view):
            self._discover(view)
            session.lists[event.id] = event.family
            self.list_waits.arm((session.id, event.id), now, self.list_wait_s)
            return
        self._answer_list(session, event.id, event.family, event.cursor)

    def _answer_list(
        self, session: Session, request: RawJson, family: Family, cursor: str | None = None
    ) -> None:
        page = self._view(session).page(family, cursor, session.version)
        if isinstance(page, BadCursor):
            self._refuse(session, request, "bad_cursor", "")
            return
        session.listed.add(_notice(family))
        self._out(Reply(session.id, request, is_error=False, body=page.body))

    def _called(self, event: AgentCalled, now: float) -> None:
        session = self.sessions.get(event.session)
        if session is None:
            return
        if not session.greeted:
            self._refuse(session, event.id, "not_initialized", "")
            return
        if event.id in session.owed or event.id in session.lists:
            self._refuse(session, event.id, "duplicate_request_id", "")
            return
        owed = self.ledger.open(lambda call: Owed(call, session, event))
        self._resolve(owed, now, patient=True)

    def _resolve(self, owed: Owed, now: float, *, patient: bool) -> None:
        """Find the server that is meant. `patient`: a catalog that is on its way may still tell."""
        view = self._view(owed.session)
        asked = owed.asked
        if asked.method == TOOLS_CALL:  # most are, and most names are qualified: one look is all it takes
            tool = view.resolve(asked.name)
            if type(tool) is ViewTool:
                owed.server, owed.target, owed.key = tool.server, tool.tool, tool.key
                self._enter(owed, view, now)
                return
        found = find(view, asked.method, asked.name)
        if isinstance(found, Target) and (found.final or not patient or not self._unsettled(view)):
            owed.server, owed.target, owed.key = found.server, found.subject, found.key
            self._enter(owed, view, now)
            return
        suspects = found.suspects if isinstance(found, NoTarget) else tuple(sorted(view.unknown))
        if patient and any(not self.is_settled(key) for key in suspects):
            if owed.call not in self.name_waits:
                self._discover(view)
                self._nameless[owed.call] = owed
                self.name_waits.arm(owed.call, now, self.list_wait_s)
            return
        assert isinstance(found, NoTarget), "a place that is good enough was passed over"
        self._resolved(owed)
        self._fail_unresolved(owed, view, found)

    def _enter(self, owed: Owed, view: View, now: float) -> None:
        """It is known where the request goes."""
        if self._nameless:
            self._resolved(owed)
        owed.edit = needed(view, owed.key, owed.session.version)
        away = self.states.get(owed.key) if owed.key in view.away else None
        if away is not None:
            self.ledger.fail(owed, away.state, away.reason, away.retry_after_s)
        else:
            self.ledger.admit(owed, now)

    def _fail_unresolved(self, owed: Owed, view: View, found: NoTarget) -> None:
        """Nobody has it; or whoever may have it is failing: then that is the reason."""
        for key in found.suspects:
            state = self.states.get(key)
            if state is not None and state.state in FAILING:
                owed.server = next(entry.server for entry in view.scope.servers if entry.key == key)
                self.ledger.fail(owed, state.state, state.reason, state.retry_after_s)
                return
        owed.server, owed.target = ServerName(found.server), found.subject
        detail = found.detail
        for server, why in self.sources.misconfigured(owed.session.source).items():
            if owed.asked.name.startswith(server):
                detail = f"The server {server} is misconfigured: {why}."
        self.ledger.fail(owed, found.fault, detail)

    def _resolved(self, owed: Owed) -> None:
        """Its name no longer waits for a catalog."""
        self._nameless.pop(owed.call, None)
        self.name_waits.disarm(owed.call)

    def _cancelled(self, session: Session, event: AgentCancelled, now: float) -> None:
        owed = session.owed.get(event.id)
        if owed is not None:
            self._resolved(owed)
            self.ledger.cancel(session, event.id, event.reason, now)
        elif event.id in session.lists:
            del session.lists[event.id]
            self.list_waits.disarm((session.id, event.id))
        else:
            self._forget_early((session.id, event.id))

    def _set_level(self, session: Session, event: AgentSetLevel) -> None:
        if not session.greeted:
            self._refuse(session, event.id, "not_initialized", "")
        elif not self.interests.set_level(session.id, event.level):
            self._refuse(session, event.id, "bad_params", f"A level is one of {', '.join(LEVELS)}.")
        else:
            self._out(Reply(session.id, event.id, is_error=False, body=EMPTY_OBJECT))
            self._say_interests()

    def _watched(self, event: AgentWatched, now: float, *, patient: bool) -> None:
        """A subscription, or its end. It is answered here and kept up whatever instance serves."""
        session = self.sessions[event.session]
        if not session.greeted:
            self._refuse(session, event.id, "not_initialized", "")
            return
        view = self._view(session)
        route = view.route(event.uri)
        final = isinstance(route, Route) and route.by in ("listed", "named")
        who = (session.id, event.id)
        if patient and not final and self._unsettled(view):
            if who not in self._early:
                self._discover(view)
                self._early[who] = event
                self.watch_waits.arm(who, now, self.list_wait_s)
            return
        self._forget_early(who)
        if not isinstance(route, Route):
            self._refuse(session, event.id, "unknown_resource", "")
            return
        catalog = self.registry.catalog(route.key)
        if catalog is not None and "resources.subscribe" not in catalog.features:
            self._refuse(session, event.id, "unknown_method", f"{route.server} knows no subscriptions.")
            return
        if event.on:
            self.interests.subscribe(session.id, route.server, route.uri, event.uri)
        else:
            self.interests.unsubscribe(session.id, route.server, route.uri)
        self._out(Reply(session.id, event.id, is_error=False, body=EMPTY_OBJECT))
        self._say_interests()

    def _forget_early(self, who: tuple[SessionId, RawJson]) -> None:
        self._early.pop(who, None)
        self.watch_waits.disarm(who)

    def _updated(self, event: Updated) -> None:
        for session_id, spelled, exact in self.interests.hearers(event.key, event.uri):
            uri = spelled if exact else self.view_of(session_id).outward_uri(event.key, event.uri)
            self._out(SayUpdated(session_id, uri, event.params))

    def _say_interests(self) -> None:
        """Tell the supervisor what it does not know yet of levels and subscriptions."""
        if self.ledger.credit_bytes is not None:
            for news in self.interests.news():
                self._out(news)

    def _refuse(self, session: Session, request: RawJson, slug: str, detail: str) -> None:
        is_error, body = for_method(fault(slug, detail=detail), "")
        self._out(Reply(session.id, request, is_error, body))

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
        notices = {_notice(family) for family in families}
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
        if self.list_waits:
            for session in self.sessions.values():
                if session.lists and not self._unsettled(self._view(session)):
                    for request in list(session.lists):
                        self.list_waits.disarm((session.id, request))
                        self._answer_list(session, request, session.lists.pop(request))
        for owed in list(self._nameless.values()):
            self._resolve(owed, now, patient=True)
        for early in list(self._early.values()):
            self._watched(early, now, patient=True)

    # --- views -----------------------------------------------------------------------------------------

    def _view(self, session: Session) -> View:
        return self.registry.view(self.sources.scope(session.source))

    def view_of(self, session: SessionId) -> View:
        """What this session sees."""
        return self._view(self.sessions[session])

    def is_settled(self, key: PoolKey) -> bool:
        """Whether waiting for this pool's catalog is pointless."""
        state = self.states.get(key)
        return state is not None and state.state in FAILING

    def _unsettled(self, view: View) -> bool:
        return any(not self.is_settled(key) and key not in self._slow for key in view.unknown)

    def _discover(self, view: View) -> None:
        for key in sorted(view.unknown):
            if not self.is_settled(key):
                self._out(Discover(key))

    def _discover_used(self) -> None:
        """A new supervisor knows nothing: ask for what sessions look at and for what shall be replaced."""
        for source in dict.fromkeys(session.source for session in self.sessions.values()):
            self._discover(self.registry.view(self.sources.scope(source)))
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
            self._say_interests()
            for key in self.sources.to_discover():
                self._out(Discover(key))

    def _instructions(self, session: Session) -> str:
        """What servers say of themselves, and which are missing (rule 18)."""
        view = self._view(session)
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


def _notice(family: Family) -> Notice:
    return "resources" if family == "templates" else family
