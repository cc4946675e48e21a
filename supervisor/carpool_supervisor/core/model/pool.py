"""The records of the supervisor's core: pools, their instances, their open calls.

Owns the shape of these records and all facts that follow from one record alone, such as the state of a pool.
`instances` changes the instances, `dispatcher` the calls.

Knows nothing of: effects, deadlines, other pools.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from carpool_protocol.counters.snapshot import ServerCounts
from carpool_protocol.ids import CallId, InstanceId, PoolKey, RawJson, ServerName, SessionId, WireId
from carpool_protocol.link.messages import Call, Catalog, Era, EraWish, Mode, Policy, PoolChanged, PoolState
from carpool_supervisor.core.model.attribution import CAN_ASK, InFlight
from carpool_supervisor.core.model.breaker_policy import FRESH, RestartState
from carpool_supervisor.core.model.fair_queue import FairQueue, turn_key
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
from carpool_supervisor.core.model.version_offers import VersionOffers
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
    def turn(self) -> SessionId:
        """Whose turn it uses (`fair_queue.turn_key`)."""
        return turn_key(self.call.session, self.call.principal)

    @property
    def is_idle_paused(self) -> bool:
        """True if its idle timeout is paused: its agent is asked, or the stdout of its instance is
        not read.
        """
        return self.asks > 0 or (self.instance is not None and self.instance.unread_since is not None)


STOPPED_S: Final = 2.0
"""An ask may be that of a cancelled call until the server has answered a ping after the cancel, and has shown
nothing of the call for this long since then (`stopped_calls`).
"""


class AbandonedCall(Struct, frozen=True):
    """A call that ended for its agent and may still run in the server (rule 5)."""

    call: CallId
    session: SessionId
    can_ask: bool
    trace: TraceKey | None
    since: float
    until: float
    """Until this time its silence counts as work on it."""
    ping: int = 0
    """The number of the ping whose answer shows that the server has read the cancel; 0: none."""
    stopped_at: float | None = None
    """The time of that answer, unless the server went on with the call."""
    has_slot: bool = True
    """It counts as an open call of its instance."""

    def may_ask(self, now: float) -> bool:
        """True if an ask may be this call's."""
        return self.can_ask and (self.stopped_at is None or now < self.stopped_at + STOPPED_S)


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
        "is_level_late", "is_process", "is_silence_told", "is_stdin_closed", "last_output_at",
        "late_add", "late_drop", "limit_reached", "list_request", "list_requested_at",
        "lists_reread_at", "next_wire", "node", "node_session", "offered_version", "over_rss_count",
        "pid", "pings", "pool", "probed_at", "probed_era", "recycle_pending_since", "refusals",
        "review_from", "rss_mb", "spawned_at", "state", "stop_ping", "suspended", "tasks",
        "told_level", "tried_versions", "turns", "undelivered", "unread_since",
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
        self.offered_version = pool.version_offers.next
        """The version of its last `initialize`."""
        self.tried_versions = [self.offered_version]
        """The version that it was offered first, and those that it has refused in words."""
        self.state = InstanceState.SPAWNING
        self.pid = 0
        self.node = ""
        """The node at which it is a session in place of a process; empty: it is a process."""
        self.node_session = 0
        """The number of that session."""
        self.is_process = not pool.is_remote
        """False: it is a session at another node."""
        self.spawned_at = now
        self.fit_at: float | None = None
        self.last_output_at = now
        self.is_silence_told = False
        """Operators were told that it answers nothing to its greeting."""
        self.probed_at: float | None = None
        """The time of the unanswered ping."""
        self.pings = 0
        """The number of the last ping."""
        self.stop_ping = 0
        """The number of the unanswered ping after a cancel (`stopped_calls`); 0: none."""
        self.unread_since: float | None = None
        """The time since which its stdout is not read; None: it is read."""
        self.asks = 0
        """Open asks of this server."""
        self.asks_closed_at = now
        """The time at which the last of these was closed."""
        self.in_flight: dict[WireId, PoolCall] = {}
        self.turns: Counter[SessionId] = Counter()
        """The number of calls in flight of each turn (`fair_queue.turn_key`). Counted from the moment at
        which one of the last places is asked for, until few calls are left; empty otherwise.
        """
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
        self.told_level = ""
        """The log level that it was told last; empty: none."""
        self.is_level_late = False
        """It has not been told the level, because it does not read its stdin or is told later."""
        self.late_add: dict[str, None] = {}
        self.late_drop: dict[str, None] = {}
        """The subscriptions that it has not been told of yet, for one of these reasons, and those whose end
        it has not been told of; the first has waited longest (`subscriptions`).
        """
        self.list_request = ""
        self.list_requested_at = now
        """The method of the open list request; empty: none is open."""
        self.lists_reread_at = now
        """When its lists were read again last because a timer said so."""
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

    @property
    def is_silent_greeting(self) -> bool:
        """True if it has written nothing for a while since it was greeted, or since it was asked for a list
        that its greeting needs.
        """
        silent = self.last_output_at <= (self.list_requested_at if self.list_request else self.spawned_at)
        return self.is_silence_told and silent and self.state is InstanceState.GREETING

    @property
    def has_answered(self) -> bool:
        """True if it has answered a call."""
        return self.calls > len(self.in_flight) + len(self.abandoned)

    def ask_candidates(self, now: float) -> list[InFlight]:
        """Everything in flight in rule 5's sense: the calls that an ask may belong to."""
        live = [
            InFlight(wire, each.call.session, each.call.method in CAN_ASK, each.trace)
            for wire, each in self.in_flight.items()
        ]
        over = [
            InFlight(wire, each.session, each.may_ask(now), each.trace, over=True)
            for wire, each in self.abandoned.items()
        ]
        return live + over

    @property
    def may_run_ended_calls(self) -> bool:
        """True if a call that has ended for its agent may run: nothing shows that it was stopped."""
        return any(each.can_ask and each.stopped_at is None for each in self.abandoned.values())

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

    def fits(self, call: Call, *, freed: int = 0) -> bool:
        """True if there is a place for this call, once this many others have ended. The last places are for
        turns that hold few: there a turn gets one while it holds fewer than are left, so one that holds none
        always finds one.
        """
        load = len(self.in_flight) - freed
        if load < self.pool.open_places:
            return True
        held = self.counted_turns()
        return held[turn_key(call.session, call.principal)] < self.pool.max_in_flight - load

    def counted_turns(self) -> Counter[SessionId]:
        """The number of calls in flight of each turn, which is counted from now on."""
        if not self.turns:
            self.turns.update(each.turn for each in self.in_flight.values())
        return self.turns

    def count_turn(self, pool_call: PoolCall) -> None:
        """A call was placed while turns are counted."""
        self.turns[pool_call.turn] += 1

    def uncount_turn(self, pool_call: PoolCall) -> None:
        """A call has left while turns are counted."""
        turn = pool_call.turn
        if len(self.in_flight) < self.pool.open_places // 2:
            self.turns.clear()
        elif self.turns[turn] > 1:
            self.turns[turn] -= 1
        else:
            del self.turns[turn]

    def check_turns(self) -> None:
        """Assert that each turn is counted, or none is."""
        assert not self.turns or self.turns == Counter(each.turn for each in self.in_flight.values())

    def has_asking_call(self) -> bool:
        """True if a call in flight, in rule 5's sense, can ask."""
        return any(
            each.call.method in CAN_ASK and not each.awaits_retry for each in self.in_flight.values()
        ) or any(each.can_ask and each.has_slot for each in self.abandoned.values())

    def transition(self, happening: LifecycleEvent) -> None:
        """Go to the next state of the lifecycle table."""
        self.pool.touch()
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
        self._set_places(policy.max_in_flight)
        self.layer = ""
        """The layer of the configuration that it comes from (`PoolSpec.layer`)."""
        self.wanted = True
        self.is_abandoned = False
        """It is not wanted, and no call waits in it."""
        self.unwanted_because = ""
        """Why it is not wanted any more, as a clause for logs."""
        self.offline = False
        """There is nothing to run: it counts as stopped, and no operator starts it."""
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
        self.version_offers = VersionOffers()
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
        self.uris: set[str] = set()
        """The subscribed resources."""
        self.is_level_stale = self.are_uris_stale = False
        """These are subscriptions of a broker that has died; the next broker has not sent its own yet."""
        self.catalog: Catalog | None = None
        self.is_catalog_sent = False
        self.generations = 0
        self.ever_fit = False
        self.is_slow_to_greet = False
        """An instance used up a whole greeting turn, and none has greeted within its turn since."""
        self.last_error = ""
        self.shortage = ""
        """The sentence about a start that carpool had no room for, until one succeeds."""
        self.telling_stderr_line = ""
        """The stderr line that best explains why the server never served; used in texts only."""
        self.stderr: list[str] = []
        """The last lines of the instance that failed last."""
        self.announced: PoolChanged | None = None
        self.announced_error = ""
        """The error in it. An error text of the server alone causes no announcement."""
        self.relisting: Instance | None = None
        """The instance whose lists an operator's `start` had read again, until they are read."""
        self.operations: list[tuple[int, str, int]] = []
        """(token, verb, generation at that time) of operators who wait."""
        self._touched: dict[PoolKey, Pool] = {}
        """The touched pools of its table."""

    def attend(self, touched: "dict[PoolKey, Pool]") -> None:
        """It is in a table now, which attends to the pools in this collection."""
        self._touched = touched
        self.touch()

    def touch(self) -> None:
        """It may have changed, so it is adjusted and announced after this event."""
        self._touched[self.key] = self

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
        self._set_places(policy.max_in_flight if self.trial is None else 1)
        for instance in self.instances.values():
            instance.update_review()

    def set_trial(self, instance: "Instance | None") -> None:
        """Allow one call at a time until a call has returned from this instance; None: no trial any more."""
        before, self.trial = self.trial, instance
        self._set_places(self.policy.max_in_flight if instance is None else 1)
        for each in (before, instance):
            if each is not None:
                each.update_review()

    def _set_places(self, most: int) -> None:
        self.max_in_flight = most
        """The most unanswered calls of an instance; 1 during a trial (`circuit_breaker`)."""
        self.open_places = most - most // 8
        """So many of these are open to every call; the last ones are for turns that hold few
        (`Instance.fits`).
        """

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

    def pick_instance(self, call: Call) -> Instance | None:
        """The instance with the fewest unanswered calls that can take this one."""
        best: Instance | None = None
        fewest = self.open_places
        for instance in self.serving:
            load = len(instance.in_flight)
            if load < fewest and not instance.blocked and not instance.suspended:
                best, fewest = instance, load
        if best is None:
            found = self.pick_last_place((turn_key(call.session, call.principal),))
            best = None if found is None else found[1]
        return best

    def pick_last_place(self, turns: Iterable[SessionId]) -> tuple[SessionId, Instance] | None:
        """The first of these turns that gets one of the last places (`Instance.fits`), and the instance with
        the fewest unanswered calls that has one for it. No instance has another place.

        A turn that gets none holds at least as many places of each instance as are left there. So few are
        passed over, however many wait: on an instance with 250 calls and 6 places left, 41 at most.
        """
        free = [each for each in self.serving if each.has_room()]
        if not free:
            return None
        free.sort(key=lambda each: len(each.in_flight))
        places = [(each.counted_turns().get, self.max_in_flight - len(each.in_flight), each) for each in free]
        held_by, left, roomiest = places[0]
        others = places[1:]
        for turn in turns:
            if held_by(turn, 0) < left:
                return turn, roomiest
            for other_held_by, other_left, other in others:
                if other_held_by(turn, 0) < other_left:
                    return turn, other
        return None

    @property
    def has_last_place(self) -> bool:
        """True if an instance has only places left that not every call gets."""
        return any(self.open_places <= len(each.in_flight) < self.max_in_flight for each in self.serving)

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
        if self.offline:
            return "offline"
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


MAX_AWAY_S: Final = 10.0
"""See `away_limit_s`."""


def away_limit_s(policy: Policy) -> float:
    """The seconds for which somebody else waits, and the agent of a parked call may stay away, before that
    call gives way: with time left for whoever waits.
    """
    return min(MAX_AWAY_S, policy.wait_s / 3)


Calls = dict[CallId, PoolCall]
