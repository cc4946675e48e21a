"""The records of the supervisor's core: pools, their instances, their open calls.

Owns the shape of these records and all facts that follow from one record alone, such as the state of a pool.
`instances` changes the instances, `dispatcher` the calls.

Knows nothing of: effects, deadlines, other pools.
"""

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from carpool_protocol.counters.snapshot import ServerCounts
from carpool_protocol.ids import CallId, InstanceId, PoolKey, RawJson, ServerName, SessionId, WireId
from carpool_protocol.link.messages import Call, Catalog, Era, EraWish, Mode, Policy, PoolChanged, PoolState
from carpool_supervisor.core.model.attribution import CAN_ASK, InFlight
from carpool_supervisor.core.model.breaker_policy import FRESH, RestartState
from carpool_supervisor.core.model.fair_queue import FairQueue
from carpool_supervisor.core.model.instance_limits import NEVER, max_calls
from carpool_supervisor.core.model.lifecycle import ACTIVE, InstanceState, LifecycleEvent, next_state
from carpool_supervisor.core.model.loss_causes import LossCause
from carpool_supervisor.core.model.sharing import (
    Evidence,
    EvidenceKind,
    SharingVerdict,
    decide_sharing,
    most_instances,
)
from carpool_supervisor.core.model.trace_context import TraceKey
from carpool_supervisor.core.model.well_known import WellKnownServer


class PoolCall:
    """One call from its arrival to its only end."""

    __slots__ = (
        "announced_wait_s", "asks", "awaits_retry", "call", "instance", "placed_at", "queued_at",
        "size_bytes", "timeout_s", "total_at", "trace", "url_elicitation_first", "urls", "wire",
    )  # fmt: skip

    def __init__(self, call: Call, timeout_s: float) -> None:
        self.call = call
        self.timeout_s = timeout_s
        self.total_at = 0.0
        """The time at which it has run for the longest time allowed since its placement."""
        self.size_bytes = len(call.params) + len(call.meta) + 256
        self.instance: Instance | None = None
        """None while it is queued."""
        self.wire = WireId(0)
        self.trace: TraceKey | None = None
        """The trace context that it was written with, if its server may ask or the call is traced."""
        self.placed_at = 0.0
        """The time at which a traced or timed call was last handed to an instance."""
        self.queued_at = -1.0
        """The time at which a timed call began to wait; negative: it has not waited."""
        self.announced_wait_s: float | None = None
        """The seconds that it could still wait when its agent was last told; they only decrease."""
        self.url_elicitation_first = False
        """The answer that comes next sends its agent to URLs first."""
        self.urls: tuple[RawJson, ...] = ()
        """Those URLs, if its broker must know them."""
        self.asks = 0
        """Open asks to its agent; while there are any, its idle timeout is paused (rule 14)."""
        self.awaits_retry = False
        """Stateless era: it is between two rounds, so the server does not run it (`between_rounds`)."""

    @property
    def is_idle_paused(self) -> bool:
        """True if its idle timeout is paused: its agent is asked, or the stdout of its instance is
        not read.
        """
        return self.asks > 0 or (self.instance is not None and self.instance.unread_since is not None)


class AbandonedCall(Struct, frozen=True):
    """A call that ended for its agent and may still run in the server (rule 5)."""

    call: CallId
    session: SessionId
    can_ask: bool
    trace: TraceKey | None
    since: float
    until: float
    """Until this time its silence counts as work on it."""


MAX_ABANDONED: Final = 1024
"""Abandoned calls for each instance. None is forgotten, because it may still ask: an instance with this many
is drained and replaced. Only a leased instance forgets the oldest ones: they are its holder's like all its
calls, so no ask can be attributed wrongly, and the holder keeps its state.
"""


