"""Which instances exist: when one starts, what becomes of it, when it ends.

Owns pool sizes, the stop ladder and what follows from an end. A pool has a `target`: `starts`
brings it up to that, the roster ends what is too much. `silence` judges, `operators` remembers
who waits for what.

Invariants (`check`): never more processes than the cap (one more while a replacement greets);
an instance past SPAWNING has a phase deadline unless it serves; `pool.serving` is exactly the
instances in SERVING.

Knows nothing of: calls (but that an instance has some), JSON, how processes are started.
"""

from collections.abc import Callable
from typing import Final

from carpool_protocol.deadlines import Deadlines
from carpool_protocol.ids import InstanceId, PoolKey
from carpool_protocol.messages import Catalog, Operate, Operated, Wanted
from carpool_supervisor.core import operators
from carpool_supervisor.core.desk import Desk, given_up_text, last_error
from carpool_supervisor.core.effects import AnyEffect, CloseStdin, Forget, Note, Probe, SignalGroup, Spawn
from carpool_supervisor.core.events import InstanceExited
from carpool_supervisor.core.lifecycle import ACTIVE, ENDING, Happening, State
from carpool_supervisor.core.pool import Instance, Pool, Pools
from carpool_supervisor.core.restart import after_failure
from carpool_supervisor.core.silence import Judgement, judge
from carpool_supervisor.core.starts import Starts, falls_short

MUTE_GRACE_S: Final = 1.0
"""After its stdout was closed: most often it is just ending, and its exit tells more."""
STDIN_GRACE_S: Final = 5.0
TERM_GRACE_S: Final = 2.0
KILL_GRACE_S: Final = 5.0
"""After SIGKILL we wait again and again: only a process stuck in the kernel does not end."""


