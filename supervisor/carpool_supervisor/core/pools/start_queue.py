"""The start queue: decides which pool starts its next process, and when. Applies greeting turns, backoff and
the process cap.

A pool with fewer active instances than its target is in the queue or in backoff, never forgotten. A greeting
uses one of few places, but only for a while, so a server that never greets blocks no other
(docs/decisions/0004). At the cap the least recently used idle instance makes room (rule 14) for an instance
with work to do, never for a spare. Processes that are ending count as room already, each for one needed
start. A draining one counts only if otherwise a busy instance or a lease had to end. Needs come before spares
(`demand`): a spare starts only if no pool in the queue waits for room, or it would take the room that another
instance was ended for. Among needs, those with a waiting call come first, because a start that only reads a
catalog may install packages for minutes.

Knows nothing of: calls, how instances end, failures.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from typing import Final

from carpool_protocol.ids import InstanceId, PoolKey, SessionId
from carpool_supervisor.core.calls.leases import Leases
from carpool_supervisor.core.model.breaker_policy import after_pause
from carpool_supervisor.core.model.lifecycle import ENDING, InstanceState
from carpool_supervisor.core.model.loss_causes import LossCause
from carpool_supervisor.core.model.pool import Instance, Pool, Pools
from carpool_supervisor.core.model.timer_kinds import SupervisorTimers
from carpool_supervisor.core.pools.demand import needed_instances

GREETING_TURN_S: Final = 5.0
"""After this long a greeting no longer holds up the next start."""
LEAVING: Final = ENDING | {InstanceState.DRAINING}
"""The states of a process that is ending."""


class StartQueue:
    """The queue of starts. `start` begins an instance, `drain` ends one to make room."""

    def __init__(
        self,
        pools: Pools,
        instances: dict[InstanceId, Instance],
        leases: Leases,
        timers: SupervisorTimers,
        *,
        start: Callable[[Pool, float], Instance],
        drain: Callable[[Instance, float, LossCause], None],
    ) -> None:
        self._pools = pools
        self._instances = instances
        self._leases = leases
        self._start = start
        self._drain = drain
        self.max_processes = 64
        self.max_greeting = 3
        self._queue: OrderedDict[PoolKey, None] = OrderedDict()
        self.greeting_turns = timers.of("greeting_turn")
        """Greetings that still use one of the `max_greeting` places (rule 2)."""
        self.backoffs = timers.of("start_backoff")
        """Pools in backoff."""
        self.closed = False
        self._promised = 0
        """Needed starts, in one pass of `start_queued`, that wait for the end of a process that is already
        ending.
        """

    def enqueue(self, pool: Pool) -> None:
        """Queue the pool if it has too few instances."""
        if falls_short(pool):
            self._queue[pool.key] = None

    def move_to_front(self, pool: Pool) -> None:
        """Move the pool to the head of the queue if it is queued."""
        if pool.key in self._queue:
            self._queue.move_to_end(pool.key, last=False)

    def breaker_opened(self, pool: Pool, now: float) -> None:
        """The circuit breaker of the pool is open: start nothing before it is half open."""
        self.drop(pool.key)
        if pool.policy.open_s and pool.wanted and not self.closed:
            self.backoffs.arm(pool.key, now, pool.not_before - now)

    def drop(self, key: PoolKey) -> None:
        """Start nothing for this pool, now or after its backoff."""
        self._queue.pop(key, None)
        self.backoffs.disarm(key)

    def close(self) -> None:
        """Start nothing any more."""
        self.closed = True
        for key in list(self._pools):
            self.drop(key)

    def end_backoffs(self, pools: Iterable[PoolKey]) -> None:
        """Queue these pools again; a pool whose circuit breaker was open long enough tries one start."""
        for key in pools:
            pool = self._pools[key]
            if pool.restart.breaker == "open":
                pool.restart = after_pause(pool.restart)
                always = pool.policy.min_instances or pool.policy.auto_connect
                if pool.start_wanted or always or pool.serving:
                    pool.target = max(pool.target, 1)
            self.enqueue(pool)

    def start_queued(self, now: float) -> None:
        """Start as much of the queue as is allowed: needs first, then spares."""
        if self.closed:
            return
        self._promised = 0
        waits_for_room = False
        for key in sorted(self._queue, key=self._is_unasked):
            pool = self._ready(key, now)
            if pool is None:
                continue
            if not self._fill_needs(pool, now):
                return
            waits_for_room = waits_for_room or self._is_in_need(pool)
        if not waits_for_room:
            self._fill_wishes(now)

    def _is_unasked(self, key: PoolKey) -> bool:
        """True if no call waits for an instance: it is wanted for its catalog, or as a spare."""
        pool = self._pools.get(key)
        return pool is None or not pool.queue

    def _ready(self, key: PoolKey, now: float) -> Pool | None:
        """The queued pool if it may start an instance now. A pool that has enough, or backs off, leaves the
        queue.
        """
        pool = self._pools.get(key)
        if pool is None or not falls_short(pool):
            self._queue.pop(key, None)
            return None
        if pool.not_before > now:
            del self._queue[key]
            self.backoffs.arm(key, now, pool.not_before - now)
            return None
        return None if self._must_wait_for_others(pool) else pool

    def _must_wait_for_others(self, pool: Pool) -> bool:
        """With `stop_first`, an old instance holds a port or a lock until it has ended."""
        if pool.start_after in self._pools:
            return True
        return pool.stop_first and pool.active_count() < len(pool.instances)

    def _is_in_need(self, pool: Pool) -> bool:
        return falls_short(pool) and pool.active_count() < needed_instances(pool, self._leases)

    def _fill_needs(self, pool: Pool, now: float) -> bool:
        """Start needed instances. Returns False if no pool may start anything now."""
        while self._is_in_need(pool):
            if not self._may_greet(pool):
                return False
            if not self._has_room(pool):
                self._make_room(pool, now)
                return True
            self._begin(pool, now)
        return True

    def _fill_wishes(self, now: float) -> None:
        for key in list(self._queue):
            pool = self._ready(key, now)
            while pool is not None and falls_short(pool):
                if not self._may_greet(pool):
                    return
                if not self._has_room(pool):
                    break
                self._begin(pool, now)

    def _begin(self, pool: Pool, now: float) -> None:
        instance = self._start(pool, now)
        if not pool.is_remote:
            self.greeting_turns.arm(instance.id, now, GREETING_TURN_S)
        if not falls_short(pool):
            self._queue.pop(pool.key, None)

    def _may_greet(self, pool: Pool) -> bool:
        """True if another instance may start now; a session at another node costs no start here."""
        return pool.is_remote or len(self.greeting_turns) < self.max_greeting

    def _has_room(self, pool: Pool) -> bool:
        """True if the process cap leaves room for another instance of the pool."""
        return pool.is_remote or self.process_count < self._cap_for(pool)

    @property
    def process_count(self) -> int:
        """Return the number of instances that are processes of this machine."""
        return len(self._instances) - sum(
            len(pool.instances) for pool in self._pools.values() if pool.is_remote
        )

    def _cap_for(self, pool: Pool) -> int:
        """The process cap for this pool. A replacement may exceed it by one, or a full machine could never
        restart anything.
        """
        replaces = any(i.limit_reached or i.state is InstanceState.DRAINING for i in pool.instances.values())
        return self.max_processes + (1 if replaces else 0)

    def _make_room(self, needy: Pool, now: float) -> None:
        """End as many instances as this pool lacks, minus those that are ending already. Of instances whose
        end costs a session something, only one ends at a time, because the need may be over by then.
        """
        more = (
            needed_instances(needy, self._leases) - needy.active_count()
            if needy.restart.breaker == "closed"
            else 1
        )
        for _ in range(min(more, self.max_greeting - len(self.greeting_turns))):
            if not self._is_room_coming(needy, ENDING):
                found = self._idle_victim(needy)
                if found is None and not self._is_room_coming(needy, LEAVING):
                    found = None if self._is_any_ending() else self._costly_victim(needy)
                    if found is None:
                        return
                if found is not None:
                    victim, cause = found
                    if victim.pool is not needy and victim.is_counted:
                        victim.pool.target = max(victim.pool.active_count() - 1, 0)
                    self._drain(victim, now, cause)
            self._promised += 1

    def _is_room_coming(self, needy: Pool, states: Collection[InstanceState]) -> bool:
        """True if a process in one of these states leaves room that no other need waits for. A worn one does
        not count: it may drain for a day.
        """
        leaving = sum(
            i.state in states and not (i.limit_reached and i.state is InstanceState.DRAINING)
            for i in self._instances.values()
            if not i.pool.is_remote
        )
        return self.process_count - leaving + self._promised < self._cap_for(needy)

    def _is_any_ending(self) -> bool:
        return any(i.state in ENDING for i in self._instances.values())

    def _idle_victim(self, needy: Pool) -> tuple[Instance, LossCause] | None:
        """An instance that may end at no cost (rule 14): the least recently used idle one without a holder;
        else one that is only starting to be a spare.
        """
        idle = [i for i in self._free(needy) if _can_spare(i)]
        if idle:
            return min(idle, key=lambda i: i.idle_since), "room"
        spare = self._spare_to_be(needy)
        return None if spare is None else (spare, "room")

    def _costly_victim(self, needy: Pool) -> tuple[Instance, LossCause] | None:
        """The instance to end if none is idle: one that a session holds idle while it waits for another. For
        a pool without any instance also one of several of another pool, so that every server with demand gets
        one.
        """
        yielding = self._leases.pick_victim(self._waiting_for_more())
        if yielding is not None:
            return self._instances[yielding], "needed"
        if needy.active_count():
            return None
        several = [i for i in self._free(needy) if i.pool.active_count() > 1]
        if several:
            return max(several, key=lambda i: i.pool.active_count()), "room"
        held = [
            i for i in self._others(needy) if i.pool.active_count() > 1 and not self._leases.is_busy(i.id)
        ]
        return (min(held, key=lambda i: i.idle_since), "room") if held else None

    def _others(self, needy: Pool) -> list[Instance]:
        """The serving instances of other pools."""
        return [
            i
            for i in self._instances.values()
            if i.state is InstanceState.SERVING and i.pool is not needy and not i.pool.is_remote
        ]

    def _free(self, needy: Pool) -> list[Instance]:
        """Those of them without a holder."""
        return [i for i in self._others(needy) if self._leases.holder(i.id) is None]

    def _spare_to_be(self, needy: Pool) -> Instance | None:
        """The youngest instance that has not greeted, of a pool with more than it needs."""
        for instance in reversed(self._instances.values()):
            pool = instance.pool
            starts = instance.state in (InstanceState.SPAWNING, InstanceState.GREETING)
            others = pool is not needy and not pool.is_remote
            if starts and others and pool.active_count() > needed_instances(pool, self._leases):
                return instance
        return None

    def _waiting_for_more(self) -> set[SessionId]:
        """The sessions that wait for another instance than the one they hold."""
        return {
            session
            for pool in self._pools.values()
            for session in pool.queue.sessions()
            if self._leases.held_instance(session, pool.server) is None
        }

    def will_start(self, pool: Pool) -> bool:
        """True if this pool will start an instance without another event."""
        return pool.key in self._queue or pool.key in self.backoffs


def falls_short(pool: Pool) -> bool:
    """True if the pool should have more instances than it has."""
    if pool.active_count() >= pool.target or not pool.wanted or pool.stopped:
        return False
    return pool.restart.breaker == "closed" or (
        pool.restart.breaker == "half_open" and not pool.is_being_tried()
    )


def _can_spare(instance: Instance) -> bool:
    pool = instance.pool
    busy = instance.is_busy or pool.queue or pool.operations
    return not busy and pool.active_count() > pool.policy.min_instances