class Instance:
    """One process of a pool."""

    __slots__ = (
        "abandoned", "asks", "asks_closed_at", "blocked", "calls", "cause", "end_reason", "era",
        "failure", "fit_at", "generation", "held_tasks", "id", "idle_since", "in_flight",
        "is_stdin_closed", "last_output_at", "limit_reached", "list_request", "next_wire", "node",
        "node_session", "over_rss_count", "pid", "pool", "probed_at", "probed_era",
        "recycle_pending_since", "refusals", "review_from", "rss_mb", "spawned_at", "state",
        "suspended", "tasks", "undelivered", "unread_since",
    )  # fmt: skip

    def __init__(self, instance: InstanceId, pool: "Pool", generation: int, now: float) -> None:
        self.id = instance
        self.pool = pool
        self.generation = generation
        self.era: Era = "handshake"
        """The era that it speaks; until it has greeted, the era of its first greeting."""
        self.probed_era = False
        """It was sent `server/discover` and has not answered."""
        self.refusals: dict[Era, str] = {}
        """Its answers to greetings in eras that it does not speak."""
        self.state = InstanceState.SPAWNING
        self.pid = 0
        self.node = ""
        """The node at which it is a session in place of a process; empty: it is a process."""
        self.node_session = 0
        """The number of that session."""
        self.spawned_at = now
        self.fit_at: float | None = None
        self.last_output_at = now
        self.probed_at: float | None = None
        """The time of the unanswered ping."""
        self.unread_since: float | None = None
        """The time since which its stdout is not read; None: it is read."""
        self.asks = 0
        """Open asks of this server."""
        self.asks_closed_at = now
        """The time at which the last of these was closed."""
        self.in_flight: dict[WireId, PoolCall] = {}
        self.abandoned: dict[WireId, AbandonedCall] = {}
        """Calls that ended for the agent but may still run (rule 5)."""
        self.tasks: dict[str, WireId] = {}
        """Tasks that the server runs for a call, by its own task id."""
        self.held_tasks: set[str] = set()
        """Tasks that agents poll themselves, by the server's own id (`task_holds`)."""
        self.next_wire = 1
        self.calls = 0
        self.undelivered: set[WireId] = set()
        """Calls among these that never reached it, according to its shell."""
        self.idle_since = now
        self.blocked = False
        """It does not read its stdin."""
        self.list_request = ""
        """The method of the open list request; empty: none is open."""
        self.is_stdin_closed = False
        """It has closed its stdin for ever."""
        self.suspended = False
        """It has not answered a probe: no new call is placed on it."""
        self.failure: str | None = None
        """The reason why carpool ends it, if that counts as a failure."""
        self.end_reason = ""
        """The reason why carpool ends it, as a clause for logs and errors; empty: none."""
        self.cause: LossCause = "reload"
        """The loss cause for its holder if it ends while it drains."""
        self.rss_mb = 0
        """Memory of its processes, as last measured, in MiB."""
        self.over_rss_count = 0
        """Measurements in a row above its memory limit."""
        self.review_from = NEVER
        """From this number of calls on each answer is reviewed, for a limit or a trial."""
        self.limit_reached = ""
        """The limit that it has reached; a replacement is due (`recycling`)."""
        self.recycle_pending_since: float | None = None
        """Since then it waits for a moment in which no call runs on it, to be recycled."""

    def note_end(self, reason: str) -> None:
        """Carpool ends it because of this, unless another reason came first."""
        self.end_reason = self.end_reason or reason

    def update_review(self) -> None:
        """Set the number of calls from which answers are reviewed."""
        reached = NEVER if self.limit_reached else max_calls(self.pool.policy, self.generation)
        self.review_from = 0 if self.pool.trial is self else reached

    @property
    def is_counted(self) -> bool:
        """True if it counts for the size of its pool."""
        return self.state in ACTIVE and not self.limit_reached

    @property
    def is_busy(self) -> bool:
        """True if it runs calls or holds tasks."""
        return bool(self.in_flight or self.held_tasks)

    def ask_candidates(self) -> list[InFlight]:
        """Everything in flight in rule 5's sense: the calls that an ask may belong to."""
        live = [
            InFlight(wire, each.call.session, each.call.method in CAN_ASK, each.trace)
            for wire, each in self.in_flight.items()
        ]
        over = [
            InFlight(wire, each.session, each.can_ask, each.trace, over=True)
            for wire, each in self.abandoned.items()
        ]
        return live + over

    def forget_sessions(self) -> None:
        """Forget the sessions of abandoned calls, because the broker that knew them is gone."""
        for wire, each in self.abandoned.items():
            self.abandoned[wire] = replace(each, session=SessionId(""))

    def has_room(self) -> bool:
        """True if one more call can be written to it."""
        return (
            not self.blocked
            and not self.suspended
            and len(self.in_flight) < self.pool.max_in_flight
            and self.state in (InstanceState.SERVING, InstanceState.DRAINING)
        )

    def has_asking_call(self) -> bool:
        """True if a call in flight, in rule 5's sense, can ask."""
        return any(
            each.call.method in CAN_ASK and not each.awaits_retry for each in self.in_flight.values()
        ) or any(each.can_ask for each in self.abandoned.values())

    def transition(self, happening: LifecycleEvent) -> None:
        """Go to the next state of the lifecycle table."""
        self.state = next_state(self.state, happening, f"instance {self.id} of {self.pool.server}")


