"""Which instances exist: when one starts, what becomes of it, when it ends.

Owns pool sizes, staggered starts, the process cap, the stop ladder, silence, restarts and
operators' words. A pool has a `target`; the roster starts instances until the pool has as many
active ones, as back-off, stagger and cap allow, and ends those that are too many or too old.

Invariants (`check`): never more processes than the cap (one more while a replacement greets);
an instance past SPAWNING has a phase deadline unless it serves; `pool.serving` is exactly the
instances in SERVING.

Knows nothing of: calls (but that an instance has some), JSON, how processes are started.
"""

from collections import OrderedDict
from collections.abc import Callable

from carpool_protocol.deadlines import Deadlines
from carpool_protocol.ids import InstanceId, PoolKey, WireId
from carpool_protocol.messages import Catalog, Operate, Operated, Wanted
from carpool_supervisor.core.desk import Desk, given_up_text, last_error
from carpool_supervisor.core.effects import AnyEffect, CloseStdin, Forget, Note, Probe, SignalGroup, Spawn
from carpool_supervisor.core.lifecycle import ACTIVE, ENDING, Happening, State
from carpool_supervisor.core.pool import Instance, Pool, Pools
from carpool_supervisor.core.restart import after_failure, after_operator

GREETING_TURN_S = 5.0
"""After this long a greeting no longer holds up the next start: a server that never greets blocks nobody."""
MUTE_GRACE_S = 1.0
STDIN_GRACE_S = 5.0
TERM_GRACE_S = 2.0
KILL_GRACE_S = 5.0
"""After SIGKILL we wait again and again: only a process stuck in the kernel does not end."""


