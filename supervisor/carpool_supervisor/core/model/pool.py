"""The records of the supervisor core: pools, their instances, their open calls.

Owns the shape of these records and what can be said from one of them alone: which instance takes the next
call, what state a pool is in. Who changes them: `instances` (instances) and `dispatcher` (calls).

Knows nothing of: effects, deadlines, other pools.
"""

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from carpool_protocol.ids import CallId, InstanceId, PoolKey, RawJson, ServerName, SessionId, WireId
from carpool_protocol.link.messages import Call, Catalog, Era, EraWish, Mode, Policy, PoolChanged, PoolState
from carpool_supervisor.core.model.attribution import CAN_ASK, InFlight
from carpool_supervisor.core.model.fair_queue import FairQueue
from carpool_supervisor.core.model.instance_limits import NEVER, max_calls
from carpool_supervisor.core.model.lifecycle import ACTIVE, InstanceState, LifecycleEvent, next_state
from carpool_supervisor.core.model.loss_causes import LossCause
from carpool_supervisor.core.model.restart_policy import FRESH, RestartState
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
    """One call between its arrival and its one end."""

    __slots__ = (
        "announced_wait_s", "asks", "awaits_retry", "call", "instance", "size_bytes", "timeout_s",
        "total_at", "trace", "url_elicitation_first", "urls", "wire",
    )  # fmt: skip

    def __init__(self, call: Call, timeout_s: float) -> None:
        self.call = call
        self.timeout_s = timeout_s
        self.total_at = 0.0
        """When it has run for the longest time allowed, since it was placed."""
        self.size_bytes = len(call.params) + len(call.meta) + 256
        self.instance: Instance | None = None
        """None while it waits in line."""
        self.wire = WireId(0)
        self.trace: TraceKey | None = None
        """The trace context it was written with, where its server may ask."""
        self.announced_wait_s: float | None = None
        """How many seconds it had left to wait when its agent last heard of that; they only get fewer."""
        self.url_elicitation_first = False
        """The answer that comes next sends its agent to URLs first."""
        self.urls: tuple[RawJson, ...] = ()
        """To these, where its broker is to know them."""
        self.asks = 0
        """Questions to its agent that are open: meanwhile its idle deadline stands still (rule 14)."""
        self.awaits_retry = False
        """Stateless era: it is between two rounds, so nothing of it runs (`between_rounds`)."""

    @property
    def is_idle_paused(self) -> bool:
        """Whether its idle deadline does: its agent is asked, or the stdout of its instance is not read."""
        return self.asks > 0 or (self.instance is not None and self.instance.unread_since is not None)


class AbandonedCall(Struct, frozen=True):
    """A call that ended for its agent and may still run in the server (rule 5)."""

    call: CallId
    session: SessionId
    can_ask: bool
    trace: TraceKey | None
    since: float
    until: float
    """So long its silence counts: it may be busy with it."""


MAX_ABANDONED: Final = 1024
"""Calls per instance that ended for the agent but not for the server. None is forgotten, for it may still
ask: an instance that has so many is drained and replaced. Only of a leased one the oldest are forgotten: they
are its holder's like all others there, so nobody else can be meant, and the holder keeps its state."""


