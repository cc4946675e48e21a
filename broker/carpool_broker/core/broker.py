"""The broker's decisions, all of them, behind one door.

Composes sessions, the ledger (calls), requests (what agents ask), asks (what agents are asked), the outlook
(views), following (what comes of other catalogs and configurations), greetings, parked calls, hooks, sources
(configurations in force), the link and recovery (what was a dead broker's): takes an event, returns the
effects in order. Pure: time comes in.

Invariants (`check`): those of its parts; every session's source is known.

Knows nothing of: how an era words requests and answers, sockets, processes.
"""

from collections.abc import Iterable
from typing import Any, assert_never

from msgspec import Struct

from carpool_broker.core import invariants
from carpool_broker.core.calls import lost_state
from carpool_broker.core.calls.audit import Trail
from carpool_broker.core.calls.call_table import Ledger
from carpool_broker.core.calls.input_required import Parked
from carpool_broker.core.calls.server_requests import Asks
from carpool_broker.core.configuration.session_views import Outlook
from carpool_broker.core.hooks.hook_points import Hooks
from carpool_broker.core.model.bounds import Bounds
from carpool_broker.core.model.effects import AnyEffect, Reply
from carpool_broker.core.model.events import (
    AgentAnswered,
    AgentCalled,
    AgentCame,
    AgentCancelled,
    AgentCarried,
    AgentDiscovered,
    AgentErred,
    AgentEvent,
    AgentGranted,
    AgentGreeted,
    AgentLeft,
    AgentListed,
    AgentListened,
    AgentPinged,
    AgentProgressed,
    AgentReady,
    AgentResumed,
    AgentRooted,
    AgentRootsChanged,
    AgentSetLevel,
    AgentUnread,
    AgentWatched,
    AnyEvent,
    DrainMeant,
    EndMeant,
    HookAnswered,
    HooksRead,
    LimitsRead,
    PinsApproved,
    SessionMoved,
    SourceDropped,
    SourceRead,
    SourcesRead,
    SupervisorCame,
    SupervisorWent,
)
from carpool_broker.core.model.session import Session
from carpool_broker.core.model.timer_kinds import ORDER, BrokerTimers, TimerKind
from carpool_broker.core.recovery.recovery import Recovery
from carpool_broker.core.recovery.supervisor_record import Record
from carpool_broker.core.recovery.supervisor_sync import Linking
from carpool_broker.core.registry.catalog_queue import CatalogQueue
from carpool_broker.core.registry.registry import Registry
from carpool_broker.core.registry.view import View
from carpool_broker.core.requests.dispatch import Requests
from carpool_broker.core.requests.drain import Draining
from carpool_broker.core.requests.initialize import Greetings
from carpool_broker.core.requests.notifications import Hearing
from carpool_broker.core.requests.roots import Roots
from carpool_broker.core.requests.stateless_course import Course
from carpool_broker.core.updates import Following
from carpool_protocol.ids import EMPTY_OBJECT, SessionId
from carpool_protocol.link.messages import (
    Answered,
    Asked,
    AskWithdrawn,
    Catalog,
    Credit,
    Elicited,
    Failed,
    Logged,
    PoolChanged,
    Progressed,
    Recorded,
    TaskTold,
    Updated,
)
from carpool_protocol.machine.timers import Timers


