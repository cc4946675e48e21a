"""The start queue: decides which pool starts its next process, and when. Applies greeting turns, backoff and
the process cap.

A pool with fewer active instances than its target is in the queue or in backoff, never forgotten. A greeting
uses one of few turns, but only for a while (`greeting_turns`). Layers start one instance each, in turn, and
so do those whose calls wait, and the pools of each (`start_line`); those that want many leave a turn to
others: a server that never greets costs another one a turn at most, however many of its instances are wanted,
and one of another layer a short turn, however many such servers there are (docs/decisions/0004). At the cap
other instances end to make room (`process_room`) for an instance with work to do, never for a spare. Needs
come before spares (`demand`): a spare starts only if no pool in the queue waits for a turn or for room, or it
would take the room that another instance was ended for. Among needs, those with a waiting call come first,
because a start that only reads a catalog may install packages for minutes.

One pass looks at few pools, however many are queued: it ends with the last free turn, passes over layers
without one as a whole, and once no room can be made it goes on with pools that have an instance already or a
line of leases.

A start that fails for want of descriptors, processes or memory lowers the cap to the number of processes that
run, until `SHORTAGE_S` later: room is made as at the cap, and the start is tried again.

Knows nothing of: calls, how instances end, failures.
"""

from collections.abc import Callable, Iterable, Iterator, Set
from typing import Final

from carpool_protocol.ids import InstanceId, PoolKey
from carpool_supervisor.core.calls.leases import Leases
from carpool_supervisor.core.model.breaker_policy import after_pause
from carpool_supervisor.core.model.lifecycle import InstanceState
from carpool_supervisor.core.model.loss_causes import LossCause
from carpool_supervisor.core.model.pool import Instance, Pool
from carpool_supervisor.core.model.pool_table import Pools
from carpool_supervisor.core.model.timer_kinds import ALL, SupervisorTimers
from carpool_supervisor.core.pools.demand import needed_instances
from carpool_supervisor.core.pools.greeting_turns import GreetingTurns
from carpool_supervisor.core.pools.process_room import RoomSearch
from carpool_supervisor.core.pools.start_line import StartLine