class Instance:
    """One process of a pool."""

    __slots__ = (
        "abandoned", "asks", "asks_closed_at", "blocked", "calls", "cause", "era", "failure", "fit_at",
        "generation", "held_tasks", "id", "idle_since", "in_flight", "is_stdin_closed", "last_output_at",
        "limit_reached", "list_request", "next_wire", "over_rss_count", "pid", "pool", "probed_at",
        "probed_era", "recycle_pending_since", "refusals", "review_from", "rss_mb", "spawned_at", "state",
        "suspended", "tasks", "undelivered", "unread_since",
    )  # fmt: skip

    def __init__(self, instance: InstanceId, pool: "Pool", generation: int, now: float) -> None:
        self.id = instance
        self.pool = pool
        self.generation = generation
        self.era: Era = "handshake"
        """How it is spoken to; until it has greeted, in which era it was greeted first."""
        self.probed_era = False
        """It has been asked `server/discover` and has said nothing to it."""
        self.refusals: dict[Era, str] = {}
        """What it did when it was greeted in eras that it does not speak."""
        self.state = InstanceState.SPAWNING
        self.pid = 0
        self.spawned_at = now
        self.fit_at: float | None = None
        self.last_output_at = now
        self.probed_at: float | None = None
        """When the ping went out that is not answered yet."""
        self.unread_since: float | None = None
        """Since when carpool has not read its stdout; None: it reads."""
        self.asks = 0
        """Open asks whose answers the server waits for."""
        self.asks_closed_at = now
        """When the last of these was closed."""
        self.in_flight: dict[WireId, PoolCall] = {}
        self.abandoned: dict[WireId, AbandonedCall] = {}
        """Calls that ended for the agent but may still run (rule 5)."""
        self.tasks: dict[str, WireId] = {}
        """Tasks that the server runs for a call, by its own task id."""
        self.held_tasks: set[str] = set()
        """Tasks that agents come back for, by the server's own id (`held`)."""
        self.next_wire = 1
        self.calls = 0
        self.undelivered: set[WireId] = set()
        """Calls among these that never reached it, as far as its shell has said."""
        self.idle_since = now
        self.blocked = False
        """It does not read its stdin."""
        self.list_request = ""
        """The method of the list request that is out; empty: none is."""
        self.is_stdin_closed = False
        """It never will again: it has closed it."""
        self.suspended = False
        """It did not answer a probe: nothing new is placed on it."""
        self.failure: str | None = None
        """Why we end it, where that counts as a failure."""
        self.cause: LossCause = "reload"
        """What its holder is told when it is ended while it drains."""
        self.rss_mb = 0
        """Memory of its processes, as last measured, in MiB."""
        self.over_rss_count = 0
        """So many measurements in a row were above its limit."""
        self.review_from = NEVER
        """From so many calls on its answers are looked at: a limit is reached, or it is on trial."""
        self.limit_reached = ""
        """The limit that it has reached: another is to take its place (`recycling`)."""
        self.recycle_pending_since: float | None = None
        """It has reached one, and waits for a moment in which nothing runs on it."""

    def update_review(self) -> None:
        """Have its answers looked at from the right one on."""
        reached = NEVER if self.limit_reached else max_calls(self.pool.policy, self.generation)
        self.review_from = 0 if self.pool.trial is self else reached

    @property
    def is_counted(self) -> bool:
        """Whether it counts for the size of its pool."""
        return self.state in ACTIVE and not self.limit_reached

    @property
    def is_busy(self) -> bool:
        """Whether it works for anybody."""
        return bool(self.in_flight or self.held_tasks)

    def ask_candidates(self) -> list[InFlight]:
        """Everything in flight in rule 5's sense: what a server may be speaking of."""
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
        """The broker lost touch: which of its sessions are still there nobody knows."""
        for wire, each in self.abandoned.items():
            self.abandoned[wire] = replace(each, session=SessionId(""))

    def has_room(self) -> bool:
        """Whether one more call can be written to it."""
        return (
            not self.blocked
            and not self.suspended
            and len(self.in_flight) < self.pool.max_in_flight
            and self.state in (InstanceState.SERVING, InstanceState.DRAINING)
        )

    def has_asking_call(self) -> bool:
        """Whether anything that runs, in rule 5's sense, can ask."""
        return any(
            each.call.method in CAN_ASK and not each.awaits_retry for each in self.in_flight.values()
        ) or any(each.can_ask for each in self.abandoned.values())

    def transition(self, happening: LifecycleEvent) -> None:
        """Follow the table."""
        self.state = next_state(self.state, happening, f"instance {self.id} of {self.pool.server}")