class BrokerCore:
    """All decisions of the broker. See `carpool_protocol.machine.machine.Machine`."""

    def __init__(
        self,
        registry: Registry,
        bounds: Bounds,
        list_wait_s: float,
        *,
        secret: bytes = b"",
        life: int = 0,
        audits: bool = False,
    ) -> None:
        """`secret`: nobody outside knows it; without one no call of the stateless era can be parked. `life`:
        how many brokers there were before this one, with the same secret. `audits`: see `LimitsRead`.
        """
        self._effects: list[AnyEffect] = []
        self.timers: BrokerTimers = Timers(ORDER)
        self._trail: Trail | None = None
        self.registry = registry
        registry.pins.out = self._out
        self.sessions: dict[SessionId, Session] = {}
        self.outlook = Outlook(registry, self._out)
        self.states = self.outlook.states
        self.sources = self.outlook.sources
        self.ledger = Ledger(self.sessions, bounds, self._out, self.timers, life)
        self.admission = self.ledger.admission
        self.ledger.states = self.states
        self.parked = Parked(self.sessions, self.ledger, self._out, secret, self.timers)
        self.requests = Requests(
            self.sessions, registry, self.outlook, self.ledger, self._out,
            parked=self.parked, timers=self.timers, secret=secret, life=life, list_wait_s=list_wait_s,
        )  # fmt: skip
        self.interests = self.requests.interests
        self.hearing = Hearing(self.sessions, self.outlook, self.ledger, self.requests, self._out)
        record = Record(self._out, self.timers)
        self.asks = Asks(
            self.sessions, self.ledger, self.parked, self._out, self.timers, returning=record.holds
        )
        self.roots = Roots(self.sessions, self.sources, self._out)
        self.recovery = Recovery(
            self.sessions, self.ledger, self.requests, self.parked, self.asks.before,
            record=record, out=self._out, timers=self.timers, life=life,
        )  # fmt: skip
        queue = CatalogQueue(registry, self.timers)
        self.linking = Linking(
            self.sessions, registry, self.outlook, self.ledger, self.requests,
            recovery=self.recovery, hearing=self.hearing, queue=queue, out=self._out,
        )  # fmt: skip
        self.following = Following(
            self.sessions, registry, self.outlook, self.ledger, self.requests,
            hearing=self.hearing, roots=self.roots, recovery=self.recovery, linking=self.linking,
            queue=queue, out=self._out,
        )  # fmt: skip
        self.greetings = Greetings(self.outlook, self.roots, self._out, self.following.classed)
        self.ledger.aftermath = Course(
            registry, self.interests, self.parked, self.linking.is_heard, self._out,
            tasks=self.requests.tasks,
        )  # fmt: skip
        self.draining = Draining(self.ledger, self.requests, self._out, self.timers)
        second_look = self.requests.second_look
        self.hooks = Hooks(
            self.ledger, self._out, self.timers, may_leave=second_look.may_leave, strays=second_look.strays
        )
        self.audit(audits)

    def handle(self, event: AnyEvent, now: float) -> list[AnyEffect]:
        """Take one event; return what is to be done, in order."""
        effects: list[AnyEffect] = []
        self._effects = effects
        if self._trail is not None:
            self._trail.now = now
        # The two events of every call come first.
        if type(event) is Answered:
            self.ledger.answered(event, now)
        elif type(event) is AgentCalled:
            if event.by is not None and (session := self.sessions.get(event.session)) is not None:
                self.greetings.met(session, event.by, settles=True)
            if not self.requests.called(event, now):
                self.recovery.retried(self.sessions[event.session], event, now)
            if self.recovery.has_kept:  # the first call of an agent may make a pool wanted
                self._take_kept(now)
        else:
            self._handle_rare(event, now)
        if self.interests.is_stale or self.hearing.changed or self.hooks.pending or self.admission.draining:
            self._say_what_follows(now)
        return effects

    def tick(self, now: float) -> list[AnyEffect]:
        """Time has passed."""
        effects: list[AnyEffect] = []
        self._effects = effects
        if self._trail is not None:
            self._trail.now = now
        for kind, keys in self.timers.due(now):
            self._time_out(kind, keys, now)
        self._say_what_follows(now)
        return effects

    def _say_what_follows(self, now: float) -> None:
        """Send what goes out once per event or tick: subscriptions, changed lists, hook runs, drain."""
        if self.interests.is_stale:
            self.linking.say_interests()
        if self.hearing.changed:
            self.hearing.say_changed()
        if self.hooks.pending:
            self.hooks.tell(now)
        if self.admission.draining:
            self.draining.look()

    def _time_out(self, kind: TimerKind, keys: list[Any], now: float) -> None:  # noqa: C901 - an arm per kind
        match kind:
            case "queued_call":
                self.ledger.end_queued(keys, now)
            case "sent_call":
                self.ledger.end_sent(keys, now)
            case "task":
                self.requests.tasks.expire(keys)
            case "deferred_request":
                self.requests.time_out(keys, now)
            case "gathered_round":
                self.parked.require_gathered(keys, now)
            case "parked_call":
                self.parked.end_parked(keys, now)
            case "recorded_call":
                self.recovery.record.end_parked(keys)
            case "earlier_asks":
                for session in keys:
                    self.asks.before.over(session)
            case "returning_session":
                self.recovery.end_returning(keys)
            case "return_window":
                self.recovery.close_windows(keys)
            case "hook_run":
                self.hooks.end_runs(keys, now)
            case "catalog_slice":
                self.following.learn_slice(now)
                self._take_kept(now)
            case "drain":
                self.draining.end()
            case _:
                assert_never(kind)

    def next_deadline(self) -> float | None:
        """When `tick` has something to do at the latest."""
        return self.timers.next_deadline()

    def check(self) -> None:
        """Assert every invariant of every part."""
        invariants.check(self.ledger, self.sessions, self.timers)
        self.timers.check()
        self.asks.check()
        self.parked.check()
        self.recovery.check()
        self.roots.check()
        self.outlook.check(self.sessions.values())
        self.requests.check()
        self.hooks.check()
        self.registry.check()

    def check_touched(self, event: Struct, effects: Iterable[Struct]) -> None:
        """Assert what must hold of the records that these name."""
        invariants.check_touched(self.ledger, self.sessions, self.timers, (event, *effects))

    def view_of(self, session: SessionId) -> View:
        """What this session sees."""
        return self.outlook.view(self.sessions[session])

    def audit(self, on: bool) -> None:
        """Whether each call that ends is put down."""
        if on != (self.ledger.trail is not None):
            self._trail = Trail(self._out, self.ledger.before) if on else None
            self.ledger.trail = self.recovery.record.trail = self._trail

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
            case Recorded():
                self.linking.heard(event, now)
            case Credit():
                if self.admission.credit_bytes is not None:
                    self.admission.credit_bytes += event.size_bytes
                    self.admission.pump_all(now)
            case Catalog() | PoolChanged() if event.key not in self.linking.wanted:
                self.recovery.keep(event)  # said before the supervisor heard that nobody wants this any more
            case Catalog():
                self.following.catalog(event, now)
            case PoolChanged():
                self.following.pool_changed(event, now)
            case SourceRead():
                self.following.read((event,), now)
            case SourcesRead():
                self.following.read(event.readings, now)
            case SourceDropped():
                self.following.source_dropped(event)
            case PinsApproved():
                self.following.approved(event, now)
            case LimitsRead():
                self.ledger.bounds = event.bounds
                self.audit(event.audits)
                self.admission.quotas.limit(event.bounds.profiles)
                self.requests.list_wait_s = event.list_wait_s
                for each in self.sessions.values():
                    self.admission.pump(each, now)
            case HooksRead():
                self.hooks.read(event.rules)
            case HookAnswered():
                self.hooks.answered(event, now)
            case AgentCame():
                came = Session(event.session, event.source, event.agent, event.pid, event.carrier)
                came.asking = came.control = event.control
                came.shared = came.stateless = event.shared
                came.keeps, came.fleeting = event.keeps, event.fleeting
                came.wanders = event.wanders
                came.anonymous, came.max_open_calls = event.anonymous, event.max_open_calls
                came.profile, came.principal = event.profile, event.principal
                self.sessions[event.session] = came
                self.admission.quotas.enter(came, self.ledger.bounds.profiles, now)
                self.outlook.enter(came)
                if event.shared and self.sources.enter(event.source, asking=came.asking, stateless=True):
                    self.following.follow()
            case SupervisorCame():
                self.linking.came(event)
            case EndMeant():
                self.requests.end(again=event.again)
            case DrainMeant():
                self.draining.begin(now)
            case SupervisorWent():
                self.following.finish(now)
                was_heard = self.recovery.heard
                self.linking.went()
                self.asks.supervisor_went()
                self.ledger.supervisor_went()
                self.requests.listens.supervisor_went()
                self.requests.tasks.supervisor_went()
                if was_heard:  # else all is as the one before has left it
                    lost_state.part(self.sessions.values(), self.states)
                self.states.clear()
                self.outlook.slow.clear()
            case _:
                session = self.sessions.get(event.session)
                if session is not None:
                    self._handle_agent(session, event, now)
        self._take_kept(now)

    def _take_kept(self, now: float) -> None:
        for kept in self.recovery.kept(self.linking.wanted):
            self._handle_rare(kept, now)

    def _handle_agent(  # noqa: C901 - an arm per event
        self,
        session: Session,
        event: AgentEvent,
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
                self.requests.asked(session, event, now)
            case AgentDiscovered():
                self.greetings.met(session, event.by, settles=False)
                self.requests.asked(session, event, now)
            case AgentGranted():
                self.requests.listens.granted(session, event)
            case AgentListened():
                self.greetings.met(session, event.by, settles=True)
                self.requests.asked(session, event, now)
            case AgentCancelled():
                self.requests.cancelled(session, event, now)
            case AgentSetLevel():
                self.requests.watching.set_level(session, event)
            case AgentWatched():
                self.requests.asked(session, event, now)
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
                self.following.move(session, event, now)
            case AgentResumed():
                for call in event.calls:
                    if call.by is not None:
                        self.greetings.met(session, call.by, settles=True)
                self.recovery.resumed(session, event, now)
            case AgentCarried():
                session.pid = event.pid
            case AgentLeft():
                self.roots.forget(session)
                self.requests.forget(session)
                self.parked.forget(session)
                self.ledger.forget(session)
                self.admission.quotas.leave(session)
                self.admission.pump(session, now)
                self.ledger.fresh.forget_session(session.id)
                self.asks.forget(session)
                self.recovery.forget(session)
                self.linking.forget(session.id)
                self.outlook.leave(session)
                del self.sessions[session.id]
                self.recovery.look()
            case AgentCalled():  # pragma: no cover
                pass  # handled in `handle`
            case _:
                assert_never(event)
