"""Which instances exist: when one starts, what becomes of it, when it ends.

Owns the life of each instance: the stop ladder and what follows from an end. A pool has a `target`
(`targets`): `start_queue` brings it up to that, the roster ends what is too much. `liveness` judges. An
instance that leaves takes its lease with it, and its holder is told why.

Invariants (`check`): never more processes than the cap (one more while a replacement greets);
an instance past SPAWNING has a phase deadline unless it serves; `pool.serving` is exactly the
instances in SERVING; an instance that is asked to end is nobody's.

Knows nothing of: calls (but that an instance has some), JSON, how processes are started.
"""

from collections.abc import Callable
from typing import Final

from carpool_protocol.ids import InstanceId
from carpool_protocol.link.messages import Catalog
from carpool_protocol.machine.deadlines import Deadlines
from carpool_supervisor.core.calls import ask_evidence
from carpool_supervisor.core.calls.dispatcher import Desk
from carpool_supervisor.core.calls.leases import Leases
from carpool_supervisor.core.calls.refusals import died_text, ended_text, last_words, left_out
from carpool_supervisor.core.calls.task_holds import MAX_HELD_S
from carpool_supervisor.core.model.effects import (
    AnyEffect,
    CloseStdin,
    Forget,
    Note,
    Probe,
    SignalGroup,
    Spawn,
)
from carpool_supervisor.core.model.events import InstanceExited, SpawnFailed, StdinBroken
from carpool_supervisor.core.model.lifecycle import ACTIVE, ENDING, Happening, State
from carpool_supervisor.core.model.loss_causes import Cause
from carpool_supervisor.core.model.pool import MAX_LINGERING, Instance, Pool, Pools, not_plain
from carpool_supervisor.core.pools import demand
from carpool_supervisor.core.pools.circuit_breaker import Breakers
from carpool_supervisor.core.pools.eras import Eras, first_of
from carpool_supervisor.core.pools.liveness import Judgement, judge
from carpool_supervisor.core.pools.start_queue import Starts, falls_short

MUTE_GRACE_S: Final = 1.0
"""After its stdout was closed, or its stdin with no call open on it: most often it is just ending, and its
exit tells more.
"""
STDIN_GRACE_S: Final = 5.0
"""After its stdin was closed, by us or by itself: so long answers may come to what it has read."""
TERM_GRACE_S: Final = 2.0
DEAF: Final = "closed its stdin and went on running"
KILL_GRACE_S: Final = 5.0
"""After SIGKILL we wait again and again: only a process stuck in the kernel does not end."""