class Pool:
    """The instances of one server (per key), with its size policy."""

    def __init__(self, key: PoolKey, server: ServerName, policy: Policy) -> None:
        self.key = key
        self.server = server
        self.policy = policy
        self.max_in_flight = policy.max_in_flight
        """Unanswered calls that an instance may have: one while it is on trial (`circuit_breaker`)."""
        self.wanted = True
        self.stopped = False
        """By an operator."""
        self.restart: RestartState = FRESH
        self.not_before = 0.0
        """No start before this time (back-off, open breaker)."""
        self.start_wanted = False
        """Somebody needed it while its breaker was open."""
        self.trial: Instance | None = None
        """It was let through by the half open breaker, and no call has come back from it yet."""
        self.target = 0
        """How many active instances there should be now."""
        self.instances: dict[InstanceId, Instance] = {}
        self.serving: list[Instance] = []
        self.queue = FairQueue(policy.max_waiting_calls, policy.max_waiting_bytes)
        self.asking = False
        """Greeted with sampling and elicitation declared (rule 12)."""
        self.era_wish: EraWish = "handshake"
        """As configured."""
        self.known_era: Era | None = None
        """Found out earlier, where that is not configured."""
        self.both_eras: bool | None = None
        """See `PoolChanged`."""
        self.died_on_discover = False
        """Its last instance ended of a question of the stateless era."""
        self.era: Era = "handshake"
        """How the instance that greeted last is spoken to."""
        self.is_relisting = False
        """Its catalog is not current any more: the next one is told even if it says the same."""
        self.well_known_server: WellKnownServer | None = None
        """What the shipped list says of its program."""
        self.evidence: tuple[Evidence, ...] = ()
        self.seen_evidence: set[EvidenceKind] = set()
        """Evidence that was seen in this life of the pool."""
        self.verdict: SharingVerdict = decide_sharing(policy.sharing, None, (), ())
        """How its instances are shared, and why: for placements from now on."""
        self.max_instances = most_instances(policy, self.verdict.mode, None)
        """How many instances it may have."""
        self.plain = self.verdict.mode == "concurrent"
        """Its instances are all alike to every call: no leases, no lanes, nothing to ask but their load."""
        self.replaced_pools: tuple[PoolKey, ...] = ()
        """The pools in whose place it stands after reloads: who holds an instance there keeps it for a while
        (rule 15).
        """
        self.start_after = PoolKey("")
        """The pool that this one replaces and that must be gone before it may start."""
        self.stop_first = False
        """No instance starts before every older one has ended."""
        self.level = ""
        """The most verbose log level that is wanted; empty: none."""
        self.uris: tuple[str, ...] = ()
        """Resources whose changes are wanted."""
        self.is_level_stale = self.are_uris_stale = False
        """That is what a broker wanted that has died; the one after it has not said yet what it wants."""
        self.catalog: Catalog | None = None
        self.is_catalog_sent = False
        self.generations = 0
        self.ever_fit = False
        self.last_error = ""
        self.telling_stderr_line = ""
        """The line of stderr that tells most of a server that never came to serve; for texts alone."""
        self.stderr: list[str] = []
        """The last lines of the instance that failed last."""
        self.announced: PoolChanged | None = None
        self.announced_error = ""
        """The error in it: words of the server do not decide whether something is said."""
        self.operations: list[tuple[int, str, int]] = []
        """(token, verb, generation at that time) of operators who wait."""

    def record_error(self, error: str, words: str = "") -> None:
        """This went wrong last."""
        self.last_error, self.telling_stderr_line = error, words

    @property
    def mode(self) -> Mode:
        """How its instances are shared by placements from now on."""
        return self.verdict.mode

    def set_policy(self, policy: Policy) -> None:
        """It is run in this way from now on."""
        self.policy = policy
        self.queue.max_calls, self.queue.max_bytes = policy.max_waiting_calls, policy.max_waiting_bytes
        self.max_in_flight = policy.max_in_flight if self.trial is None else 1
        for instance in self.instances.values():
            instance.update_review()

    def set_trial(self, instance: "Instance | None") -> None:
        """Let one call at a time through to this instance, until one has come back; None: no more."""
        before, self.trial = self.trial, instance
        self.max_in_flight = self.policy.max_in_flight if instance is None else 1
        for each in (before, instance):
            if each is not None:
                each.update_review()

    def update_sharing(self) -> None:
        """Policy, catalog or evidence are others now."""
        tools = [offer.name for offer in self.catalog.tools] if self.catalog is not None else []
        self.verdict = decide_sharing(self.policy.sharing, self.well_known_server, tools, self.evidence)
        self.max_instances = most_instances(self.policy, self.verdict.mode, self.well_known_server)
        if self.verdict.mode != "concurrent":
            self.plain = False  # the way back is `Wishes.tend`'s: leases may be left

    def set_knowledge(
        self, entry: WellKnownServer | None, evidence: tuple[Evidence, ...], era: Era | None
    ) -> None:
        """More is known about its program."""
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
        """How long the next instance may take until it is fit."""
        return self.policy.start_s if self.ever_fit else self.policy.first_start_s

    def active_count(self) -> int:
        """How many instances count towards the pool's size."""
        return sum(1 for instance in self.instances.values() if instance.is_counted)

    def is_starting(self) -> bool:
        """Whether an instance is on its way."""
        return any(
            i.state in (InstanceState.SPAWNING, InstanceState.GREETING) for i in self.instances.values()
        )

    def is_being_tried(self) -> bool:
        """Whether it is being found out already if an instance can live: none starts beside that one."""
        ending = any(each.failure is not None for each in self.instances.values())  # its end tells
        return self.trial is not None or self.is_starting() or ending

    def state_at(self, now: float) -> PoolState:
        """What the broker and people are told."""
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
        """When something may start again, where that is not now."""
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
    """Somebody holds an instance of this server, or has lost one: calls to all of its pools ask first."""
    for pool in pools.values():
        if pool.server == server:
            pool.plain = False
