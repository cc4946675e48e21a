"""The core of the supervisor: handles each event and each timer.

Composes pools and instances, open calls, and the record that survives a broker. Takes an event, returns the
effects in order, and announces changes to the broker. Pure: time and jitter come in with events.

Knows nothing of: how effects are performed.
"""

from collections.abc import Iterable
from typing import Any, assert_never

from msgspec import Struct

from carpool_protocol.ids import CallId, InstanceId, PoolKey
from carpool_protocol.link.messages import (
    AnswerAsk,
    AnswersWritten,
    Call,
    CallAnswered,
    CallFailed,
    CallPlace,
    CancelCall,
    CancelTask,
    ChangeResourceSubscriptions,
    DiscoverCatalog,
    EndCall,
    ForwardAskProgress,
    OpenSessions,
    Operate,
    PoolReport,
    ResumeCall,
    SessionAbsent,
    SessionEnded,
    SessionNotResumable,
    SessionPoolChanged,
    SessionStateLost,
    SetLevel,
    SetPools,
    SetResourceSubscriptions,
    SetTaskSubscriptions,
)
from carpool_supervisor.core import invariants, subscriptions
from carpool_supervisor.core.broker_failover import BrokerFailover
from carpool_supervisor.core.calls import stopped_calls
from carpool_supervisor.core.calls.between_rounds import PendingRetries
from carpool_supervisor.core.calls.call_record import CallRecord
from carpool_supervisor.core.calls.call_timeouts import CallTimeouts, PausedTimeouts
from carpool_supervisor.core.calls.dispatcher import Dispatcher
from carpool_supervisor.core.calls.leases import Leases
from carpool_supervisor.core.calls.server_requests import ServerAsks
from carpool_supervisor.core.calls.task_holds import TaskHolds
from carpool_supervisor.core.list_throttle import ListThrottle
from carpool_supervisor.core.model.effects import AnyEffect
from carpool_supervisor.core.model.events import (
    NOTIFICATIONS,
    SIGNS_OF_LIFE,
    AnswerUnreadable,
    AnyEvent,
    BrokerConnected,
    CatalogRead,
    ClockJumped,
    ElicitationCompleted,
    EraRefused,
    GreetingFailed,
    InstanceEvent,
    InstanceExited,
    InstanceGreeted,
    InstanceSpawned,
    KnowledgeChanged,
    ListAnswerLost,
    ListRequestChanged,
    ListsChanged,
    MemoryMeasured,
    ProbeAnswered,
    ResourceUpdated,
    ServerAnswered,
    ServerAsked,
    ServerCancelledAsk,
    ServerLineRejected,
    ServerLogged,
    ServerNotReady,
    ServerProgressed,
    SpawnFailed,
    StdinBlocked,
    StdinBroken,
    StdoutClosed,
    StdoutPaused,
    StdoutReceived,
    StopRequested,
    TaskChanged,
    TaskCreated,
    UrlElicitationRequired,
    VersionRefused,
)
from carpool_supervisor.core.model.lifecycle import ENDING, InstanceState
from carpool_supervisor.core.model.loss_causes import LOSS_CAUSES, LossCause
from carpool_supervisor.core.model.pool import Instance, Pool
from carpool_supervisor.core.model.pool_table import Pools
from carpool_supervisor.core.model.timer_kinds import TimerKind, supervisor_timers
from carpool_supervisor.core.pools.instances import Instances
from carpool_supervisor.core.pools.liveness import leave_out_pause
from carpool_supervisor.core.pools.recycling import Recycling
from carpool_supervisor.core.pools.status import PoolAnnouncer, report_pool
from carpool_supervisor.core.pools.targets import PoolTargets
from carpool_supervisor.core.subscriptions import InstanceSubscriptions