class Roster:
    """All instances of all pools."""

    def __init__(self, pools: Pools, desk: Desk, leases: Leases, out: Callable[[AnyEffect], None]) -> None:
        self._pools = pools
        self._desk = desk
        self._leases = leases
        self._out = out
        self.instances: dict[InstanceId, Instance] = {}
        self.eras = Eras(self.instances, out)
        self.starts = Starts(pools, self.instances, leases, start=self._start, drain=self._make_way)
        self.breakers = Breakers(desk, self.starts, out)
        self._most = self.starts.max_processes
        """The cap, or what ran when it was lowered: nothing is ended for that alone."""
        self._next_id = 1
        self.phases: Deadlines[InstanceId] = Deadlines()
        self.look_at: float | None = None
        """When the next look at idle and silent instances is due; None while nothing runs."""

    def limit(self, max_processes: int, max_greeting: int) -> None:
        """Set the process cap, and how many may greet at once."""
        self.starts.max_processes = max_processes
        self.starts.max_greeting = max_greeting
        self._most = max(max_processes, len(self.instances))

    def close(self, now: float) -> None:
        """The supervisor ends: everything stops."""
        self.starts.close()
        for pool in self._pools.values():
            pool.target = 0
        for instance in list(self.instances.values()):
            if instance.state not in ENDING:
                self.stop(instance, now)

    # --- starting --------------------------------------------------------------------------------------

    def _start(self, pool: Pool, now: float) -> Instance:
        pool.generations += 1
        instance = Instance(InstanceId(self._next_id), pool, pool.generations, now)
        self._next_id += 1
        self.instances[instance.id] = instance
        pool.instances[instance.id] = instance
        instance.heed()
        self.phases.arm(instance.id, now, pool.start_limit_s())
        self._watch(now)
        era = instance.era = first_of(pool)
        self._out(Spawn(instance.id, pool.key, pool.server, instance.generation, era))
        return instance

    def spawned(self, instance: Instance, pid: int, now: float) -> None:
        """The process runs."""
        instance.pid = pid
        if instance.state is State.SPAWNING:
            instance.move(Happening.SPAWNED)
            self.eras.spawned(instance, now)

    def greeted(self, instance: Instance, catalog: Catalog, now: float) -> None:
        """The instance is fit."""
        if instance.state is not State.GREETING:
            return
        instance.move(Happening.GREETED)
        instance.fit_at = instance.idle_since = now
        pool = instance.pool
        self.eras.greeted(instance, catalog)
        pool.ever_fit = True
        pool.serving.append(instance)
        self.phases.disarm(instance.id)
        if instance.is_deaf:  # it has answered what it had read, and can be given nothing more
            self._end_within(instance, MUTE_GRACE_S, now)
        self.starts.turns.disarm(instance.id)
        self.learn(pool, catalog, now)
        self.breakers.greeted(instance, now)
        if pool.active() > max(pool.target, 1):
            self.shrink(pool, now)
        self._desk.serve(pool, now)  # before anybody takes it for idle
        self.starts.fill(now)

    def learn(self, pool: Pool, catalog: Catalog, now: float) -> None:
        """Keep the catalog and say it unless the broker has just this."""
        asked_for, catalog = (
            pool.relisting and catalog is not pool.catalog,
            ask_evidence.stamped(pool, catalog),
        )
        if catalog.left_out and catalog.left_out != left_out(pool):
            self._out(Note("warning", f"{pool.server}: {catalog.left_out}"))
        if asked_for or catalog != pool.catalog:
            pool.catalog, pool.catalog_said = catalog, False
            pool.relisting &= not asked_for
            self.judge(pool, now)

    def judge(self, pool: Pool, now: float) -> None:
        """How it is shared may be another now. Where instances are leased no more, a holder keeps its own as
        it does after a reload.
        """
        pool.judge_sharing()
        if pool.mode != "session":
            self._leases.withdraw(pool.key)
            for instance in list(pool.serving):
                if self._leases.holder(instance.id) is not None:
                    self.wind_down(instance, now)

    # --- ending ----------------------------------------------------------------------------------------

    def drain(self, instance: Instance, now: float, cause: Cause = "restart") -> None:
        """Take no new call; end when nothing is open. Its holder is told the cause."""
        self._lose(instance, cause)
        if instance.state is State.SERVING and instance.busy:
            self._leaves_service(instance)
            instance.move(Happening.DRAIN)
            limit_s = _worn_s(instance) if instance.worn else instance.pool.policy.drain_s
            self.phases.arm(instance.id, now, limit_s)
        elif instance.state in ACTIVE:
            self.stop(instance, now, cause)
        else:
            self.relax(instance, now)

    def _make_way(self, instance: Instance, now: float, cause: Cause) -> None:
        """It goes so that another pool's can come: who waits for it hears so at once."""
        self.drain(instance, now, cause)
        self._desk.freed(instance, now)

    def wind_down(self, instance: Instance, now: float, cause: Cause = "reload") -> None:
        """It is not wanted any more: drain it, but its holder keeps it until `drain_s` is over (rule 15)."""
        instance.cause = cause
        if self._leases.holder(instance.id) is None:
            self.drain(instance, now)
        elif instance.state is State.SERVING:
            self._leaves_service(instance)
            instance.move(Happening.DRAIN)
            self.phases.arm(instance.id, now, instance.pool.policy.drain_s)

    def spare(self, instance: Instance, now: float, cause: Cause = "restart") -> None:
        """End it without another in its place."""
        pool = instance.pool
        if instance.counts:
            pool.target = max(pool.active() - 1, pool.policy.min_instances)
        self.drain(instance, now, cause)

    def stop(self, instance: Instance, now: float, cause: Cause = "reload") -> None:
        """Ask the process to end: its stdin is closed."""
        self._lose(instance, cause)
        self._leaves_service(instance)
        instance.move(Happening.STOP)
        self.phases.arm(instance.id, now, STDIN_GRACE_S)
        self._out(CloseStdin(instance.id))

    def condemn(self, instance: Instance, text: str, now: float, cause: Cause = "crash") -> None:
        """The instance is unfit: end it now; that counts as a failure. Its calls end at once."""
        if instance.state in (State.TERMINATING, State.KILLED, State.GONE):
            return
        instance.failure = text
        self._lose(instance, cause)
        self._leaves_service(instance)
        instance.move(Happening.CONDEMN)
        self.phases.arm(instance.id, now, TERM_GRACE_S)
        self._out(SignalGroup(instance.id, "TERM"))
        self._desk.instance_lost(instance, (), "instance_died", died_text(instance.pool, text, ""), now)

    def muted(self, instance: Instance, now: float) -> None:
        """Its stdout is closed: no answer can come. Most often it is just ending, and its exit tells more."""
        if instance.state in (State.SPAWNING, State.GREETING, State.SERVING):
            instance.suspended = True
            self.phases.arm(instance.id, now, MUTE_GRACE_S)

    def deafened(self, instance: Instance, event: StdinBroken, now: float) -> None:
        """It has closed its stdin. What it never got runs elsewhere; what it has read it may still answer for
        a moment. Then it is ended, and that counts as a failure: one that always does so is not to be started
        again and again without a pause.
        """
        if instance.state in ENDING:
            return
        first = not instance.is_deaf
        instance.is_deaf = instance.blocked = True
        self._desk.undelivered(instance, event.unwritten, now)
        instance.undelivered.update(event.unwritten)
        if instance.calls == len(instance.undelivered):
            self._leases.unused(instance.id)
        if first:
            self._end_within(instance, STDIN_GRACE_S, now)
        if not instance.in_flight:
            self._end_within(instance, MUTE_GRACE_S, now)

    def _end_within(self, instance: Instance, limit_s: float, now: float) -> None:
        due = self.phases.deadline_of(instance.id)
        if due is None or due > now + limit_s:
            self.phases.arm(instance.id, now, limit_s)

    def relax(self, instance: Instance, now: float) -> None:
        """A call or its lease ended: perhaps nothing is open any more on one that drains. One on which too
        many calls are over and may still run is replaced, unless they are all its holder's.
        """
        if instance.is_deaf and instance.state is State.SERVING and not instance.in_flight:
            self._end_within(instance, MUTE_GRACE_S, now)
        if self._leases.holder(instance.id) is not None:
            return
        if instance.state is State.DRAINING and not instance.busy:
            self.stop(instance, now)
        elif instance.state is State.SERVING and len(instance.lingering) >= MAX_LINGERING:
            self.drain(instance, now)
            self.starts.want(instance.pool)
            self.starts.fill(now)

    def exited(self, instance: Instance, event: InstanceExited, now: float) -> None:
        """The process is gone."""
        pool = instance.pool
        asked = instance.state in ENDING or instance.state is State.DRAINING or self.starts.closed
        never_fit = instance.fit_at is None
        failure = instance.failure
        if failure is None and not asked:
            failure = f"{event.how} before it had greeted" if never_fit else event.how
        instance.undelivered.update(event.unwritten)
        unused = instance.calls == len(instance.undelivered)
        first_words = never_fit or unused or pool.policy.stderr_in_errors
        text = died_text(pool, event.how, event.stderr if first_words else "")
        if failure is None and instance.state in ENDING:
            text = ended_text(pool, closing=self.starts.closed, worn=instance.worn)
        if unused:
            self._leases.unused(instance.id)
        self._remove(instance)
        self._desk.instance_lost(instance, event.unwritten, "instance_died", text, now)
        forgiven = self.eras.ended(instance, by_itself=instance.failure is None and not asked)
        if failure is not None and not forgiven:
            pool.stderr = event.stderr.splitlines()[-20:]
            words = last_words(event.stderr) if never_fit else ""
            self.breakers.failed(instance, failure, event.jitter, now, words=words)
        self._after_exit(pool, now)

    def spawn_failed(self, instance: Instance, event: SpawnFailed, now: float) -> None:
        """The process could not be started. Trying again helps only where the machine was at a limit."""
        self._remove(instance)
        if not self.starts.closed:
            self.breakers.failed(instance, event.text, event.jitter, now, hopeless=not event.passing)
        self._after_exit(instance.pool, now)

    def _after_exit(self, pool: Pool, now: float) -> None:
        self.starts.want(pool)
        self.starts.fill(now)

    def _remove(self, instance: Instance) -> None:
        self._lose(instance, "crash")
        self._leaves_service(instance)
        instance.move(Happening.EXITED)
        self.phases.disarm(instance.id)
        del self.instances[instance.id]
        del instance.pool.instances[instance.id]
        if not self.instances:
            self.look_at = None
        self._out(Forget(instance.id))

    def _leaves_service(self, instance: Instance) -> None:
        self.starts.turns.disarm(instance.id)
        if instance.state is State.SERVING:
            instance.pool.serving.remove(instance)
            self.breakers.left(instance)

    def _lose(self, instance: Instance, cause: Cause) -> None:
        """Nobody can hold it any longer."""
        if self._leases.lose(instance.id, cause) is not None:
            not_plain(instance.pool.server, self._pools)

    def shrink(self, pool: Pool, now: float) -> None:
        """End what is more than the pool may have: what is leased last."""
        surplus = max(pool.active() - pool.most, 0)
        order = sorted(
            [each for each in pool.serving if each.counts],
            key=lambda i: (self._leases.holder(i.id) is not None, i.busy, len(i.in_flight), i.idle_since),
        )
        for instance in order[:surplus]:
            self.wind_down(instance, now)
        pool.target = min(pool.target, pool.most)

    # --- time passes -----------------------------------------------------------------------------------

    def overdue(self, now: float) -> None:
        """What the passing of time alone decides."""
        self.starts.due(now)
        self.eras.overdue(now)
        for instance_id in self.phases.due(now):
            self._phase_over(self.instances[instance_id], now)
        if self.look_at is not None and self.look_at <= now:
            self.look_at = None
            for instance in list(self.instances.values()):
                self._look(instance, now)
            self._watch(now)
        self.starts.fill(now)

    def _phase_over(self, instance: Instance, now: float) -> None:
        match instance.state:
            case State.SPAWNING | State.GREETING if instance.unread_since is not None:
                self.phases.arm(instance.id, now, instance.pool.start_limit_s())  # its greeting may lie there
            case State.SPAWNING | State.GREETING if instance.is_deaf:
                self.condemn(instance, DEAF, now, "deaf")
            case State.SPAWNING | State.GREETING if instance.suspended:
                self.condemn(instance, "closed its stdout and went on running", now)
            case State.SPAWNING | State.GREETING:
                limit_s = instance.pool.start_limit_s()
                missing = f": it has not answered {instance.listing}" if instance.listing else ""
                self.condemn(instance, f"did not greet within {limit_s:g} s{missing}", now)
            case State.DRAINING:
                self.stop(instance, now, instance.cause)
            case State.STOPPING:
                instance.move(Happening.GRACE_OVER)
                self.phases.arm(instance.id, now, TERM_GRACE_S)
                self._out(SignalGroup(instance.id, "TERM"))
            case State.TERMINATING | State.KILLED:
                instance.move(Happening.GRACE_OVER)
                self.phases.arm(instance.id, now, KILL_GRACE_S)
                self._out(SignalGroup(instance.id, "KILL"))
            case State.SERVING if instance.is_deaf and instance.unread_since is not None:
                self.phases.arm(instance.id, now, STDIN_GRACE_S)  # answers may lie there
            case State.SERVING if instance.is_deaf:
                self.condemn(instance, DEAF, now, "deaf")
            case State.SERVING:
                self.condemn(instance, "closed its stdout and went on running", now, "mute")
            case State.GONE:
                pass

    def _look(self, instance: Instance, now: float) -> None:
        if instance.state is not State.SERVING:
            return
        self.breakers.look(instance, now)
        may_end = not instance.worn and demand.may_end(instance, self._leases)
        match judge(instance, now, may_end=may_end):
            case Judgement.END_IDLE:
                self.spare(instance, now)
            case Judgement.PROBE:
                self.probe(instance, now)
            case Judgement.SUSPEND:
                instance.suspended = True
            case Judgement.CONDEMN:
                text = f"was silent for {now - instance.last_heard:.0f} s, also to a ping"
                self.condemn(instance, text, now, "silent")
            case Judgement.NOTHING:
                pass

    def probe(self, instance: Instance, now: float) -> None:
        """Ping it, unless a ping is on its way."""
        if instance.state is State.SERVING and instance.probed_at is None:
            instance.probed_at = now
            self._out(Probe(instance.id))

    def doubt(self, instance: Instance, now: float) -> None:
        """It may have died while nobody looked: nothing is placed on it before it has answered (rule 8)."""
        if instance.state is State.SERVING:
            self.probe(instance, now)
            instance.suspended = True

    def heard(self, instance: Instance, now: float) -> None:
        """It said something: it lives."""
        instance.last_heard = now
        if instance.probed_at is not None:
            instance.probed_at = None
            if instance.suspended:
                instance.suspended = False
                self._desk.freed(instance, now)

    def _watch(self, now: float) -> None:
        if self.instances and self.look_at is None:
            shortest = min(
                (min(p.policy.idle_s, p.policy.probe_s) for p in self._pools.values()), default=10.0
            )
            self.look_at = now + min(max(shortest / 4, 0.05), 5.0)

    def next_deadline(self) -> float | None:
        """The earliest moment at which time alone decides something."""
        at = [self.look_at, *(each.next_deadline() for each in (self.phases, self.starts, self.eras))]
        return min((each for each in at if each is not None), default=None)

    def check_instance(self, instance: Instance) -> None:
        """Assert that it is where its state says, and stays there for ever only while it serves and reads."""
        assert instance.pool.instances[instance.id] is instance
        assert (instance in instance.pool.serving) == (instance.state is State.SERVING)
        assert instance.state is not State.GONE
        is_bounded = (instance.state is State.SERVING and not instance.is_deaf) or instance.id in self.phases
        assert is_bounded, f"instance {instance.id} may stay {instance.state} for ever"
        assert not (instance.state in ENDING and instance.failure is not None and instance.in_flight)

    def check(self) -> None:
        """Assert every invariant."""
        self.eras.check()
        self.breakers.check(self._pools)
        assert len(self.instances) <= self._most + 1, "more processes than the cap"
        for instance in self.instances.values():
            self.check_instance(instance)
        for pool in self._pools.values():
            condemned = any(i.failure is not None for i in pool.instances.values())  # its end decides
            if falls_short(pool) and not condemned and not self.starts.closed:
                assert self.starts.remembers(pool), f"{pool.key} is short and forgotten"
        assert self.look_at is not None or not self.instances


def _worn_s(instance: Instance) -> float:
    """How long what is only worn may drain. Nothing is wrong with it: no call and no task ends for it, unless
    others wait for its end (`stop_first`).
    """
    pool = instance.pool
    return max(pool.policy.drain_s, pool.policy.max_total_s if pool.stop_first else MAX_HELD_S)
