"""Instances: their starts, their lives and their ends.

Owns the life of each instance: the stop ladder and the consequences of an end. A pool has a `target`
(`targets`): `start_queue` starts instances up to it, this module ends those above it. `liveness` judges
silence. The lease of an instance that leaves ends with it, and its holder is told why.

Invariants (`check`): never more processes than the cap (one more while a replacement greets); an instance
past SPAWNING has a phase deadline unless it serves; `pool.serving` is exactly the instances in SERVING; an
instance that was asked to end has no holder.

Knows nothing of: calls (only that an instance has some), JSON, how processes are started.
"""

from collections.abc import Callable, Iterable
from typing import Final

from carpool_protocol.ids import InstanceId, PoolKey, instance_of
from carpool_protocol.link.messages import Catalog, NodeSession
from carpool_supervisor.core.calls import ask_evidence
from carpool_supervisor.core.calls.dispatcher import Dispatcher
from carpool_supervisor.core.calls.leases import Leases
from carpool_supervisor.core.calls.refusals import (
    died_text,
    ended_text,
    instance_silence,
    left_out_text,
    loss_fault,
    telling_stderr_line,
)
from carpool_supervisor.core.calls.task_holds import MAX_HELD_S
from carpool_supervisor.core.model.effects import (
    AnyEffect,
    CloseStdin,
    ReleaseInstance,
    SignalGroup,
    Spawn,
    WriteLogLine,
    WriteProbe,
)
from carpool_supervisor.core.model.events import InstanceExited, InstanceSpawned, SpawnFailed, StdinBroken
from carpool_supervisor.core.model.lifecycle import ACTIVE, ENDING, InstanceState, LifecycleEvent
from carpool_supervisor.core.model.loss_causes import LossCause
from carpool_supervisor.core.model.pool import MAX_ABANDONED, Instance, Pool
from carpool_supervisor.core.model.pool_table import Pools
from carpool_supervisor.core.model.timer_kinds import ALL, SupervisorTimers
from carpool_supervisor.core.pools import demand
from carpool_supervisor.core.pools.circuit_breaker import CircuitBreakers
from carpool_supervisor.core.pools.eras import EraGreetings, first_greeting
from carpool_supervisor.core.pools.liveness import LivenessVerdict, judge_liveness
from carpool_supervisor.core.pools.start_queue import StartQueue, falls_short

MAX_ENDED_AT_NODES: Final = 500
STDOUT_GRACE_S: Final = 1.0
"""The time for an instance to end after its stdout was closed, or its stdin with no call in flight. Usually
it is just ending, and its exit explains more.
"""
SILENT_GREETING_S: Final = 9.0
"""After this long a server that has written nothing since it was greeted is told. A little less than a list
and a first call wait (`list_wait_s`), so that these can say it.
"""
STDIN_GRACE_S: Final = 5.0
"""The time in which answers may still come after stdin was closed, by carpool or by the server."""
TERM_GRACE_S: Final = 2.0
STDIN_CLOSED: Final = "closed its stdin and went on running"
KILL_GRACE_S: Final = 5.0
"""The wait after each SIGKILL; it is repeated, because only a process stuck in the kernel does not end."""