class SupervisorCore:
    """All decisions of one supervisor. See `carpool_protocol.machine.machine.Machine`."""

    def __init__(self, life: bytes, number: int = 0) -> None:
        """`life`: `trace_context.LIFE_BYTES` random bytes, drawn once per supervisor process. `number`: that
        of this supervisor in its carpool, counted from 0.
        """
        self.pools = Pools()
        self._touched = self.pools.touched
        self._effects: list[AnyEffect] = []
        timers = self.timers = supervisor_timers()
        self.leases = Leases(timers)
        self.retries = PendingRetries(timers, self._emit)
        timeouts = CallTimeouts(timers)
        self.paused_timeouts = PausedTimeouts(timeouts, self.retries)
        self.asks = ServerAsks(life, self.paused_timeouts, timers, self._emit)
        self.dispatcher = Dispatcher(
            self.pools, self.asks, self.leases, self.retries, timeouts=timeouts, timers=timers, out=self._emit
        )
        self.instances = Instances(
            self.pools, self.dispatcher, self.leases, timers=timers, out=self._emit, supervisor=number
        )
        self._start_queue = self.instances.start_queue
        self.targets = PoolTargets(
            self.pools, self.dispatcher, self.instances, self.leases, timers=timers, out=self._emit
        )
        self.recycling = Recycling(self.pools, self.instances, self.leases, timers=timers, out=self._emit)
        self.announcer = PoolAnnouncer(self.pools, self.targets, self.instances.start_queue, self._emit)
        self.record = CallRecord()
        self.task_holds = TaskHolds(
            self.instances.by_id, self.leases, self.instances.recheck_draining, timers=timers, out=self._emit
        )
        self.list_throttle = ListThrottle(self.instances.by_id, timers, self._emit)
        self.subscriptions = InstanceSubscriptions(self.instances.by_id, timers, self._emit)
        self.broker_failover = BrokerFailover(
            self.record,
            self.dispatcher,
            self.asks,
            self.task_holds,
            pools=self.pools,
            targets=self.targets,
            leases=self.leases,
            out=self._emit,
        )
        self.now = 0.0

    def handle(self, event: AnyEvent, now: float) -> list[AnyEffect]:
        """Handle one event. Returns the effects in order."""
        self.now = now
        effects: list[AnyEffect] = []
        self._effects = effects
        # The three events of every call come first, because they never change a pool.
        if type(event) is ServerAnswered:
            self._call_answered(event, now)
        elif type(event) is StdoutReceived:
            heard = self.instances.by_id.get(event.instance)
            if heard is not None:
                self.instances.output_received(heard, now)
        elif type(event) is Call:
            pool = self.dispatcher.admit(event, now) if self.record.add_call(event) else None
            if pool is not None:
                self.targets.grow(pool, now)
                pool.touch()
        elif type(event) is AnswersWritten:
            self.record.forget_calls(event.calls)
            if self.leases.told_losses:
                self.leases.told_losses.answers_written(event.calls, event.newest)
                self.leases.told_losses.calls_passed(self.dispatcher.lowest_placeable(event.oldest))
        elif isinstance(event, NOTIFICATIONS):
            self._handle_notification(event, now)
        else:
            self._touch_named_pool(event)
            self._handle_rare(event, now)
        if self._touched:
            self.announcer.announce_touched(now)
        return effects

    def tick(self, now: float) -> list[AnyEffect]:
        """Handle the timers that are due. Returns the effects in order."""
        self.now = now
        effects: list[AnyEffect] = []
        self._effects = effects
        for kind, keys in self.timers.due(now):
            self._time_out(kind, keys, now)
        self.instances.start_queue.start_queued(now)
        self.announcer.announce_touched(now)
        return effects

    def _touch_named_pool(self, event: AnyEvent) -> None:
        """The pool that a rare event is about may have changed."""
        instance = self.instances.by_id.get(getattr(event, "instance", InstanceId(0)))
        pool = self.pools.get(getattr(event, "key", PoolKey(""))) if instance is None else instance.pool
        if pool is not None:
            pool.touch()

    def _time_out(self, kind: TimerKind, keys: list[Any], now: float) -> None:  # noqa: C901 - an arm per kind
        match kind:
            case "queued_call":
                self.dispatcher.end_queued(keys, now)
            case "queue_notice":
                self.dispatcher.queue_timeouts.send_notices(keys, self.dispatcher.calls, now)
            case "idle_call":
                for pool in self.dispatcher.end_running(keys, "timed_out", now):
                    self._recheck_draining(pool, now)
            case "running_call":
                for pool in self.dispatcher.end_running(keys, "ran_too_long", now):
                    self._recheck_draining(pool, now)
            case "parked_calls":
                over = self.dispatcher.parked_calls.due(keys, self.dispatcher.calls, now)
                for pool in self.dispatcher.end_running(over, "agent_away", now):
                    self._recheck_draining(pool, now)
            case "ask":
                self.asks.time_out(keys, now)
            case "retry_pause":
                self.retries.end_pauses(keys)
            case "held_task":
                self.task_holds.expire(keys, now)
            case "list_answer":
                self.list_throttle.answers_overdue(keys, now)
            case "list_reread":
                self.list_throttle.reread(keys, now)
            case "subscription_pause":
                self.subscriptions.pauses_over(keys, now)
            case "idle_lease":
                self.targets.end_idle_leases(keys, now)
            case "tainted_instance" | "lease_share":
                for key in keys:
                    self.pools[key].touch()
            case "start_backoff":
                self.instances.start_queue.end_backoffs(keys, now)
            case "shortage":
                self.instances.start_queue.end_shortage()
            case "greeting_turn":
                self.instances.start_queue.turn_times_over(keys, now)  # `start_queued` runs after each tick
            case "silent_greeting":
                self.instances.tell_silence(keys, now)
            case "era_silence":
                self.instances.era_greetings.end_silence(keys)
            case "instance_phase":
                self.instances.end_phases(keys, now)
            case "instance_check":
                self.instances.check_all(now)
            case "recycling_check":
                self.recycling.check_ages(now)
            case _:
                assert_never(kind)

    def next_deadline(self) -> float | None:
        """The time at which `tick` has something to do at the latest."""
        return self.timers.next_deadline()

    def check(self) -> None:
        """Assert every invariant of every part."""
        self.timers.check()
        self.pools.check()
        self.announcer.check(self.now)
        self.dispatcher.check()
        self.asks.check(self.dispatcher.calls.values())
        self.instances.check()
        self.targets.check()
        self.recycling.check()
        self.retries.check(self.dispatcher.calls.values())
        self.task_holds.check()
        self.list_throttle.check()
        self.subscriptions.check()
        self.record.check(self.dispatcher.calls.keys())

    def check_touched(self, event: Struct, effects: Iterable[Struct]) -> None:
        """Assert the invariants of the records that an event and its effects name."""
        invariants.check_touched(self.dispatcher, self.instances, self.leases, self.pools, (event, *effects))

    def pool_reports(self) -> list[PoolReport]:
        """All pools for `status`, without memory and CPU."""
        return [report_pool(pool, self.now, self.leases) for pool in self.pools.values()]

    def locate_calls(self, calls: Iterable[CallId]) -> list[CallPlace]:
        """Where each of these calls is; calls that are not open are left out."""
        return self.dispatcher.locate_calls(calls)

    @property
    def has_no_process(self) -> bool:
        """True if no process is left."""
        return not self.instances.by_id

    # ---------------------------------------------------------------------------------------------------

    def _emit(self, effect: AnyEffect) -> None:
        self._effects.append(effect)
        kind = type(effect)
        if kind is CallAnswered or kind is CallFailed:
            self.record.call_ended(effect)  # type: ignore[arg-type]  # asked of the type itself: 3 x faster

    def _handle_notification(
        self, event: ServerProgressed | ServerLogged | ResourceUpdated, now: float
    ) -> None:
        instance = self._instance(event.instance)
        if instance is not None:
            was_suspended = instance.suspended
            self._handle_instance(instance, event, now)
            if was_suspended:  # it is alive: waiting calls may have been placed
                instance.pool.touch()

    def _handle_rare(self, event: AnyEvent, now: float) -> None:  # noqa: C901 - an arm per event
        match event:
            case SetPools():
                self.targets.set_pools(event, now)
                self.recycling.watch(now)
                if event.complete:
                    self.subscriptions.drop_stale(self.pools.values(), now)
            case DiscoverCatalog():
                self.targets.catalog_wanted(event, now)
            case EndCall():
                pool = self.dispatcher.end_by_operator(event.call, now)
                if pool is not None:
                    self._call_ended(pool, now)
            case CancelCall():
                if event.answered:
                    self.record.broker_ended_call(event.call)
                else:
                    self.record.forget_calls([event.call])
                    self.targets.call_cancelled(event.call)
                pool = self.dispatcher.cancel_call(event.call, event.reason, now)
                if pool is not None:
                    self._call_ended(pool, now)
            case ResumeCall():
                self.broker_failover.resume_call(event.call)
            case Operate():
                self.targets.operate(event, now)
            case SetLevel():
                if event.key in self.pools:
                    self.subscriptions.set_level(self.pools[event.key], event, now)
            case SetResourceSubscriptions():
                if event.key in self.pools:
                    self.subscriptions.set_resources(self.pools[event.key], event, now)
            case ChangeResourceSubscriptions():
                if event.key in self.pools:
                    self.subscriptions.change_resources(self.pools[event.key], event, now)
            case AnswerAsk():
                self.asks.agent_answered(event, now)
            case ForwardAskProgress():
                self.asks.agent_progressed(event)
            case SetTaskSubscriptions():
                self.task_holds.set_subscriptions(event)
            case CancelTask():
                self.task_holds.cancel_task(event, now)
            case OpenSessions():
                self.record.unresumable = {note.session for note in event.live if note.fleeting}
                self.targets.sessions_listed(event, now)
            case SessionAbsent():
                self.targets.session_absent(event)
            case SessionNotResumable():
                self.record.unresumable.add(event.session)
            case SessionStateLost():
                self.targets.state_lost(event)
            case SessionPoolChanged():
                self.targets.session_pool_changed(event, now)
            case SessionEnded():
                self.broker_failover.session_closed(event.session, now)
            case KnowledgeChanged():
                self.targets.set_knowledge(event, now)
            case BrokerConnected():
                self.broker_failover.broker_connected(now, same=event.same)
                for pool in self.pools.values():
                    self._recheck_draining(pool, now)
                self.pools.touch_all()
            case MemoryMeasured():
                self.recycling.memory_measured(event, now)
            case ClockJumped():
                for each in self.instances.by_id.values():
                    self.instances.suspend_until_probed(each, now)
            case StopRequested():
                self.instances.close(now)
                self.pools.touch_all()
            case Call() | AnswersWritten():  # pragma: no cover
                pass  # handled in `handle`
            case _:
                instance = self._instance(event.instance)
                if instance is not None:
                    self._handle_instance(instance, event, now)

    def _handle_instance(  # noqa: C901 - an arm per event
        self,
        instance: Instance,
        event: InstanceEvent,
        now: float,
    ) -> None:
        pool = instance.pool
        if isinstance(event, SIGNS_OF_LIFE):
            self.instances.output_received(instance, now)
        match event:
            case InstanceSpawned():
                self.instances.instance_spawned(instance, event, now)
            case SpawnFailed():
                self.instances.spawn_failed(instance, event, now)
            case InstanceGreeted():
                self.instances.instance_greeted(instance, event.catalog, now)
                self.recycling.instance_greeted(instance, now)
                self.subscriptions.instance_greeted(instance, now)
            case GreetingFailed():
                self.instances.end_unfit(instance, event.text, now)
                if not event.refused:  # nothing else is tried: calls are refused for this before its exit
                    pool.record_error(event.text)
                self.instances.start_queue.start_queued(now)  # it has given back its greeting turn
            case EraRefused():
                self.instances.era_greetings.era_refused(instance, event)
            case VersionRefused():
                self.instances.era_greetings.version_refused(instance, event)
            case CatalogRead():
                pool.relisting = None if pool.relisting is instance else pool.relisting
                self.instances.update_catalog(pool, event.catalog, now)
            case ListsChanged():
                self.list_throttle.lists_changed(instance, now)
            case ListAnswerLost():
                pool.relisting = None if pool.relisting is instance else pool.relisting
                if event.text:
                    pool.record_error(event.text)
                self.list_throttle.list_answer_lost(instance, event.times, now)
            case ListRequestChanged():
                self.list_throttle.list_requested(instance, event.method, now)
                self.instances.list_requested(instance, now)
            case ServerAnswered():
                self._call_answered(event, now)
            case AnswerUnreadable():
                pool.record_error(event.text)
                self.dispatcher.answer_unreadable(instance, event.wire, event.fault, event.text, now)
                self._call_ended(pool, now)
            case ServerProgressed():
                self.dispatcher.call_progressed(instance, event.wire, event.params, now)
            case ServerLogged():
                subscriptions.log_received(instance, event, self._emit)
            case ServerAsked():
                if self.asks.server_asked(instance, event, now):
                    instance.note_end("a question of it could belong to several agents")
                    self._replace_instance(instance, now)
                elif event.facts.wire is not None:  # the server does not run its call meanwhile
                    self.dispatcher.instance_freed(instance, now)
                self.dispatcher.parked_calls.watch(pool, now)
            case ServerCancelledAsk():
                self.asks.server_cancelled_ask(instance, event, now)
            case UrlElicitationRequired():
                self.asks.url_elicitation_required(instance, event)
            case ElicitationCompleted():
                self.asks.elicitation_completed(instance, event)
            case TaskCreated():
                self.asks.task_created(instance, event)
            case TaskChanged():
                self.task_holds.task_changed(instance, event, now)
            case ServerNotReady():
                self.retries.server_not_ready(instance, event, now)
                self.dispatcher.instance_freed(instance, now)
            case ResourceUpdated():
                subscriptions.resource_updated(instance, event, self._emit)
            case StdoutReceived():
                pass
            case ProbeAnswered():
                is_stopped = stopped_calls.ping_answered(instance, event.number, now, self._emit)
                if is_stopped and not pool.plain:
                    self.targets.adjust_pool(pool, now)
            case ServerLineRejected():
                if instance.state not in ENDING:  # otherwise the reason why it ends says more
                    pool.record_error(event.text)
            case StdinBlocked():
                instance.blocked = event.blocked or instance.is_stdin_closed
                if not instance.blocked:
                    self.subscriptions.stdin_read(instance, now)
                self.dispatcher.instance_freed(instance, now)
            case StdinBroken():
                self.instances.stdin_broken(instance, event, now)
            case StdoutPaused():
                self._reading_paused(instance, now, paused=event.paused)
            case StdoutClosed():
                self.instances.stdout_closed(instance, now)
            case InstanceExited():
                self.task_holds.instance_exited(instance)
                self.list_throttle.instance_exited(instance)
                self.subscriptions.instance_exited(instance)
                self.instances.instance_exited(instance, event, now)
            case _:
                assert_never(event)

    def _reading_paused(self, instance: Instance, now: float, *, paused: bool) -> None:
        """Pause the timeouts of an instance and its calls while its output is not read."""
        if paused and instance.unread_since is None:
            instance.unread_since = now
            self.paused_timeouts.reading_paused(instance, now)
        elif not paused and instance.unread_since is not None:
            leave_out_pause(instance, now)
            self.paused_timeouts.reading_resumed(instance, now)

    def _replace_instance(self, instance: Instance, now: float, cause: LossCause = "restart") -> None:
        """Replace an instance whose ended calls spoil it for others. Its holder is told this cause."""
        self.instances.drain(instance, now, cause)
        self.instances.start_queue.enqueue(instance.pool, now)
        self.instances.start_queue.start_queued(now)

    def _call_answered(self, event: ServerAnswered, now: float) -> None:
        instance = self.instances.by_id.get(event.instance)
        if instance is None:
            return
        self.instances.output_received(instance, now)
        if event.task or event.task_over:
            self.task_holds.call_answered(instance, event, now)
        is_told = self.dispatcher.call_answered(instance, event, now)
        if event.state_lost:
            if is_told:  # otherwise its agent has cancelled the call, and the next one tells it
                self.leases.mark_unused(instance.id)
            instance.note_end(LOSS_CAUSES["remote"])
            self._replace_instance(instance, now, "remote")
        pool = instance.pool
        if instance.calls >= instance.review_from:
            self._review_instance(instance, now)
        if not instance.in_flight and (instance.state is InstanceState.DRAINING or instance.is_stdin_closed):
            self.instances.recheck_draining(instance, now)
        if not pool.wanted:
            pool.touch()
        elif not pool.plain and not instance.in_flight:
            is_still_held = pool.mode == "session" and self.leases.is_used(instance.id)
            if pool.queue or not is_still_held:  # otherwise the demand is as it was
                self.targets.adjust_pool(pool, now)
            self.announcer.announce(pool, now)
        if self._start_queue.waits_for_room and not instance.in_flight:
            self._start_queue.start_queued(now)  # it is idle now, perhaps for a moment only

    def _review_instance(self, instance: Instance, now: float) -> None:
        """An answer that matters: of an instance on trial, or of one that has reached a limit."""
        if instance.pool.trial is instance:
            self.instances.breakers.close(instance.pool, now)
        else:
            self.recycling.recheck(instance, now)
        instance.pool.touch()

    def _recheck_draining(self, pool: Pool, now: float) -> None:
        for instance in list(pool.instances.values()):
            self.instances.recheck_draining(instance, now)

    def _call_ended(self, pool: Pool, now: float) -> None:
        """A call has ended without an answer: what drains may end, and what is idle now make room."""
        self._recheck_draining(pool, now)
        if self._start_queue.waits_for_room:
            self._start_queue.start_queued(now)

    def _instance(self, instance: InstanceId) -> Instance | None:
        """The instance; None if it is gone, because late events of a dead process are normal."""
        return self.instances.by_id.get(instance)
