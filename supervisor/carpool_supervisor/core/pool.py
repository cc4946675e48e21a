"""The records of the supervisor core: pools, their instances, their open calls.

Owns the shape of these records and what can be said from one of them alone: which instance
takes the next call, what state a pool is in. Who changes them: `roster` (instances) and `desk` (calls).

Knows nothing of: effects, deadlines, other pools.
"""

from carpool_protocol.ids import CallId, InstanceId, PoolKey, ServerName, WireId
from carpool_protocol.messages import (
    Call,
    Catalog,
    InstanceReport,
    Policy,
    PoolChanged,
    PoolReport,
    PoolState,
)
from carpool_supervisor.core.lifecycle import ACTIVE, Happening, State, follow
from carpool_supervisor.core.restart import FRESH, RestartState
from carpool_supervisor.core.waiting import Waiting


class OpenCall:
    """One call between its arrival and its one end."""

    __slots__ = ("call", "instance", "size_bytes", "timeout_s", "total_at", "wire")

    def __init__(self, call: Call, timeout_s: float) -> None:
        self.call = call
        self.timeout_s = timeout_s
        self.total_at = 0.0
        """When it has run for the longest time allowed, since it was placed."""
        self.size_bytes = len(call.params) + len(call.meta) + 256
        self.instance: Instance | None = None
        """None while it waits in line."""
        self.wire = WireId(0)


class Instance:
    """One process of a pool."""

    __slots__ = (
        "blocked", "calls", "failure", "fit_at", "generation", "id", "idle_since", "in_flight", "last_heard",
        "lingering", "next_wire", "pid", "pool", "probed_at", "spawned_at", "state", "suspended",
    )  # fmt: skip

    def __init__(self, instance: InstanceId, pool: "Pool", generation: int, now: float) -> None:
        self.id = instance
        self.pool = pool
        self.generation = generation
        self.state = State.SPAWNING
        self.pid = 0
        self.spawned_at = now
        self.fit_at: float | None = None
        self.last_heard = now
        self.probed_at: float | None = None
        """When the ping went out that is not answered yet."""
        self.in_flight: dict[WireId, OpenCall] = {}
        self.lingering: dict[WireId, float] = {}
        """Calls that ended for the agent but may still run (rule 5): until when their silence counts."""
        self.next_wire = 1
        self.calls = 0
        self.idle_since = now
        self.blocked = False
        """It does not read its stdin."""
        self.suspended = False
        """It did not answer a probe: nothing new is placed on it."""
        self.failure: str | None = None
        """Why we end it, where that counts as a failure."""

    def move(self, happening: Happening) -> None:
        """Follow the table."""
        self.state = follow(self.state, happening, f"instance {self.id} of {self.pool.server}")


class Pool:
    """The instances of one server (per key), with its size policy."""

    def __init__(self, key: PoolKey, server: ServerName, policy: Policy) -> None:
        self.key = key
        self.server = server
        self.policy = policy
        self.wanted = True
        self.stopped = False
        """By an operator."""
        self.restart: RestartState = FRESH
        self.not_before = 0.0
        """No start before this time (back-off)."""
        self.target = 0
        """How many active instances there should be now."""
        self.instances: dict[InstanceId, Instance] = {}
        self.serving: list[Instance] = []
        self.waiting = Waiting(policy.max_waiting_calls, policy.max_waiting_bytes)
        self.start_after = PoolKey("")
        """The pool that this one replaces and that must be gone before it may start."""
        self.stop_first = False
        """No instance starts before every older one has ended."""
        self.level = ""
        """The most verbose log level that is wanted; empty: none."""
        self.uris: tuple[str, ...] = ()
        """Resources whose changes are wanted."""
        self.catalog: Catalog | None = None
        self.catalog_said = False
        self.generations = 0
        self.ever_fit = False
        self.last_error = ""
        self.stderr: list[str] = []
        """The last lines of the instance that failed last."""
        self.said: PoolChanged | None = None
        self.operations: list[tuple[int, str, int]] = []
        """(token, verb, generation at that time) of operators who wait."""

    def pick(self) -> Instance | None:
        """The instance with the fewest unanswered calls that can take one more."""
        best: Instance | None = None
        fewest = self.policy.max_in_flight
        for instance in self.serving:
            load = len(instance.in_flight)
            if load < fewest and not instance.blocked and not instance.suspended:
                best, fewest = instance, load
        return best

    def active(self) -> int:
        """How many instances count towards the pool's size."""
        return sum(1 for instance in self.instances.values() if instance.state in ACTIVE)

    def state(self, now: float) -> PoolState:
        """What the broker and people are told."""
        if not self.wanted:
            return "draining"
        if self.stopped:
            return "stopped"
        if self.serving:
            return "serving"
        if self.restart.given_up:
            return "given_up"
        if any(i.state in (State.SPAWNING, State.GREETING) for i in self.instances.values()):
            return "starting"
        if self.target > 0 and self.not_before > now:
            return "backing_off"
        return "starting" if self.target > 0 else "cold"

    def report(self, now: float) -> PoolReport:
        """For `status`; memory and CPU are the shell's to add."""
        return PoolReport(
            key=self.key,
            server=self.server,
            state=self.state(now),
            sharing="concurrent",
            waiting=len(self.waiting),
            restarts=self.restart.restarts,
            last_error=self.last_error,
            stderr_tail=list(self.stderr),
            instances=[
                InstanceReport(
                    id=i.id,
                    pid=i.pid,
                    state=("suspended" if i.suspended and i.state is State.SERVING else i.state.value),
                    generation=i.generation,
                    era="handshake",
                    in_flight=len(i.in_flight),
                    calls=i.calls,
                    rss_bytes=0,
                    pss_bytes=0,
                    cpu_percent=0.0,
                    uptime_s=now - i.spawned_at,
                )
                for i in self.instances.values()
            ],
        )


def timeout_of(policy: Policy, call: Call) -> float:
    """The idle timeout of this call in seconds."""
    if policy.tool_timeouts_s:
        return policy.tool_timeouts_s.get(call.target, policy.timeout_s)
    return policy.timeout_s


Calls = dict[CallId, OpenCall]
Pools = dict[PoolKey, Pool]