class Instances:
    """All instances of all pools."""

    def __init__(
        self,
        pools: Pools,
        dispatcher: Dispatcher,
        leases: Leases,
        *,
        timers: SupervisorTimers,
        out: Callable[[AnyEffect], None],
        supervisor: int = 0,
    ) -> None:
        """`supervisor`: the number of this supervisor in its carpool."""
        self._supervisor = supervisor
        self._started = 0
        """The number of instances that were started."""
        self._pools = pools
        self._dispatcher = dispatcher
        self._leases = leases
        self._emit = out
        self.by_id: dict[InstanceId, Instance] = {}
        self._ended_at_nodes: dict[InstanceId, NodeSession] = {}
        """Ended instances that were sessions at other nodes, for stories; the oldest first."""
        self.era_greetings = EraGreetings(self.by_id, timers, out)
        self.start_queue = StartQueue(
            pools, self.by_id, leases, timers, start=self._start, drain=self._end_for_other_pool
        )
        self.breakers = CircuitBreakers(dispatcher, self.start_queue, out)
        self._most = self.start_queue.max_processes
        """The process cap, or the number that ran when it was lowered: no instance is ended only because of
        that.
        """
        self._timers = timers
        self.phase_timers = timers.of("instance_phase")

    def set_limits(self, max_processes: int, max_greeting: int) -> None:
        """Set the process cap, and the number that may greet at once."""
        self.start_queue.max_processes = max_processes
        self.start_queue.turns.max_greeting = max_greeting
        self._most = max(max_processes, self.start_queue.process_count)

    def close(self, now: float) -> None:
        """End all instances, because the supervisor ends."""
        self.start_queue.close()
        for pool in self._pools.values():
            pool.target = 0
        for instance in list(self.by_id.values()):
            if instance.state not in ENDING:
                instance.note_end("carpool itself was stopped")
                self.stop(instance, now)

    # --- starting --------------------------------------------------------------------------------------

    def _start(self, pool: Pool, now: float) -> Instance:
        pool.generations += 1
        pool.counts.starts += 1
        self._started += 1
        instance = Instance(instance_of(self._supervisor, self._started), pool, pool.generations, now)
        self.by_id[instance.id] = instance
        pool.instances[instance.id] = instance
        self.start_queue.process_count += instance.is_process
        pool.touch()
        instance.update_review()
        self.phase_timers.arm(instance.id, now, pool.start_limit_s())
        self._watch(now)
        era = instance.era = first_greeting(pool)
        version = instance.offered_version
        self._emit(Spawn(instance.id, pool.key, pool.server, instance.generation, era, version))
        return instance

    def instance_spawned(self, instance: Instance, event: InstanceSpawned, now: float) -> None:
        """The process of the instance runs, or its session at another node is open."""
        instance.pid, instance.node, instance.node_session = event.pid, event.node, event.node_session
        self.start_queue.instance_spawned(instance.pool)
        if instance.state is InstanceState.SPAWNING:
            instance.transition(LifecycleEvent.SPAWNED)
            self.era_greetings.instance_spawned(instance, now)
            self._timers.arm("silent_greeting", instance.id, now, SILENT_GREETING_S)

    def node_sessions(self) -> dict[InstanceId, NodeSession]:
        """Return the instances that are sessions at other nodes, or were until lately."""
        running = {
            each.id: NodeSession(each.node, each.node_session) for each in self.by_id.values() if each.node
        }
        return {**self._ended_at_nodes, **running}

    def instance_greeted(self, instance: Instance, catalog: Catalog, now: float) -> None:
        """The instance is fit."""
        if instance.state is not InstanceState.GREETING:
            return
        instance.transition(LifecycleEvent.GREETED)
        instance.fit_at = instance.idle_since = now
        pool = instance.pool
        self.era_greetings.instance_greeted(instance, catalog)
        pool.ever_fit = True
        pool.serving.append(instance)
        self.phase_timers.disarm(instance.id)
        self._timers.disarm("silent_greeting", instance.id)
        if instance.is_stdin_closed:  # it has answered everything that it had read, and can be given no more
            self._end_within(instance, STDOUT_GRACE_S, now)
        self.start_queue.instance_greeted(instance)
        self._log(instance, f"has greeted ({catalog.era} era) and serves")
        self.update_catalog(pool, catalog, now)
        self.breakers.instance_greeted(instance, now)
        if pool.active_count() > max(pool.target, 1):
            self.shrink(pool, now)
        self._dispatcher.place_waiting(pool, now)  # before the instance could count as idle
        self.start_queue.start_queued(now)

    def update_catalog(self, pool: Pool, catalog: Catalog, now: float) -> None:
        """Keep the catalog, and announce it unless the broker has the same one."""
        asked_for, catalog = (
            pool.is_relisting and catalog is not pool.catalog,
            ask_evidence.with_ask_evidence(pool, catalog),
        )
        if catalog.left_out and catalog.left_out != left_out_text(pool):
            self._emit(WriteLogLine("warning", f"{pool.server}: {catalog.left_out}"))
        if asked_for or catalog != pool.catalog:
            pool.catalog, pool.is_catalog_sent = catalog, False
            pool.is_relisting &= not asked_for
            self.update_sharing(pool, now)

    def update_sharing(self, pool: Pool, now: float) -> None:
        """Take over a changed sharing mode. If instances are leased no more, a holder keeps its own as after
        a reload.
        """
        pool.update_sharing()
        if pool.queue and not pool.plain:
            self._pools.note_waiting(pool)
        if pool.mode != "session":
            self._leases.withdraw_pool(pool.key)
            for instance in list(pool.serving):
                if self._leases.holder(instance.id) is not None:
                    instance.note_end("its server is shared in another way now")
                    self.wind_down(instance, now)

    # --- ending ----------------------------------------------------------------------------------------

    def drain(self, instance: Instance, now: float, cause: LossCause = "restart") -> None:
        """Take no new call; end when nothing is open. The holder is told this cause."""
        self._end_lease(instance, cause)
        if instance.state is InstanceState.SERVING and instance.is_busy:
            self._leaves_service(instance)
            instance.transition(LifecycleEvent.DRAIN)
            is_worn = instance.limit_reached and instance.end_reason == instance.limit_reached
            limit_s = _limit_drain_s(instance) if is_worn else instance.pool.policy.drain_s
            self.phase_timers.arm(instance.id, now, limit_s)
        elif instance.state in ACTIVE:
            self.stop(instance, now, cause)
        else:
            self.recheck_draining(instance, now)

    def _end_for_other_pool(self, instance: Instance, now: float, cause: LossCause) -> None:
        """End it to make room for another pool's instance; sessions that wait for it are told at once."""
        instance.note_end("another server needed its place")
        self.drain(instance, now, cause)
        self._dispatcher.instance_freed(instance, now)

    def wind_down(self, instance: Instance, now: float, cause: LossCause = "reload") -> None:
        """It is no longer wanted: drain it, but let its holder keep it until `drain_s` is over (rule 15)."""
        instance.cause = cause
        if self._leases.holder(instance.id) is None:
            self.drain(instance, now)
        elif instance.state is InstanceState.SERVING:
            self._leaves_service(instance)
            instance.transition(LifecycleEvent.DRAIN)
            self.phase_timers.arm(instance.id, now, instance.pool.policy.drain_s)

    def end_without_replacement(self, instance: Instance, now: float, cause: LossCause = "restart") -> None:
        """End it without a replacement."""
        pool = instance.pool
        if instance.is_counted:
            pool.target = max(pool.active_count() - 1, pool.policy.min_instances)
        self.drain(instance, now, cause)

    def stop(self, instance: Instance, now: float, cause: LossCause = "reload") -> None:
        """Ask the process to end by closing its stdin."""
        self._end_lease(instance, cause)
        self._leaves_service(instance)
        instance.transition(LifecycleEvent.STOP)
        self.phase_timers.arm(instance.id, now, STDIN_GRACE_S)
        self._emit(CloseStdin(instance.id))

    def end_unfit(self, instance: Instance, text: str, now: float, cause: LossCause = "crash") -> None:
        """End an unfit instance now. It counts as a failure, and its calls end at once."""
        if instance.state in (InstanceState.TERMINATING, InstanceState.KILLED, InstanceState.GONE):
            return
        instance.failure = text
        self._end_lease(instance, cause)
        self._leaves_service(instance)
        instance.transition(LifecycleEvent.CONDEMN)
        self.phase_timers.arm(instance.id, now, TERM_GRACE_S)
        self._emit(SignalGroup(instance.id, "TERM"))
        fault = loss_fault(instance.pool)
        self._dispatcher.instance_lost(instance, (), fault, died_text(instance.pool, text, ""), now)

    def stdout_closed(self, instance: Instance, now: float) -> None:
        """Its stdout is closed, so no answer can come. Usually it is just ending, and its exit
        explains more.
        """
        if instance.state in (InstanceState.SPAWNING, InstanceState.GREETING, InstanceState.SERVING):
            instance.suspended = True
            self.phase_timers.arm(instance.id, now, STDOUT_GRACE_S)

    def stdin_broken(self, instance: Instance, event: StdinBroken, now: float) -> None:
        """It has closed its stdin. Undelivered calls run elsewhere; calls that it has read may still be
        answered for a moment. Then it is ended as a failure, because a server that always does so must not be
        restarted without a pause.
        """
        if instance.state in ENDING:
            return
        first = not instance.is_stdin_closed
        instance.is_stdin_closed = instance.blocked = True
        self._dispatcher.calls_undelivered(instance, event.unwritten, now)
        instance.undelivered.update(event.unwritten)
        if instance.calls == len(instance.undelivered):
            self._leases.mark_unused(instance.id)
        if first:
            self._end_within(instance, STDIN_GRACE_S, now)
        if not instance.in_flight:
            self._end_within(instance, STDOUT_GRACE_S, now)

    def _end_within(self, instance: Instance, limit_s: float, now: float) -> None:
        due = self.phase_timers.deadline_of(instance.id)
        if due is None or due > now + limit_s:
            self.phase_timers.arm(instance.id, now, limit_s)

    def recheck_draining(self, instance: Instance, now: float) -> None:
        """A call or a lease ended: end a draining instance if nothing is open on it. Replace an instance with
        too many abandoned calls, unless they are all its holder's.
        """
        if instance.is_stdin_closed and instance.state is InstanceState.SERVING and not instance.in_flight:
            self._end_within(instance, STDOUT_GRACE_S, now)
        if self._leases.holder(instance.id) is not None:
            return
        if instance.state is InstanceState.DRAINING and not instance.is_busy:
            self.stop(instance, now)
        elif instance.state is InstanceState.SERVING and len(instance.abandoned) >= MAX_ABANDONED:
            instance.note_end(f"{MAX_ABANDONED} calls that had ended could still run on it")
            self.drain(instance, now)
            self.start_queue.enqueue(instance.pool, now)
            self.start_queue.start_queued(now)

    def instance_exited(self, instance: Instance, event: InstanceExited, now: float) -> None:
        """The process is gone."""
        pool = instance.pool
        asked = (
            instance.state in ENDING or instance.state is InstanceState.DRAINING or self.start_queue.closed
        )
        never_fit = instance.fit_at is None
        was_greeted = instance.state is InstanceState.GREETING
        has_answered = instance.has_answered
        failure = instance.failure
        if failure is None and not asked:
            failure = f"{event.how} before it had greeted" if never_fit else event.how
        instance.undelivered.update(event.unwritten)
        unused = instance.calls == len(instance.undelivered)
        first_words = never_fit or unused or pool.policy.stderr_in_errors
        text = died_text(pool, event.how, event.stderr if first_words else "")
        if failure is None and instance.state in ENDING:
            text = ended_text(pool, closing=self.start_queue.closed, reason=instance.end_reason)
        if unused:
            self._leases.mark_unused(instance.id)
        self._remove(instance)
        self._dispatcher.instance_lost(instance, event.unwritten, loss_fault(pool), text, now)
        by_itself = instance.failure is None and not asked
        forgiven = self.era_greetings.instance_ended(instance, by_itself=by_itself)
        if failure is not None and not forgiven:
            forgiven = self.era_greetings.offers_other_version(
                instance, failure, ended_greeting=by_itself and was_greeted and not event.refused_nothing
            )
        if failure is None or failure is instance.failure:
            reason = f": {instance.end_reason}" if instance.end_reason else ""
            self._log(instance, f"{event.how}{'' if failure else f', as carpool asked it to{reason}'}")
        if failure is not None and not forgiven:
            pool.stderr = event.stderr.splitlines()[-20:]
            words = telling_stderr_line(event.stderr) if never_fit else ""
            self.breakers.instance_failed(
                instance,
                failure,
                event.jitter,
                now,
                hopeless=event.is_final,
                has_answered=has_answered,
                words=words,
            )
        self._after_exit(pool, now)

    def spawn_failed(self, instance: Instance, event: SpawnFailed, now: float) -> None:
        """The process could not be started. A shortage is no failure of the server: it waits for room."""
        self._remove(instance)
        if event.shortage and not self.start_queue.closed:
            pool = instance.pool
            if self.start_queue.start_failed_for_room(pool, event.text, now):
                self._emit(WriteLogLine("warning", f"{pool.server} waits: it {event.text}", pool.server))
        elif not self.start_queue.closed:
            self.breakers.instance_failed(instance, event.text, event.jitter, now, hopeless=not event.passing)
        self._after_exit(instance.pool, now)

    def _log(self, instance: Instance, text: str) -> None:
        server = instance.pool.server
        self._emit(WriteLogLine("info", f"{server} #{instance.id} {text}", server, instance.id))

    def _after_exit(self, pool: Pool, now: float) -> None:
        self.start_queue.enqueue(pool, now)
        self.start_queue.start_queued(now)

    def _remove(self, instance: Instance) -> None:
        self._end_lease(instance, "crash")
        self._leaves_service(instance)
        instance.transition(LifecycleEvent.EXITED)
        self.phase_timers.disarm(instance.id)
        del self.by_id[instance.id]
        self.start_queue.process_count -= instance.is_process
        if instance.node:
            self._ended_at_nodes[instance.id] = NodeSession(instance.node, instance.node_session)
            if len(self._ended_at_nodes) > MAX_ENDED_AT_NODES:
                del self._ended_at_nodes[next(iter(self._ended_at_nodes))]
        del instance.pool.instances[instance.id]
        if not self.by_id:
            self._timers.disarm("instance_check", ALL)
        self._emit(ReleaseInstance(instance.id))

    def _leaves_service(self, instance: Instance) -> None:
        self._timers.disarm("silent_greeting", instance.id)
        self.start_queue.turns.end(instance.id)
        if instance.state is InstanceState.SERVING:
            instance.pool.serving.remove(instance)
            self.breakers.instance_left(instance)

    def _end_lease(self, instance: Instance, cause: LossCause) -> None:
        """End the lease of this instance."""
        if self._leases.instance_lost(instance.id, cause) is not None:
            self._pools.lease_ended(instance.pool.server)

    def shrink(self, pool: Pool, now: float) -> None:
        """End instances above the allowed number, leased ones last."""
        surplus = max(pool.active_count() - pool.max_instances, 0)
        order = sorted(
            [each for each in pool.serving if each.is_counted],
            key=lambda i: (self._leases.holder(i.id) is not None, i.is_busy, len(i.in_flight), i.idle_since),
        )
        for instance in order[:surplus]:
            instance.note_end("its pool had more instances than it may")
            self.wind_down(instance, now)
        pool.target = min(pool.target, pool.max_instances)

    def list_requested(self, instance: Instance, now: float) -> None:
        """A list request was sent to it, or the open one has ended."""
        if instance.list_request and instance.state is InstanceState.GREETING:
            self._timers.arm("silent_greeting", instance.id, now, SILENT_GREETING_S)

    def tell_silence(self, instances: Iterable[InstanceId], now: float) -> None:
        """Tell that these have not answered their greeting, or a list that it needs, as far as that is so."""
        for instance_id in instances:
            instance = self.by_id[instance_id]
            instance.is_silence_told = True
            instance.pool.touch()
            if silence := instance_silence(instance, now):
                server = instance.pool.server
                text = f"{server} #{instance.id} {silence}"
                self._emit(WriteLogLine("warning", text, server, instance.id))

    # --- timeouts --------------------------------------------------------------------------------------

    def end_phases(self, instances: Iterable[InstanceId], now: float) -> None:
        """Act on instances that did not greet, finish or end in time."""
        for instance_id in instances:
            self._phase_over(self.by_id[instance_id], now)

    def check_all(self, now: float) -> None:
        """End instances that are idle for too long, and probe or end silent ones."""
        surplus: dict[PoolKey, int] = {}
        for instance in list(self.by_id.values()):
            self._recheck(instance, surplus, now)
        self._watch(now)

    def _phase_over(self, instance: Instance, now: float) -> None:
        match instance.state:
            case InstanceState.SPAWNING | InstanceState.GREETING if instance.unread_since is not None:
                self.phase_timers.arm(
                    instance.id, now, instance.pool.start_limit_s()
                )  # its greeting may lie unread in the pipe
            case InstanceState.SPAWNING | InstanceState.GREETING if instance.is_stdin_closed:
                self.end_unfit(instance, STDIN_CLOSED, now, "deaf")
            case InstanceState.SPAWNING | InstanceState.GREETING if instance.suspended:
                self.end_unfit(instance, "closed its stdout and went on running", now)
            case InstanceState.SPAWNING | InstanceState.GREETING:
                limit_s = instance.pool.start_limit_s()
                missing = f": it has not answered {instance.list_request}" if instance.list_request else ""
                self.end_unfit(instance, f"did not greet within {limit_s:g} s{missing}", now)
            case InstanceState.DRAINING:
                self.stop(instance, now, instance.cause)
            case InstanceState.STOPPING:
                instance.transition(LifecycleEvent.GRACE_OVER)
                self.phase_timers.arm(instance.id, now, TERM_GRACE_S)
                self._emit(SignalGroup(instance.id, "TERM"))
            case InstanceState.TERMINATING | InstanceState.KILLED:
                instance.transition(LifecycleEvent.GRACE_OVER)
                self.phase_timers.arm(instance.id, now, KILL_GRACE_S)
                self._emit(SignalGroup(instance.id, "KILL"))
            case InstanceState.SERVING if instance.is_stdin_closed and instance.unread_since is not None:
                self.phase_timers.arm(instance.id, now, STDIN_GRACE_S)  # answers may lie unread in the pipe
            case InstanceState.SERVING if instance.is_stdin_closed:
                self.end_unfit(instance, STDIN_CLOSED, now, "deaf")
            case InstanceState.SERVING:
                self.end_unfit(instance, "closed its stdout and went on running", now, "mute")
            case InstanceState.GONE:
                pass

    def _may_end(self, instance: Instance, surplus: dict[PoolKey, int]) -> bool:
        """True if its pool can do without it once it is idle. A lease has an idle limit of its own.
        `surplus`: of each pool, the number of instances that it can do without, as far as it is known.
        """
        if instance.limit_reached or self._leases.holder(instance.id) is not None:
            return False
        pool = instance.pool
        if pool.key not in surplus:
            surplus[pool.key] = pool.active_count() - demand.kept_instances(pool, self._leases)
        return surplus[pool.key] > 0

    def _recheck(self, instance: Instance, surplus: dict[PoolKey, int], now: float) -> None:
        if instance.state is not InstanceState.SERVING:
            return
        self.breakers.recheck(instance, now)
        match judge_liveness(instance, now, may_end=lambda: self._may_end(instance, surplus)):
            case LivenessVerdict.END_IDLE:
                surplus.pop(instance.pool.key, None)
                instance.note_end("it was not used for a while (pool.idle_s)")
                self.end_without_replacement(instance, now)
            case LivenessVerdict.PROBE:
                self.probe_instance(instance, now)
            case LivenessVerdict.SUSPEND:
                instance.suspended = True
            case LivenessVerdict.CONDEMN:
                text = f"was silent for {now - instance.last_output_at:.0f} s and answered no ping"
                self.end_unfit(instance, text, now, "silent")
            case LivenessVerdict.NOTHING:
                pass

    def probe_instance(self, instance: Instance, now: float) -> None:
        """Ping the instance, unless a ping is open."""
        if instance.state is InstanceState.SERVING and instance.probed_at is None:
            instance.probed_at = now
            instance.pings += 1
            self._emit(WriteProbe(instance.id, instance.pings))

    def suspend_until_probed(self, instance: Instance, now: float) -> None:
        """Place nothing on it before it has answered a ping: it may have died unnoticed (rule 8)."""
        if instance.state is InstanceState.SERVING:
            self.probe_instance(instance, now)
            instance.suspended = True

    def output_received(self, instance: Instance, now: float) -> None:
        """The instance wrote something, so it is alive."""
        instance.last_output_at = now
        if instance.is_silence_told:
            instance.is_silence_told = False
            instance.pool.touch()
        if instance.probed_at is not None:
            instance.probed_at = None
            if instance.suspended:
                instance.suspended = False
                self._dispatcher.instance_freed(instance, now)

    def _watch(self, now: float) -> None:
        if self.by_id and not self._timers.has("instance_check", ALL):
            shortest = min(
                (min(p.policy.idle_s, p.policy.probe_s) for p in self._pools.values()), default=10.0
            )
            self._timers.arm("instance_check", ALL, now, min(max(shortest / 4, 0.05), 5.0))

    def check_instance(self, instance: Instance) -> None:
        """Assert that it is in the collections of its state, and has a deadline unless it serves and
        is read.
        """
        assert instance.pool.instances[instance.id] is instance
        assert (instance in instance.pool.serving) == (instance.state is InstanceState.SERVING)
        assert instance.state is not InstanceState.GONE
        is_bounded = (
            instance.state is InstanceState.SERVING and not instance.is_stdin_closed
        ) or instance.id in self.phase_timers
        assert is_bounded, f"instance {instance.id} may stay {instance.state} for ever"
        assert not (instance.state in ENDING and instance.failure is not None and instance.in_flight)

    def check(self) -> None:
        """Assert every invariant."""
        self.era_greetings.check()
        self.breakers.check(self._pools)
        self.start_queue.turns.check()
        assert self.start_queue.process_count == sum(each.is_process for each in self.by_id.values())
        assert self.start_queue.process_count <= self._most + 1, "more processes than the cap"
        for instance in self.by_id.values():
            self.check_instance(instance)
        for pool in self._pools.values():
            condemned = any(i.failure is not None for i in pool.instances.values())  # its end decides
            if falls_short(pool) and not condemned and not self.start_queue.closed:
                assert self.start_queue.will_start(pool), f"{pool.key} is short and forgotten"
        assert self._timers.has("instance_check", ALL) or not self.by_id


def _limit_drain_s(instance: Instance) -> float:
    """The time that a worn instance may drain. Nothing is wrong with it: no call and no task ends for it,
    unless a replacement waits for its end (`stop_first`).
    """
    pool = instance.pool
    return max(pool.policy.drain_s, pool.policy.max_total_s if pool.stop_first else MAX_HELD_S)