SHORTAGE_S: Final = 2.0
"""After this long without room a start is tried again."""


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
        self.turns = GreetingTurns(instances, timers)
        self._asked = StartLine(of_askers=True)
        """Queued pools in which a call waits for an instance."""
        self._unasked = StartLine()
        """Further ones in need of an instance: they are wanted for their catalogs."""
        self._wishes = StartLine()
        """Those that lack no more than a spare."""
        self._remote: dict[PoolKey, None] = {}
        """Those whose instances are sessions at other nodes: these need no turn and no room here."""
        self._turns_of = self.turns.counts()
        """The number of turns that each pool has, in the running pass."""
        self.process_count = 0
        """The number of instances that are processes of this machine."""
        self.backoffs = timers.of("start_backoff")
        """Pools in backoff."""
        self._shortage = timers.of("shortage")
        self._possible: int | None = None
        """The number of processes that could run when a start failed for want of room; None: no start has."""
        self._short: dict[PoolKey, Pool] = {}
        """Pools of which a start failed for want of room."""
        self.waits_for_room = False
        """A pool in need had no room in the last pass: an instance that falls idle may make some."""
        self.closed = False

    def enqueue(self, pool: Pool, now: float) -> None:
        """Queue the pool if it has too few instances, after its backoff."""
        if not falls_short(pool):
            return
        key = pool.key
        if pool.not_before > now:
            self._remove(key)
            self.backoffs.arm(key, now, pool.not_before - now)
        elif pool.is_remote:
            self._remote[key] = None
        elif not self._is_in_need(pool):
            if key not in self._asked and key not in self._unasked:
                self._wishes.add(pool)
        elif pool.queue:
            self._move(pool, self._asked)
        elif key not in self._asked:
            self._move(pool, self._unasked)

    def _move(self, pool: Pool, line: StartLine) -> None:
        """Move a pool to this line, where it keeps its place if it is there already."""
        for other in (self._asked, self._unasked, self._wishes):
            if other is not line:
                other.discard(pool.key)
        line.add(pool)

    def _remove(self, key: PoolKey) -> None:
        for line in (self._asked, self._unasked, self._wishes):
            line.discard(key)
        self._remote.pop(key, None)

    def move_to_front(self, pool: Pool) -> None:
        """Move the pool to the head of its line if it is queued."""
        for line in (self._asked, self._unasked):
            line.move_to_front(pool.key)

    def instance_greeted(self, instance: Instance) -> None:
        """The instance has greeted: its turn, if it has it still, is free."""
        if self.turns.end(instance.id):
            self._set_slow(instance.pool, is_slow=False)

    def turn_times_over(self, instances: Iterable[InstanceId], now: float) -> None:
        """These instances have had their short or their whole turn without greeting."""
        for each in self.turns.times_over(instances, now):
            self._set_slow(each.pool, is_slow=True)

    def _set_slow(self, pool: Pool, *, is_slow: bool) -> None:
        """Note if the pool is slow to greet, which decides its place in its line."""
        if pool.is_slow_to_greet == is_slow:
            return
        pool.is_slow_to_greet = is_slow
        for line in (self._asked, self._unasked, self._wishes):
            if pool.key in line:
                line.add(pool)

    def breaker_opened(self, pool: Pool, now: float) -> None:
        """The circuit breaker of the pool is open: start nothing before it is half open."""
        self.drop(pool.key)
        if pool.policy.open_s and pool.wanted and not self.closed:
            self.backoffs.arm(pool.key, now, pool.not_before - now)

    def drop(self, key: PoolKey) -> None:
        """Start nothing for this pool, now or after its backoff."""
        self._remove(key)
        self.backoffs.disarm(key)

    def close(self) -> None:
        """Start nothing any more."""
        self.closed = True
        self.end_shortage()
        self._shortage.disarm(ALL)
        for key in list(self._pools):
            self.drop(key)

    def start_failed_for_room(self, pool: Pool, text: str, now: float) -> bool:
        """A start of this pool has failed for want of room; `text`: why, as a clause. Returns True if that is
        new.
        """
        self._possible = count = self.process_count
        self._shortage.arm(ALL, now, SHORTAGE_S)
        is_new = not pool.shortage
        processes = "1 process of a server" if count == 1 else f"{count} processes of servers"
        pool.shortage = f"Carpool can run {processes} now: another one {text}."
        self._short[pool.key] = pool
        return is_new

    def instance_spawned(self, pool: Pool) -> None:
        """A process of this pool runs. Others of its starts may have failed just before."""
        if self._possible is None:
            pool.shortage = ""

    def end_shortage(self) -> None:
        """Try starts again up to the process cap."""
        self._possible = None
        for key, pool in list(self._short.items()):
            if not pool.queue:
                pool.shortage = ""
            if not pool.shortage:
                del self._short[key]

    def end_backoffs(self, pools: Iterable[PoolKey], now: float) -> None:
        """Queue these pools again; a pool whose circuit breaker was open long enough tries one start."""
        for key in pools:
            pool = self._pools[key]
            if pool.restart.breaker == "open":
                pool.restart = after_pause(pool.restart)
                always = pool.policy.min_instances or pool.policy.auto_connect
                if pool.start_wanted or always or pool.serving:
                    pool.target = max(pool.target, 1)
            pool.touch()
            self.enqueue(pool, now)

    def start_queued(self, now: float) -> None:
        """Start as much of the queue as is allowed: needs first, then spares."""
        self.waits_for_room = False
        if self.closed:
            return
        for key in list(self._remote):
            pool = self._ready(key, now)
            while pool is not None and falls_short(pool) and (self._possible is None or self._has_room(pool)):
                self._begin(pool, now)
        if not self.turns.is_any_free or not (self._asked or self._unasked or self._wishes):
            return
        self._turns_of = self.turns.counts()
        if not self._fill_needs(now):
            self._fill_wishes(now)

    def _ready(self, key: PoolKey, now: float) -> Pool | None:
        """The queued pool if it may start an instance now. A pool that has enough, or backs off, leaves the
        queue.
        """
        pool = self._pools.get(key)
        if pool is None or not falls_short(pool):
            self._remove(key)
            return None
        if pool.not_before > now:
            self._remove(key)
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

    def _fill_needs(self, now: float) -> bool:
        """Start needed instances. Returns True if no spare may start: a need waits for a turn or for room."""
        if not (self._asked or self._unasked):
            return False
        room = RoomSearch(self._pools, self._instances, self._leases, self._drain)
        waits: set[PoolKey] = set()
        has_started = True
        while has_started:  # one start of each pool, then the next
            has_started = False
            for key in self._needy(room, waits, now):
                pool = self._ready(key, now)
                if pool is None:
                    continue
                if not self._is_in_need(pool):
                    self._move(pool, self._wishes)
                elif not self.turns.is_any_free:
                    return True
                elif not self._may_greet(pool):
                    waits.add(key)
                elif not self._has_room(pool):
                    self._make_room(pool, room, now)
                    self.waits_for_room = True
                    waits.add(key)
                else:
                    self._begin(pool, now)
                    has_started = True
                    if falls_short(pool) and not self._is_in_need(pool):
                        self._move(pool, self._wishes)
        return bool(waits) or any(
            line.is_held_up(self.turns.may_start) for line in (self._asked, self._unasked)
        )

    def _needy(self, room: RoomSearch, waits: Set[PoolKey], now: float) -> Iterator[PoolKey]:
        """The queued pools in need that do not wait already, in order: those last that have all turns but
        one. Once no room can be made for pools without an instance, only those that have one, and those with
        a line of leases, which may get one of whoever holds most.
        """
        seen = set(waits)
        greedy: list[PoolKey] = []
        for line in (self._asked, self._unasked):
            for key in line.keys(self.turns.may_start):
                if room.is_exhausted:
                    break
                pool = self._pools.get(key)
                if line is self._asked and pool is not None and not pool.queue:
                    self._move(pool, self._unasked)  # its calls went elsewhere, or were cancelled
                elif key not in seen:
                    seen.add(key)
                    if self._turns_of[key] < self.turns.most:
                        yield key
                    else:
                        greedy.append(key)
        if not room.is_exhausted:
            yield from greedy
        else:
            seen.difference_update(greedy)
            present = [instance.pool.key for instance in self._instances.values() if instance.is_process]
            for key in (*present, *room.sharing_pools(now)):
                if key not in seen and (key in self._asked or key in self._unasked):
                    seen.add(key)
                    yield key

    def _make_room(self, needy: Pool, room: RoomSearch, now: float) -> None:
        """End as many instances as this pool lacks, minus those that are ending already. Of instances whose
        end costs a session something, only one ends at a time, because the need may be over by then.
        """
        more = 1
        if needy.restart.breaker == "closed":
            more = needed_instances(needy, self._leases) - needy.active_count()
        turns = self.turns.free(needy.layer)
        room.make_room(needy, min(more, turns), self._cap_for(needy) - self.process_count, now)

    def _fill_wishes(self, now: float) -> None:
        has_started = True
        while has_started:
            has_started = False
            for key in self._wishes.keys(self.turns.may_start):
                if not self.turns.is_any_free:
                    return
                pool = self._ready(key, now)
                if pool is not None and self._may_greet(pool) and self._has_room(pool):
                    self._begin(pool, now)
                    has_started = True

    def _begin(self, pool: Pool, now: float) -> None:
        instance = self._start(pool, now)
        if instance.is_process:
            self.turns.begin(instance, now)
            self._turns_of[pool.key] += 1
        for line in (self._asked, self._unasked, self._wishes):
            line.pool_started(pool)
        if not falls_short(pool):
            self._remove(pool.key)

    def _may_greet(self, pool: Pool) -> bool:
        """True if this pool may take a turn now."""
        return self.turns.may_start(pool.layer, pool.is_slow_to_greet)

    def _has_room(self, pool: Pool) -> bool:
        """True if the process cap leaves room for another instance of the pool."""
        return self.process_count < self._cap_for(pool)

    def _cap_for(self, pool: Pool) -> int:
        """The process cap for this pool. A replacement may exceed it by one, or a full machine could never
        restart anything. No cap exceeds what is possible now.
        """
        if self._possible is not None and self._possible < self.max_processes:
            return self._possible
        replaces = any(i.limit_reached or i.state is InstanceState.DRAINING for i in pool.instances.values())
        return self.max_processes + (1 if replaces else 0)

    def will_start(self, pool: Pool) -> bool:
        """True if this pool will start an instance without another event."""
        return any(
            pool.key in each
            for each in (self._asked, self._unasked, self._wishes, self._remote, self.backoffs)
        )


def falls_short(pool: Pool) -> bool:
    """True if the pool should have more instances than it has."""
    if pool.active_count() >= pool.target or not pool.wanted or pool.stopped:
        return False
    return pool.restart.breaker == "closed" or (
        pool.restart.breaker == "half_open" and not pool.is_being_tried()
    )
