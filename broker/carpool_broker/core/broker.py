"""The broker core: all decisions of the broker, behind one interface.

Composes the parts, gives each event to the parts that it concerns, and returns the effects in order. The
parts: open calls (`calls`), the requests of agents (`requests`), what sessions see (`configuration`,
`registry`), what follows when that changes (`updates`), hooks, limits, subscriptions, and the link to the
supervisor with what an earlier broker left (`recovery`). Pure: time is a parameter.

Invariants (`check`): those of its parts; the source of every session is known. Refuses to know: how an era
words requests and answers, sockets, processes.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, assert_never

from msgspec import Struct

from carpool_broker.core import invariants
from carpool_broker.core.calls import lost_state
from carpool_broker.core.calls.audit import AuditTrail
from carpool_broker.core.calls.call_counting import CallCounting
from carpool_broker.core.calls.call_table import CallTable
from carpool_broker.core.calls.call_tracing import CallTracing
from carpool_broker.core.calls.input_required import ParkedCalls
from carpool_broker.core.calls.server_requests import AgentAsks
from carpool_broker.core.configuration.session_views import SessionViews
from carpool_broker.core.configuration.unused_sources import UnusedSources
from carpool_broker.core.hooks.hook_points import CallHooks
from carpool_broker.core.model.bounds import SessionBounds
from carpool_broker.core.model.effects import AnyEffect, Reply
from carpool_broker.core.model.events import (
    AgentAbsent,
    AgentEvent,
    AnyEvent,
    AskAnswered,
    AskProgressed,
    BadLineReceived,
    CallCancelledByOperator,
    CallRequested,
    CarrierAnnounced,
    CreditReceived,
    DiscoverRequested,
    DrainRequested,
    EndRequested,
    HookAnswered,
    HooksRead,
    InitializedReceived,
    InitializeRequested,
    InputEnded,
    LimitsRead,
    ListenRequested,
    ListenResumed,
    ListPageRequested,
    LogLevelRequested,
    PausedServersChanged,
    PingRequested,
    PinsApproved,
    RecentCallsWatched,
    RecordReceived,
    RequestCancelled,
    RootsAnswered,
    RootsListChanged,
    SessionBoundRaised,
    SessionClosed,
    SessionOpened,
    SessionResumed,
    SessionSourceChanged,
    SourceDropped,
    SourceRead,
    SourcesRead,
    SourceUnused,
    SubscribeRequested,
    SupervisorConnected,
    SupervisorLost,
    UnreadChanged,
)
from carpool_broker.core.model.session import Session
from carpool_broker.core.model.supervisors import ONLY, SupervisorLinks
from carpool_broker.core.model.timer_kinds import ORDER, BrokerTimers, TimerKind
from carpool_broker.core.recovery.recovery import Recovery
from carpool_broker.core.recovery.supervisor_record import RecordedCalls
from carpool_broker.core.recovery.supervisor_sync import SupervisorSync
from carpool_broker.core.registry.catalog_queue import NEXT_SLICE, CatalogQueue
from carpool_broker.core.registry.registry import Registry
from carpool_broker.core.registry.view import View
from carpool_broker.core.requests.dispatch import RequestDispatch
from carpool_broker.core.requests.drain import Drain
from carpool_broker.core.requests.initialize import Initialization
from carpool_broker.core.requests.notifications import GATHERED, Notifications
from carpool_broker.core.requests.roots import AgentRoots
from carpool_broker.core.requests.stateless_call_handler import StatelessCallHandler
from carpool_broker.core.subscriptions.subscription_table import ENDS, ENDS_PAUSE_S
from carpool_broker.core.updates import Updates
from carpool_protocol.ids import EMPTY_OBJECT, SessionId, SupervisorName
from carpool_protocol.link.messages import (
    AskOpened,
    AskWithdrawn,
    CallAnswered,
    CallAtNode,
    CallFailed,
    CallProgressed,
    CallTimed,
    Catalog,
    ElicitationFinished,
    LogForSession,
    PoolChanged,
    ResourceChanged,
    SessionAbsent,
    TaskStatusChanged,
)
from carpool_protocol.machine.timers import Timers


class BrokerCore:
    """The broker core. See `carpool_protocol.machine.machine.Machine`."""

    def __init__(
        self,
        bounds: SessionBounds,
        list_wait_s: float,
        *,
        mark: str = "",
        secret: bytes = b"",
        life: int = 0,
        audits: bool = False,
        counts: bool = True,
        supervisors: Sequence[SupervisorName] = (ONLY,),
    ) -> None:
        """`mark` begins the cursors of lists, which tells them from those of an earlier broker.

        `secret` is known to nobody outside; without one no call of the stateless era can be parked. `life` is
        the number of brokers before this one, with the same secret. `audits`, `counts`: see
        `LimitsRead`. `supervisors`: the names of all that will connect.
        """
        self._effects: list[AnyEffect] = []
        self.timers: BrokerTimers = Timers(ORDER)
        self._ends_pause = self.timers.of("subscription_ends")
        self._audit_trail: AuditTrail | None = None
        self._secret = secret
        self.registry = registry = Registry(self._emit, mark=mark)
        self.sessions: dict[SessionId, Session] = {}
        self.session_views = SessionViews(registry, self._emit)
        self.states = self.session_views.states
        self.sources = self.session_views.sources
        self.unused_sources = UnusedSources(self.sources, self.states, self.timers, self._emit)
        self.links = SupervisorLinks(supervisors)
        self.call_table = CallTable(self.sessions, bounds, self._emit, self.timers, life, links=self.links)
        self.admission = self.call_table.admission
        self.call_table.states = self.states
        self.parked_calls = ParkedCalls(self.sessions, self.call_table, self._emit, secret, self.timers)
        self.requests = RequestDispatch(
            self.sessions, registry, self.session_views, self.call_table, self._emit,
            parked=self.parked_calls, timers=self.timers, secret=secret, life=life, list_wait_s=list_wait_s,
        )  # fmt: skip
        self.interests = self.requests.subscriptions
        self.notifications = Notifications(
            self.sessions, self.session_views, self.call_table, self.requests, self._emit, timers=self.timers
        )
        record = RecordedCalls(self._emit, self.timers)
        self.agent_asks = AgentAsks(
            self.sessions, self.call_table, self.parked_calls, self._emit, self.timers, returning=record.holds
        )
        self.roots = AgentRoots(self.sessions, self.sources, self._emit, self.timers)
        self.recovery = Recovery(
            self.sessions, self.call_table, self.requests, self.parked_calls, self.agent_asks.repeated_asks,
            record=record, out=self._emit, timers=self.timers, life=life,
        )  # fmt: skip
        queue = CatalogQueue(registry, self.timers)
        self.supervisor_sync = SupervisorSync(
            self.sessions, registry, self.session_views, self.call_table, self.requests,
            recovery=self.recovery, hearing=self.notifications, queue=queue, out=self._emit,
        )  # fmt: skip
        self.updates = Updates(
            self.sessions, registry, self.session_views, self.call_table, self.requests,
            hearing=self.notifications, roots=self.roots, recovery=self.recovery,
            linking=self.supervisor_sync,
            queue=queue, unused_sources=self.unused_sources, out=self._emit,
        )  # fmt: skip
        self.initialization = Initialization(
            self.session_views, self.roots, self._emit, self.updates.class_changed
        )
        self.call_table.stateless_listener = StatelessCallHandler(
            registry, self.interests, self.parked_calls, self.supervisor_sync.accepts_subscriptions,
            self._emit,
            tasks=self.requests.tasks,
        )  # fmt: skip
        self.drain = Drain(
            self.call_table, self.requests, self._emit, self.timers, awaits_calls=self.recovery.awaits_calls
        )
        second_look = self.requests.recheck
        self.hooks = CallHooks(
            self.call_table,
            self._emit,
            self.timers,
            may_leave=second_look.may_be_sent,
            strays=second_look.is_unclear_resource,
        )
        self.audit(audits)
        self.count_calls(counts)

    def handle(self, event: AnyEvent, now: float) -> list[AnyEffect]:
        """Handle one event; return the effects in order."""
        effects: list[AnyEffect] = []
        self._effects = effects
        self.call_table.now = now
        # The two events of every call come first.
        if type(event) is CallAnswered:
            self.call_table.call_answered(event, now)
        elif type(event) is CallRequested:
            if event.by is not None and (session := self.sessions.get(event.session)) is not None:
                self.initialization.first_request(session, event.by, settles=True)
            if not self.requests.call_requested(event, now):
                self.recovery.retry_received(self.sessions[event.session], event, now)
            if self.recovery.kept_pools:  # the first call of an agent may make a pool wanted
                self._take_cached_catalogs(now)
        else:
            self._handle_rare(event, now)
        if (
            self.interests.is_stale
            or self.notifications.changed
            or self.hooks.pending
            or self.admission.draining
        ):
            self._say_what_follows(now)
        return effects

    def tick(self, now: float) -> list[AnyEffect]:
        """Fire the timers that are due; return the effects in order."""
        effects: list[AnyEffect] = []
        self._effects = effects
        self.call_table.now = now
        for kind, keys in self.timers.due(now):
            self._time_out(kind, keys, now)
        self._say_what_follows(now)
        return effects

    def _say_what_follows(self, now: float) -> None:
        """Send what goes out once per event or tick: subscriptions, changed lists, hook runs, drain."""
        if self.interests.is_stale and (self.interests.is_urgent or not self._ends_pause.armed):
            are_ends_told = self.interests.has_ends and self.supervisor_sync.accepts_subscriptions()
            self.supervisor_sync.say_interests()
            if are_ends_told:
                self._ends_pause.arm(ENDS, now, ENDS_PAUSE_S)
        if self.notifications.changed:
            self.notifications.send_list_changes()
        if self.hooks.pending:
            self.hooks.send_outcomes(now)
        if self.admission.draining:
            self.drain.recheck()

    def _time_out(self, kind: TimerKind, keys: list[Any], now: float) -> None:  # noqa: C901 - an arm per kind
        match kind:
            case "queued_call":
                self.call_table.end_queued(keys, now)
            case "sent_call":
                self.call_table.end_sent(keys, now)
            case "task":
                self.requests.tasks.expire(keys)
            case "deferred_request":
                self.requests.time_out(keys, now)
            case "gathered_round":
                self.parked_calls.require_gathered(keys, now)
            case "parked_call":
                self.parked_calls.end_parked(keys, now)
            case "recorded_call":
                self.recovery.record.end_parked(keys)
            case "earlier_asks":
                for session in keys:
                    self.agent_asks.repeated_asks.stop_waiting(session)
            case "returning_session":
                self.recovery.end_returning(keys)
            case "return_window":
                for window in keys:
                    self.recovery.close_window(window, now)
                    self.supervisor_sync.recovery_advanced()
                self.admission.send_queued_of_all(now)
            case "hook_run":
                self.hooks.end_runs(keys, now)
            case "catalogs":
                if GATHERED in keys:
                    self.notifications.tell_gathered()
                if NEXT_SLICE in keys:
                    self.updates.learn_slice(now)
                    self._take_cached_catalogs(now)
            case "resource_updates":
                self.requests.resource_updates.tell_slice(now)
            case "first_roots":
                self.roots.first_turns.give_back(keys, now)
            case "changed_roots":
                self.roots.later_turns.give_back(keys, now)
            case "unused_source":
                self.unused_sources.forget(keys)
            case "subscription_ends":
                pass  # what waits is sent after each tick
            case "drain":
                self.drain.end()
            case _:
                assert_never(kind)

    def next_deadline(self) -> float | None:
        """Return the time at which `tick` must be called at the latest, or None."""
        return self.timers.next_deadline()

    def check(self) -> None:
        """Assert every invariant of every part."""
        invariants.check(self.call_table, self.sessions, self.timers)
        self.timers.check()
        self.agent_asks.check()
        self.parked_calls.check()
        self.recovery.check()
        self.roots.check()
        self.session_views.check(self.sessions.values())
        self.unused_sources.check()
        self.requests.check()
        self.notifications.check()
        self.hooks.check()
        self.registry.check()

    def check_touched(self, event: Struct, effects: Iterable[Struct]) -> None:
        """Assert what must hold of the records that an event and its effects name."""
        invariants.check_touched(self.call_table, self.sessions, self.timers, (event, *effects))

    def view_of(self, session: SessionId) -> View:
        """Return what this session sees."""
        return self.session_views.view_of(self.sessions[session])

    def is_behind(self, session: SessionId) -> bool:
        """True if the agent of this session leaves so much unread that its calls wait."""
        asking = self.sessions.get(session)
        return asking is not None and self.call_table.unread.is_behind(asking)

    def owes_answers(self, session: SessionId) -> bool:
        """True while a request of this session has no answer."""
        asking = self.sessions.get(session)
        return asking is not None and bool(
            asking.open_calls or asking.awaits_records or self.requests.deferred.of(session)
        )

    def audit(self, on: bool) -> None:
        """Keep an audit record of each call that ends, or no longer."""
        if on != (self.call_table.audit_trail is not None):
            self._audit_trail = AuditTrail(self._emit, self.call_table.before) if on else None
            self.call_table.audit_trail = self.recovery.record.trail = self._audit_trail

    def count_calls(self, on: bool) -> None:
        """Count calls, or no longer. What was counted before is dropped."""
        table = self.call_table
        if on != (table.counting is not None):
            table.counting = CallCounting(table) if on else None
            for session in self.sessions.values():
                session.counters = None

    def trace_calls(self, sample: float | None) -> None:
        """Trace this part of the calls; None: no call."""
        table = self.call_table
        if sample is None:
            table.tracing = None
        elif table.tracing is None:
            table.tracing = CallTracing(self._emit, self._secret, sample, table.before)
        else:
            table.tracing.set_sample(sample)

    def _emit(self, effect: AnyEffect) -> None:
        self._effects.append(effect)

    def _handle_rare(self, event: AnyEvent, now: float) -> None:  # noqa: C901 - an arm per event
        match event:
            case CallRequested() | CallAnswered():  # pragma: no cover
                pass  # handled in `handle`
            case CallFailed():
                if not self.requests.recheck.send_again(event, now):
                    self.call_table.call_failed(event, now)
            case CallTimed():
                self.call_table.call_timed(event, now)
            case CallAtNode():
                self.call_table.call_at_node(event)
            case CallProgressed():
                self.call_table.call_progressed(event)
            case LogForSession():
                self.notifications.log_received(event)
            case ResourceChanged():
                self.call_table.resource_cache.resource_changed(event.key, event.uri)
                self.requests.resource_updates.resource_changed(event, now)
            case AskOpened():
                self.agent_asks.ask_opened(event, now)
            case AskWithdrawn():
                self.agent_asks.ask_withdrawn(event)
            case ElicitationFinished():
                self.agent_asks.elicitation_finished(event)
            case TaskStatusChanged():
                self.requests.tasks.task_status_changed(event)
            case RecordReceived():
                self.supervisor_sync.record_received(event, now)
            case CreditReceived():
                self.links.grant(event.supervisor, event.size_bytes)
                self.admission.send_queued_of_all(now)
            case Catalog() | PoolChanged() if event.key not in self.supervisor_sync.wanted_pools:
                self.recovery.keep_pool_state(
                    event
                )  # said before the supervisor heard that nobody wants this any more
            case Catalog():
                self.updates.catalog_received(event, now)
            case PoolChanged():
                self.updates.pool_changed(event, now)
            case SourceRead():
                self.updates.sources_read((event,), now)
            case SourcesRead():
                self.updates.sources_read(event.readings, now)
            case SourceUnused():
                self.updates.source_unused(event, now)
            case SourceDropped():
                self.updates.source_dropped(event)
            case CallCancelledByOperator():
                self.requests.cancelled_by_operator(event.call, event.token, now)
            case RecentCallsWatched():
                self.call_table.watch_recent(now)
            case PausedServersChanged():
                self.sources.paused_servers = event.servers
                self.supervisor_sync.send_pools()
            case PinsApproved():
                self.updates.tools_approved(event, now)
            case LimitsRead():
                self.call_table.bounds = event.bounds
                self.audit(event.audits)
                self.count_calls(event.counts)
                self.trace_calls(event.traces)
                self.admission.quotas.set_limits(event.bounds.profiles)
                self.requests.list_wait_s = event.list_wait_s
                for each in self.sessions.values():
                    self.admission.send_queued(each, now)
            case HooksRead():
                self.hooks.hooks_read(event.rules)
            case HookAnswered():
                self.hooks.run_ended(event, now)
            case SessionOpened():
                came = Session(event.session, event.source, event.agent, event.pid, event.carrier)
                came.asking = came.control = event.control
                came.shared = came.stateless = event.shared
                came.carrier_keeps_lines, came.is_unresumable = event.keeps, event.fleeting
                came.follows_roots = event.wanders
                came.anonymous, came.max_open_calls = event.anonymous, event.max_open_calls
                came.node, came.profile, came.principal = event.node, event.profile, event.principal
                came.other_config, came.note = event.other_config, event.note
                self.sessions[event.session] = came
                self.admission.quotas.session_opened(came, self.call_table.bounds.profiles, now)
                self.session_views.session_opened(came)
                if event.shared and self.sources.add_variant(
                    event.source, asking=came.asking, stateless=True
                ):
                    self.updates.update_scopes()
                if not came.control:
                    self.updates.agent_came(came.source)
            case SupervisorConnected():
                self.supervisor_sync.supervisor_connected(event)
            case EndRequested():
                if event.again:
                    self.drain.end()
                else:
                    self.requests.end_all()
            case DrainRequested():
                self.drain.begin(now)
            case SupervisorLost():
                self.updates.finish_slices(now)
                self._supervisor_lost(event.supervisor, now)
            case _:
                session = self.sessions.get(event.session)
                if session is not None:
                    self._handle_agent(session, event, now)
        self._take_cached_catalogs(now)

    def _supervisor_lost(self, name: SupervisorName, now: float) -> None:
        was_heard = self.recovery.has_heard(name)
        self.supervisor_sync.supervisor_lost(name)
        self.agent_asks.supervisor_lost(name)
        self.call_table.supervisor_lost(name)
        self.requests.listen_streams.tasks_lost(self.requests.tasks.tasks_of(name))
        self.requests.tasks.supervisor_lost(name)
        if was_heard:  # else all is as the one before has left it
            runs = partial(self.links.runs_server, name)
            lost_state.supervisor_lost(self.sessions.values(), self.states, runs)
        self.supervisor_sync.states_lost(name)
        self.admission.send_queued_of_all(now)  # the ended calls leave room for calls to other supervisors

    def _take_cached_catalogs(self, now: float) -> None:
        for kept in self.recovery.take_kept_pools(self.supervisor_sync.wanted_pools):
            self._handle_rare(kept, now)

    def _handle_agent(  # noqa: C901 - an arm per event
        self,
        session: Session,
        event: AgentEvent,
        now: float,
    ) -> None:
        match event:
            case InitializeRequested():
                self.initialization.initialize(session, event)
            case PingRequested():
                self._emit(Reply(session.id, event.id, is_error=False, body=EMPTY_OBJECT))
            case ListPageRequested():
                if event.by is not None:
                    self.initialization.first_request(session, event.by, settles=True)
                self.requests.asked(session, event, now)
            case DiscoverRequested():
                self.initialization.first_request(session, event.by, settles=False)
                self.requests.asked(session, event, now)
            case ListenResumed():
                self.requests.listen_streams.grant_resumed(session, event)
            case ListenRequested():
                self.initialization.first_request(session, event.by, settles=True)
                self.requests.asked(session, event, now)
            case RequestCancelled():
                self.requests.request_cancelled(session, event, now)
            case LogLevelRequested():
                self.requests.subscribe.set_level(session, event)
            case SubscribeRequested():
                self.requests.asked(session, event, now)
            case BadLineReceived():
                self.requests.refuse(session, event.id, event.fault, event.detail)
            case AskAnswered():
                self.agent_asks.ask_answered(session, event)
            case RootsAnswered():
                if self.roots.roots_answered(session, event, now):
                    self.requests.catalogs_changed(now)
            case AskProgressed():
                self.agent_asks.ask_progressed(session, event)
            case SessionBoundRaised():
                session.max_open_calls = max(session.max_open_calls, event.max_open_calls)
                self.admission.send_queued(session, now)
            case UnreadChanged():
                self.call_table.unread_changed(session, event.unread_bytes, now)
                self.requests.resource_updates.unread_changed(session, now)
            case InitializedReceived():
                self.roots.agent_ready(session)
            case RootsListChanged():
                self.roots.roots_changed(session)
            case SessionSourceChanged():
                self.updates.session_source_changed(session, event, now)
            case SessionResumed():
                for call in event.calls:
                    if call.by is not None:
                        self.initialization.first_request(session, call.by, settles=True)
                self.recovery.session_resumed(session, event, now)
                self.supervisor_sync.recovery_advanced()
            case AgentAbsent():
                if any(use.is_called for use in session.servers.values()):
                    self._emit(SessionAbsent(session.id, event.absent))
            case CarrierAnnounced():
                session.pid = event.pid
            case InputEnded():
                session.input_ended = True
                self.agent_asks.input_ended(session)
                if session.awaits_roots:
                    self.roots.input_ended(session)
                    self.requests.catalogs_changed(now)
            case SessionClosed():
                self.roots.session_closed(session)
                self.requests.session_closed(session)
                self.parked_calls.session_closed(session)
                self.call_table.session_closed(session)
                self.admission.quotas.session_closed(session)
                self.admission.send_queued(session, now)
                self.call_table.resource_cache.session_closed(session.id)
                self.agent_asks.session_closed(session)
                self.recovery.session_closed(session)
                self.supervisor_sync.session_closed(session.id)
                self.session_views.session_closed(session)
                del self.sessions[session.id]
                if not session.control:
                    self.updates.agent_left(session.source, now)
                self.recovery.recheck()
                self.supervisor_sync.recovery_advanced()
            case CallRequested():  # pragma: no cover
                pass  # handled in `handle`
            case _:
                assert_never(event)