class Roster:
    """All instances of all pools."""

    def __init__(self, pools: Pools, desk: Desk, out: Callable[[AnyEffect], None]) -> None:
        self._pools = pools
        self._desk = desk
        self._out = out
        self.max_processes = 64
        self._most = self.max_processes
        """The cap, or what ran when it was lowered: nothing is ended for that alone."""
        self.max_greeting = 3
        self.instances: dict[InstanceId, Instance] = {}
        self._next_id = 1
        self._queue: OrderedDict[PoolKey, None] = OrderedDict()
        self.phases: Deadlines[InstanceId] = Deadlines()
        self.turns: Deadlines[InstanceId] = Deadlines()
        """Greetings that still hold one of the `max_greeting` places (rule 2)."""
        self.starts: Deadlines[PoolKey] = Deadlines()
        """Pools in back-off."""
        self.look_at: float | None = None
        """When the next look at idle and silent instances is due; None while nothing runs."""
        self.closing = False

    # --- what is wanted --------------------------------------------------------------------------------

    def want(self, wanted: Wanted, now: float) -> None:
        """Take over the complete list of pools that are wanted."""
        self.max_processes = wanted.max_processes
        self._most = max(self.max_processes, len(self.instances))
        self.max_greeting = wanted.max_greeting
        keys = {spec.key for spec in wanted.pools}
        for spec in wanted.pools:
            pool = self._pools.get(spec.key)
            if pool is None:
                pool = self._pools[spec.key] = Pool(spec.key, spec.server, spec.policy)
                pool.start_after = spec.start_after
                pool.target = max(spec.policy.min_instances, 1 if spec.policy.auto_connect else 0)
            else:
                pool.policy = spec.policy
                pool.start_after = spec.start_after
                if not pool.wanted:
                    self._rewant(pool)
                pool.waiting.max_calls = spec.policy.max_waiting_calls
                pool.waiting.max_bytes = spec.policy.max_waiting_bytes
                if not pool.stopped and not pool.restart.given_up:
                    pool.target = max(pool.target, spec.policy.min_instances)
            self._shrink(pool, now)
            self.fill_pool(pool)
        for key in [key for key in self._pools if key not in keys]:
            self.retire(self._pools[key], now)
        self.fill(now)

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
            self.fill_pool(pool)
            self.fill(now)

    def discover(self, key: PoolKey, now: float) -> None:
        """Somebody needs the catalog."""
        pool = self._pools.get(key)
        if pool is None or not pool.wanted or pool.catalog is not None:
            return
        if pool.stopped or pool.restart.given_up:
            return
        if pool.target == 0:
            pool.target = 1
            self.fill_pool(pool)
            self.fill(now)

    def operate(self, word: Operate, now: float) -> None:
        """An operator's word. `Operated` follows when it has taken effect."""
        pool = self._pools.get(word.key)
        if pool is None or not pool.wanted:
            self._out(Operated(word.token, ok=False, text="no such pool: its configuration has just changed"))
            return
        pool.operations.append((word.token, word.verb, pool.generations))
        if word.verb == "stop":
            pool.stopped = True
            pool.target = 0
            self._desk.fail_waiting(pool, "stopped", "")
            self._end_all(pool, now)
            self.fill(now)  # one that was greeting has given back its turn
            return
        pool.stopped = False
        pool.restart = after_operator(pool.restart)
        pool.not_before = 0.0
        self.starts.disarm(pool.key)
        if word.verb == "restart":
            pool.target = max(pool.target, pool.policy.min_instances, 1)
            self._end_all(pool, now)
        elif pool.target == 0:
            pool.target = max(pool.policy.min_instances, 1)
        self.fill_pool(pool)
        self.fill(now)

    def close(self, now: float) -> None:
        """The supervisor ends: everything stops."""
        self.closing = True
        self._queue.clear()
        for pool in self._pools.values():
            pool.target = 0
            self.starts.disarm(pool.key)
        for instance in list(self.instances.values()):
            if instance.state not in ENDING:
                self.stop(instance, now)

    def retire(self, pool: Pool, now: float) -> None:
        """The pool is no longer wanted: when its line is empty it drains, when it is empty it goes."""
        pool.wanted = False
        if not pool.waiting:
            pool.target = 0
            self._queue.pop(pool.key, None)
            self.starts.disarm(pool.key)
            self._end_all(pool, now)
        # Who starts after this pool starts after the one before it too.
        before = self._pools.get(pool.start_after)
        waits = before is not None and not before.wanted
        if not pool.instances and not pool.waiting and not waits:
            self._finish_operations(pool)
            del self._pools[pool.key]

    # --- starting --------------------------------------------------------------------------------------

    def fill_pool(self, pool: Pool) -> None:
        """Put the pool in the queue of starts if it has too few instances."""
        if pool.active() < pool.target and not pool.stopped and not pool.restart.given_up:
            self._queue[pool.key] = None

    def fill(self, now: float) -> None:
        """Start what is queued, as stagger, back-off and cap allow."""
        if self.closing:
            return
        for key in list(self._queue):
            pool = self._pools.get(key)
            if pool is None or pool.active() >= pool.target or pool.stopped or pool.restart.given_up:
                del self._queue[key]
                continue
            if pool.start_after in self._pools:
                continue
            if pool.not_before > now:
                del self._queue[key]
                self.starts.arm(key, now, pool.not_before - now)
                continue
            while pool.active() < pool.target:
                if len(self.turns) >= self.max_greeting:
                    return
                if len(self.instances) >= self._room(pool) and not self._make_room(pool, now):
                    break
                if len(self.instances) >= self._room(pool):
                    break
                self._start(pool, now)
            else:
                del self._queue[key]

    def _room(self, pool: Pool) -> int:
        replaces = any(i.state is State.DRAINING for i in pool.instances.values())
        return self.max_processes + (1 if replaces else 0)

    def _make_room(self, needy: Pool, now: float) -> bool:
        """At the cap: end the least recently used idle instance; else thin out a pool that has several."""
        ending = sum(1 for i in self.instances.values() if i.state in ENDING or i.state is State.DRAINING)
        if ending:
            return False
        idle = [
            i
            for i in self.instances.values()
            if i.state is State.SERVING
            and not i.in_flight
            and i.pool is not needy
            and not i.pool.waiting
            and not i.pool.operations
            and i.pool.active() > i.pool.policy.min_instances
        ]
        several = [i for i in self.instances.values() if i.state is State.SERVING and i.pool.active() > 1]
        if idle:
            victim = min(idle, key=lambda i: i.idle_since)
        elif several and needy.active() == 0:
            victim = max(several, key=lambda i: i.pool.active())
        else:
            return False
        victim.pool.target = max(victim.pool.active() - 1, 0)
        self.drain(victim, now)
        return len(self.instances) < self.max_processes

    def _start(self, pool: Pool, now: float) -> None:
        pool.generations += 1
        instance = Instance(InstanceId(self._next_id), pool, pool.generations, now)
        self._next_id += 1
        self.instances[instance.id] = instance
        pool.instances[instance.id] = instance
        limit_s = pool.policy.start_s if pool.ever_fit else pool.policy.first_start_s
        self.phases.arm(instance.id, now, limit_s)
        self.turns.arm(instance.id, now, GREETING_TURN_S)
        self._watch(now)
        self._out(Spawn(instance.id, pool.key, pool.server, instance.generation))

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
        self.turns.disarm(instance.id)
        self.learn(pool, catalog)
        if pool.active() > max(pool.target, 1):
            self._shrink(pool, now)
        self._desk.serve(pool, now)  # before anybody takes it for idle
        self.fill(now)

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

    def exited(
        self, instance: Instance, how: str, unwritten: tuple[WireId, ...], stderr: str, jitter: float, now: float
    ) -> None:
        """The process is gone."""
        pool = instance.pool
        expected = instance.state in ENDING or instance.state is State.DRAINING or self.closing
        failure = instance.failure
        never_fit = instance.fit_at is None
        expected = expected and failure is None
        if failure is None and not expected:
            failure = f"{how} before it had greeted" if never_fit else how
        first_words = never_fit or instance.calls == 0 or pool.policy.stderr_in_errors
        self._remove(instance)
        self._desk.instance_lost(
            instance, unwritten, "instance_died", died_text(pool, how, stderr if first_words else ""), now
        )
        if failure is not None:
            pool.stderr = stderr.splitlines()[-20:]
            self._failed(instance, failure, jitter, now)
        self._after_exit(pool, now)

    def spawn_failed(self, instance: Instance, text: str, jitter: float, now: float) -> None:
        """The process could not be started: trying again cannot help until somebody changes something."""
        self._remove(instance)
        if not self.closing:
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
            self._queue.pop(pool.key, None)
            self._desk.fail_waiting(pool, "given_up", last_error(pool))
            self._out(Note("error", f"{pool.server} is {given_up_text(pool)}"))
        else:
            pool.not_before = now + delay_s

    def _after_exit(self, pool: Pool, now: float) -> None:
        if not pool.wanted:
            self.retire(pool, now)
        self.fill_pool(pool)
        self.fill(now)

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
        self.turns.disarm(instance.id)
        if instance.state is State.SERVING:
            instance.pool.serving.remove(instance)

    def _end_all(self, pool: Pool, now: float) -> None:
        for instance in list(pool.instances.values()):
            self.drain(instance, now)

    def _shrink(self, pool: Pool, now: float) -> None:
        surplus = pool.active() - max(pool.policy.max_instances, pool.policy.min_instances)
        for instance in sorted(pool.serving, key=lambda i: (len(i.in_flight), i.idle_since))[: max(surplus, 0)]:
            self.drain(instance, now)
        pool.target = min(pool.target, max(pool.policy.max_instances, pool.policy.min_instances))

    # --- time passes -----------------------------------------------------------------------------------

    def overdue(self, now: float) -> None:
        """What the passing of time alone decides."""
        for key in self.starts.due(now):
            self.fill_pool(self._pools[key])
        self.turns.due(now)
        for instance_id in self.phases.due(now):
            self._phase_over(self.instances[instance_id], now)
        if self.look_at is not None and self.look_at <= now:
            self.look_at = None
            for instance in list(self.instances.values()):
                self._look(instance, now)
            self._watch(now)
        self.fill(now)

    def _phase_over(self, instance: Instance, now: float) -> None:
        match instance.state:
            case State.SPAWNING | State.GREETING if instance.suspended:
                self.condemn(instance, "closed its stdout and went on running", now)
            case State.SPAWNING | State.GREETING:
                limit = instance.pool.policy.start_s if instance.pool.ever_fit else instance.pool.policy.first_start_s
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
        """Idle too long, or silent too long (rule 8)?"""
        if instance.state is not State.SERVING:
            return
        policy = instance.pool.policy
        pool = instance.pool
        idle = not instance.in_flight and now - instance.idle_since >= policy.idle_s
        if idle and not pool.waiting and pool.active() > policy.min_instances:
            pool.target = pool.active() - 1
            self.stop(instance, now)
            return
        if instance.probed_at is None:
            if now - instance.last_heard >= policy.probe_s:
                self.probe(instance, now)
            return
        silent_s = now - max(instance.probed_at, instance.last_heard)
        if silent_s >= policy.probe_s:
            instance.suspended = True
        longest = [opened.timeout_s for opened in instance.in_flight.values()]
        until = max(instance.lingering.values(), default=0.0)
        if silent_s >= max([policy.probe_s, policy.timeout_s, *longest]) and now >= until:
            self.condemn(instance, f"was silent for {now - instance.last_heard:.0f} s, also to a ping", now)

    def probe(self, instance: Instance, now: float) -> None:
        """Ping it, unless a ping is on its way."""
        if instance.state is State.SERVING and instance.probed_at is None:
            instance.probed_at = now
            self._out(Probe(instance.id))

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
                    self.turns.next_deadline(),
                    self.starts.next_deadline(),
                    self.look_at,
                )
                if at is not None
            ),
            default=None,
        )

    # --- operators wait --------------------------------------------------------------------------------

    def settle_operations(self, pool: Pool) -> None:
        """Answer the operators whose word has taken effect, or cannot."""
        left: list[tuple[int, str, int]] = []
        for token, verb, generation in pool.operations:
            text: str | None = None
            ok = True
            if verb == "stop":
                text = "stopped" if not pool.instances else None
                if not pool.stopped:
                    text, ok = "was started again meanwhile", False
            elif pool.stopped:
                text, ok = "was stopped meanwhile", False
            elif pool.restart.given_up:
                text, ok = given_up_text(pool), False
            elif pool.serving and (verb == "start" or any(i.generation > generation for i in pool.serving)):
                text = "serving"
            if text is None:
                left.append((token, verb, generation))
            else:
                self._out(Operated(token, ok, text))
        pool.operations = left

    def _finish_operations(self, pool: Pool) -> None:
        for token, verb, _ in pool.operations:
            self._out(Operated(token, ok=verb == "stop", text="is no longer configured"))
        pool.operations = []

    def check(self) -> None:
        """Assert every invariant."""
        assert len(self.instances) <= self._most + 1, "more processes than the cap"
        for instance in self.instances.values():
            assert instance.pool.instances[instance.id] is instance
            assert (instance in instance.pool.serving) == (instance.state is State.SERVING)
            assert instance.state is not State.GONE
            if instance.state is not State.SERVING:
                assert instance.id in self.phases, f"instance {instance.id} may stay {instance.state} for ever"
            if instance.state in ENDING:
                assert instance.failure is None or not instance.in_flight
        for pool in self._pools.values():
            ready = pool.active() < pool.target and not pool.stopped and not pool.restart.given_up
            condemned = any(i.failure is not None for i in pool.instances.values())  # its end decides
            if ready and not condemned and not self.closing:
                assert pool.key in self._queue or pool.key in self.starts, f"{pool.key} is short and forgotten"
        assert self.look_at is not None or not self.instances


def died_text(pool: Pool, how: str, stderr: str) -> str:
    """What became of it (rule 7: stderr is not for everybody)."""
    if stderr:
        return f"It {how}. Its last words:\n{stderr}"
    return f"It {how}; `carpool logs {pool.server}` may tell why."