class Roster:
    """All instances of all pools."""

    def __init__(self, pools: Pools, desk: Desk, out: Callable[[AnyEffect], None]) -> None:
        self._pools = pools
        self._desk = desk
        self._out = out
        self.instances: dict[InstanceId, Instance] = {}
        self.starts = Starts(pools, self.instances, start=self._start, drain=self.drain)
        self._most = self.starts.max_processes
        """The cap, or what ran when it was lowered: nothing is ended for that alone."""
        self._next_id = 1
        self.phases: Deadlines[InstanceId] = Deadlines()
        self.look_at: float | None = None
        """When the next look at idle and silent instances is due; None while nothing runs."""

    # --- what is wanted --------------------------------------------------------------------------------

    def want(self, wanted: Wanted, now: float) -> None:
        """Take over the complete list of pools that are wanted."""
        self.starts.max_processes = wanted.max_processes
        self.starts.max_greeting = wanted.max_greeting
        self._most = max(wanted.max_processes, len(self.instances))
        keys = {spec.key for spec in wanted.pools}
        for spec in wanted.pools:
            pool = self._pools.get(spec.key)
            if pool is None:
                pool = self._pools[spec.key] = Pool(spec.key, spec.server, spec.policy)
                pool.start_after, pool.stop_first = spec.start_after, spec.stop_first
                pool.target = max(spec.policy.min_instances, 1 if spec.policy.auto_connect else 0)
            else:
                pool.policy = spec.policy
                pool.start_after, pool.stop_first = spec.start_after, spec.stop_first
                if not pool.wanted:
                    self._rewant(pool)
                pool.waiting.max_calls = spec.policy.max_waiting_calls
                pool.waiting.max_bytes = spec.policy.max_waiting_bytes
                if not pool.stopped and not pool.restart.given_up:
                    pool.target = max(pool.target, spec.policy.min_instances)
            self._shrink(pool, now)
            self.starts.want(pool)
        for key in [key for key in self._pools if key not in keys]:
            self.retire(self._pools[key], now)
        self.starts.fill(now)

    def _rewant(self, pool: Pool) -> None:
        """It was on its way out, and the broker has forgotten it: all about it is news again."""
        pool.wanted = True
        pool.said = None
        pool.catalog_said = False
        if not pool.serving:  # the next instance tells it; `discover` starts none where it is known
            pool.catalog = None
        if pool.policy.auto_connect:
            pool.target = max(pool.target, 1)

    def grow(self, pool: Pool, now: float) -> None:
        """There is more to do than the instances at hand can take."""
        active = pool.active()
        if active < pool.policy.max_instances and pool.target <= active:
            if active and any(i.state in (State.SPAWNING, State.GREETING) for i in pool.instances.values()):
                return
            pool.target = active + 1
            self.starts.want(pool)
            self.starts.fill(now)

    def discover(self, key: PoolKey, now: float) -> None:
        """Somebody needs the catalog."""
        pool = self._pools.get(key)
        if pool is None or not pool.wanted or pool.catalog is not None:
            return
        if pool.stopped or pool.restart.given_up:
            return
        if pool.target == 0:
            pool.target = 1
            self.starts.want(pool)
            self.starts.fill(now)

    def operate(self, word: Operate, now: float) -> None:
        """An operator's word. `Operated` follows when it has taken effect."""
        pool = self._pools.get(word.key)
        if pool is None or not pool.wanted:
            self._out(Operated(word.token, ok=False, text="no such pool: its configuration has just changed"))
            return
        operators.take_word(pool, word)
        self.starts.delays.disarm(pool.key)
        if word.verb == "stop":
            self._desk.fail_waiting(pool, "stopped", "")
        if word.verb != "start":
            self._end_all(pool, now)
        self.starts.want(pool)
        self.starts.fill(now)

    def close(self, now: float) -> None:
        """The supervisor ends: everything stops."""
        self.starts.close()
        for pool in self._pools.values():
            pool.target = 0
        for instance in list(self.instances.values()):
            if instance.state not in ENDING:
                self.stop(instance, now)

    def retire(self, pool: Pool, now: float) -> None:
        """The pool is no longer wanted: when its line is empty it drains, when it is empty it goes."""
        pool.wanted = False
        if not pool.waiting:
            pool.target = 0
            self.starts.unwant(pool.key)
            self._end_all(pool, now)
        # Who starts after this pool starts after the one before it too.
        before = self._pools.get(pool.start_after)
        waits = before is not None and not before.wanted
        if not pool.instances and not pool.waiting and not waits:
            operators.dismiss(pool, self._out)
            del self._pools[pool.key]

    # --- starting --------------------------------------------------------------------------------------

    def _start(self, pool: Pool, now: float) -> Instance:
        pool.generations += 1
        instance = Instance(InstanceId(self._next_id), pool, pool.generations, now)
        self._next_id += 1
        self.instances[instance.id] = instance
        pool.instances[instance.id] = instance
        limit_s = pool.policy.start_s if pool.ever_fit else pool.policy.first_start_s
        self.phases.arm(instance.id, now, limit_s)
        self._watch(now)
        self._out(Spawn(instance.id, pool.key, pool.server, instance.generation))
        return instance

    def spawned(self, instance: Instance, pid: int) -> None:
        """The process runs."""
        instance.pid = pid
        if instance.state is State.SPAWNING:
            instance.move(Happening.SPAWNED)

    def greeted(self, instance: Instance, catalog: Catalog, now: float) -> None:
        """The instance is fit."""
        if instance.state is not State.GREETING:
            return
        instance.move(Happening.GREETED)
        instance.fit_at = instance.idle_since = now
        pool = instance.pool
        pool.ever_fit = True
        pool.serving.append(instance)
        self.phases.disarm(instance.id)
        self.starts.turns.disarm(instance.id)
        self.learn(pool, catalog)
        if pool.active() > max(pool.target, 1):
            self._shrink(pool, now)
        self._desk.serve(pool, now)  # before anybody takes it for idle
        self.starts.fill(now)

    def learn(self, pool: Pool, catalog: Catalog) -> None:
        """Keep the catalog and say it unless the broker has just this."""
        if catalog != pool.catalog:
            pool.catalog = catalog
            pool.catalog_said = False

    # --- ending ----------------------------------------------------------------------------------------

    def drain(self, instance: Instance, now: float) -> None:
        """Take no new call; end when nothing is open."""
        if instance.state is State.SERVING and instance.in_flight:
            self._leaves_service(instance)
            instance.move(Happening.DRAIN)
            self.phases.arm(instance.id, now, instance.pool.policy.drain_s)
        elif instance.state in ACTIVE:
            self.stop(instance, now)

    def stop(self, instance: Instance, now: float) -> None:
        """Ask the process to end: its stdin is closed."""
        self._leaves_service(instance)
        instance.move(Happening.STOP)
        self.phases.arm(instance.id, now, STDIN_GRACE_S)
        self._out(CloseStdin(instance.id))

    def condemn(self, instance: Instance, text: str, now: float) -> None:
        """The instance is unfit: end it now; that counts as a failure. Its calls end at once."""
        if instance.state in (State.TERMINATING, State.KILLED, State.GONE):
            return
        instance.failure = text
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

    def relax(self, instance: Instance, now: float) -> None:
        """A call of a draining instance ended: perhaps nothing is open any more."""
        if instance.state is State.DRAINING and not instance.in_flight:
            self.stop(instance, now)

    def exited(self, instance: Instance, event: InstanceExited, now: float) -> None:
        """The process is gone."""
        pool = instance.pool
        asked = instance.state in ENDING or instance.state is State.DRAINING or self.starts.closed
        never_fit = instance.fit_at is None
        failure = instance.failure
        if failure is None and not asked:
            failure = f"{event.how} before it had greeted" if never_fit else event.how
        first_words = never_fit or instance.calls == 0 or pool.policy.stderr_in_errors
        text = died_text(pool, event.how, event.stderr if first_words else "")
        self._remove(instance)
        self._desk.instance_lost(instance, event.unwritten, "instance_died", text, now)
        if failure is not None:
            pool.stderr = event.stderr.splitlines()[-20:]
            self._failed(instance, failure, event.jitter, now)
        self._after_exit(pool, now)

    def spawn_failed(self, instance: Instance, text: str, jitter: float, now: float) -> None:
        """The process could not be started: trying again cannot help until somebody changes something."""
        self._remove(instance)
        if not self.starts.closed:
            self._failed(instance, text, jitter, now, hopeless=True)
        self._after_exit(instance.pool, now)

    def _failed(
        self, instance: Instance, why: str, jitter: float, now: float, *, hopeless: bool = False
    ) -> None:
        pool = instance.pool
        lived_s = 0.0 if instance.fit_at is None else now - instance.fit_at
        pool.last_error = why
        pool.restart, delay_s = after_failure(
            pool.policy, pool.restart, lived_s=lived_s, jitter=jitter, hopeless=hopeless
        )
        self._out(Note("warning", f"{pool.server} #{instance.id} {why}"))
        if pool.restart.given_up:
            if pool.serving:
                pool.target = pool.active()
                return
            pool.target = 0
            self.starts.unwant(pool.key)
            self._desk.fail_waiting(pool, "given_up", last_error(pool))
            self._out(Note("error", f"{pool.server} is {given_up_text(pool)}"))
        else:
            pool.not_before = now + delay_s

    def _after_exit(self, pool: Pool, now: float) -> None:
        if not pool.wanted:
            self.retire(pool, now)
        self.starts.want(pool)
        self.starts.fill(now)

    def _remove(self, instance: Instance) -> None:
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

    def _end_all(self, pool: Pool, now: float) -> None:
        for instance in list(pool.instances.values()):
            self.drain(instance, now)

    def _shrink(self, pool: Pool, now: float) -> None:
        surplus = pool.active() - max(pool.policy.max_instances, pool.policy.min_instances)
        for instance in sorted(pool.serving, key=lambda i: (len(i.in_flight), i.idle_since))[
            : max(surplus, 0)
        ]:
            self.drain(instance, now)
        pool.target = min(pool.target, max(pool.policy.max_instances, pool.policy.min_instances))

    # --- time passes -----------------------------------------------------------------------------------

    def overdue(self, now: float) -> None:
        """What the passing of time alone decides."""
        self.starts.due(now)
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
            case State.SPAWNING | State.GREETING if instance.suspended:
                self.condemn(instance, "closed its stdout and went on running", now)
            case State.SPAWNING | State.GREETING:
                limit = (
                    instance.pool.policy.start_s
                    if instance.pool.ever_fit
                    else instance.pool.policy.first_start_s
                )
                self.condemn(instance, f"did not greet within {limit:g} s", now)
            case State.DRAINING:
                self.stop(instance, now)
            case State.STOPPING:
                instance.move(Happening.GRACE_OVER)
                self.phases.arm(instance.id, now, TERM_GRACE_S)
                self._out(SignalGroup(instance.id, "TERM"))
            case State.TERMINATING | State.KILLED:
                instance.move(Happening.GRACE_OVER)
                self.phases.arm(instance.id, now, KILL_GRACE_S)
                self._out(SignalGroup(instance.id, "KILL"))
            case State.SERVING:
                self.condemn(instance, "closed its stdout and went on running", now)
            case State.GONE:
                pass

    def _look(self, instance: Instance, now: float) -> None:
        if instance.state is not State.SERVING:
            return
        match judge(instance, now):
            case Judgement.END_IDLE:
                instance.pool.target = instance.pool.active() - 1
                self.stop(instance, now)
            case Judgement.PROBE:
                self.probe(instance, now)
            case Judgement.SUSPEND:
                instance.suspended = True
            case Judgement.CONDEMN:
                self.condemn(
                    instance, f"was silent for {now - instance.last_heard:.0f} s, also to a ping", now
                )
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
                self._desk.serve(instance.pool, now)

    def _watch(self, now: float) -> None:
        if self.instances and self.look_at is None:
            shortest = min(
                (min(p.policy.idle_s, p.policy.probe_s) for p in self._pools.values()), default=10.0
            )
            self.look_at = now + min(max(shortest / 4, 0.05), 5.0)

    def next_deadline(self) -> float | None:
        """The earliest moment at which time alone decides something."""
        return min(
            (
                at
                for at in (
                    self.phases.next_deadline(),
                    self.starts.next_deadline(),
                    self.look_at,
                )
                if at is not None
            ),
            default=None,
        )

    def check(self) -> None:
        """Assert every invariant."""
        assert len(self.instances) <= self._most + 1, "more processes than the cap"
        for instance in self.instances.values():
            assert instance.pool.instances[instance.id] is instance
            assert (instance in instance.pool.serving) == (instance.state is State.SERVING)
            assert instance.state is not State.GONE
            if instance.state is not State.SERVING:
                assert instance.id in self.phases, (
                    f"instance {instance.id} may stay {instance.state} for ever"
                )
            if instance.state in ENDING:
                assert instance.failure is None or not instance.in_flight
        for pool in self._pools.values():
            condemned = any(i.failure is not None for i in pool.instances.values())  # its end decides
            if falls_short(pool) and not condemned and not self.starts.closed:
                assert self.starts.remembers(pool), f"{pool.key} is short and forgotten"
        assert self.look_at is not None or not self.instances


def died_text(pool: Pool, how: str, stderr: str) -> str:
    """What became of it (rule 7: stderr is not for everybody)."""
    if stderr:
        return f"It {how}. Its last words:\n{stderr}"
    return f"It {how}; `carpool logs {pool.server}` may tell why."