class Pool:
    """The instances of one server and pool key, with the policy for their number."""

    def __init__(
        self, key: PoolKey, server: ServerName, policy: Policy, counts: ServerCounts | None = None
    ) -> None:
        self.key = key
        self.server = server
        self.counts = counts or ServerCounts()
        """The counts of the server, which all its pools share."""
        self.policy = policy
        self.max_in_flight = policy.max_in_flight
        """The most unanswered calls of an instance; 1 during a trial (`circuit_breaker`)."""
        self.wanted = True
        self.stopped = False
        """By an operator."""
        self.paused = False
        """By an operator: calls that come wait, and open ones go on."""
        self.restart: RestartState = FRESH
        self.not_before = 0.0
        """The time before which no instance starts (backoff, open circuit breaker)."""
        self.start_wanted = False
        """A call or catalog needed it while its circuit breaker was open."""
        self.trial: Instance | None = None
        """The instance that the half open circuit breaker let through, until a call has returned from it."""
        self.target = 0
        """The number of active instances that there should be now."""
        self.instances: dict[InstanceId, Instance] = {}
        self.serving: list[Instance] = []
        self.queue = FairQueue(policy.max_waiting_calls, policy.max_waiting_bytes)
        self.asking = False
        """Greeted with sampling and elicitation declared (rule 12)."""
        self.era_wish: EraWish = "handshake"
        """As configured."""
        self.known_era: Era | None = None
        """As detected earlier, if it is not configured."""
        self.both_eras: bool | None = None
        """See `PoolChanged`."""
        self.died_on_discover = False
        """Its last instance died of a request of the stateless era."""
        self.era: Era = "handshake"
        """The era of the instance that greeted last."""
        self.is_relisting = False
        """Its catalog may be outdated: the next one is announced even if it is equal."""
        self.well_known_server: WellKnownServer | None = None
        """The entry for its program in the well-known list."""
        self.evidence: tuple[Evidence, ...] = ()
        self.seen_evidence: set[EvidenceKind] = set()
        """Evidence that was seen in this life of the pool."""
        self.verdict: SharingVerdict = decide_sharing(policy.sharing, None, (), ())
        """The sharing mode of new placements, and its reasons."""
        self.max_instances = most_instances(policy, self.verdict.mode, None)
        """The most instances that it may have."""
        self.plain = self.verdict.mode == "concurrent"
        """True for a plain pool: any instance with room takes any call, without leases and free slots."""
        self.replaced_pools: tuple[PoolKey, ...] = ()
        """The pools that it replaces after reloads. Sessions that hold an instance of those keep it for a
        while (rule 15).
        """
        self.start_after = PoolKey("")
        """The replaced pool that must be gone before this one may start."""
        self.stop_first = False
        self.keeps_state = True
        """False: in mode `session` nothing is lost with an instance."""
        self.is_remote = False
        """True: its instances are sessions at other nodes, and no processes of this machine."""
        """No instance starts before all older ones have ended."""
        self.level = ""
        """The most verbose log level that is wanted; empty: none."""
        self.uris: tuple[str, ...] = ()
        """The subscribed resources."""
        self.is_level_stale = self.are_uris_stale = False
        """These are subscriptions of a broker that has died; the next broker has not sent its own yet."""
        self.catalog: Catalog | None = None
        self.is_catalog_sent = False
        self.generations = 0
        self.ever_fit = False
        self.last_error = ""
        self.telling_stderr_line = ""
        """The stderr line that best explains why the server never served; used in texts only."""
        self.stderr: list[str] = []
        """The last lines of the instance that failed last."""
        self.announced: PoolChanged | None = None
        self.announced_error = ""
        """The error in it. An error text of the server alone causes no announcement."""
        self.operations: list[tuple[int, str, int]] = []
        """(token, verb, generation at that time) of operators who wait."""

    def record_error(self, error: str, words: str = "") -> None:
        """Record the last error."""
        self.last_error, self.telling_stderr_line = error, words

    @property
    def mode(self) -> Mode:
        """The sharing mode of new placements."""
        return self.verdict.mode

    def set_policy(self, policy: Policy) -> None:
        """Take over this policy."""
        self.policy = policy
        self.queue.max_calls, self.queue.max_bytes = policy.max_waiting_calls, policy.max_waiting_bytes
        self.max_in_flight = policy.max_in_flight if self.trial is None else 1
        for instance in self.instances.values():
            instance.update_review()

    def set_trial(self, instance: "Instance | None") -> None:
        """Allow one call at a time until a call has returned from this instance; None: no trial any more."""
        before, self.trial = self.trial, instance
        self.max_in_flight = self.policy.max_in_flight if instance is None else 1
        for each in (before, instance):
            if each is not None:
                each.update_review()

    def update_sharing(self) -> None:
        """Decide the sharing mode again, after a change of policy, catalog or evidence."""
        tools = [offer.name for offer in self.catalog.tools] if self.catalog is not None else []
        self.verdict = decide_sharing(self.policy.sharing, self.well_known_server, tools, self.evidence)
        self.max_instances = most_instances(self.policy, self.verdict.mode, self.well_known_server)
        if self.verdict.mode != "concurrent":
            self.plain = False  # `PoolTargets.adjust_pool` sets it back once no leases are left

    def set_knowledge(
        self, entry: WellKnownServer | None, evidence: tuple[Evidence, ...], era: Era | None
    ) -> None:
        """Take over new knowledge about its program."""
        self.well_known_server, self.evidence, self.known_era = entry, evidence, era
        self.update_sharing()
        few = entry is not None and 0 < self.max_instances <= entry.most
        self.both_eras = era is not None or few

    def pick_instance(self) -> Instance | None:
        """The instance with the fewest unanswered calls that can take one more."""
        best: Instance | None = None
        fewest = self.max_in_flight
        for instance in self.serving:
            load = len(instance.in_flight)
            if load < fewest and not instance.blocked and not instance.suspended:
                best, fewest = instance, load
        return best

    def start_limit_s(self) -> float:
        """The time that the next instance may take until it is fit."""
        return self.policy.start_s if self.ever_fit else self.policy.first_start_s

    def active_count(self) -> int:
        """The number of instances that count for the pool's size."""
        return sum(1 for instance in self.instances.values() if instance.is_counted)

    def is_starting(self) -> bool:
        """True if an instance is starting."""
        return any(
            i.state in (InstanceState.SPAWNING, InstanceState.GREETING) for i in self.instances.values()
        )

    def is_being_tried(self) -> bool:
        """True if an instance is being tried already; no other one starts meanwhile."""
        ending = any(each.failure is not None for each in self.instances.values())  # its end decides
        return self.trial is not None or self.is_starting() or ending

    def state_at(self, now: float) -> PoolState:
        """The state that the broker and people are told."""
        if not self.wanted:
            return "draining"
        if self.stopped:
            return "stopped"
        if self.serving:
            return "serving"
        if self.restart.breaker == "open":
            return "breaker_open" if self.policy.open_s else "given_up"
        if self.restart.breaker == "half_open":
            return "half_open"
        if self.is_starting():
            return "starting"
        if self.target > 0 and self.not_before > now:
            return "backing_off"
        return "starting" if self.target > 0 else "cold"

    def retry_after_s(self, now: float) -> float | None:
        """The seconds until a start is allowed again; None if it is allowed now."""
        is_off = self.restart.breaker == "open" and not self.policy.open_s
        return self.not_before - now if self.not_before > now and not is_off else None


def timeout_of(policy: Policy, call: Call) -> float:
    """The idle timeout of this call in seconds."""
    if policy.tool_timeouts_s:
        return policy.tool_timeouts_s.get(call.target, policy.timeout_s)
    return policy.timeout_s


Calls = dict[CallId, PoolCall]
Pools = dict[PoolKey, Pool]


def mark_not_plain(server: ServerName, pools: Pools) -> None:
    """Calls to all pools of this server must check leases: a session holds an instance of it, or has lost
    one.
    """
    for pool in pools.values():
        if pool.server == server:
            pool.plain = False
