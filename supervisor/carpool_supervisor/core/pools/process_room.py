"""Room for an instance at the process cap: which others end for it (rule 14).

Owns the choice. The least recently used idle instance makes room; else one that only starts to be a spare;
else one whose end costs a session something, of which one ends at a time. Processes that are ending count as
room already, each for one needed start. A draining one counts only if otherwise a busy instance or a lease
had to end.

A `RoomSearch` lasts for one pass of the start queue and looks at all instances once, however many pools need
room. Knows nothing of: the queue, calls, how an instance ends.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from carpool_protocol.ids import InstanceId, PoolKey, SessionId
from carpool_supervisor.core.calls.leases import Leases, TurnShares
from carpool_supervisor.core.model.lifecycle import ENDING, InstanceState
from carpool_supervisor.core.model.loss_causes import LossCause
from carpool_supervisor.core.model.pool import Instance, Pool, away_limit_s
from carpool_supervisor.core.model.pool_table import Pools
from carpool_supervisor.core.pools.demand import needed_instances

"""The states of a process that is ending."""
_STARTING: Final = (InstanceState.SPAWNING, InstanceState.GREETING)


class RoomSearch:
    """The search for room in one pass of the queue. `drain` ends an instance."""

    def __init__(
        self,
        pools: Pools,
        instances: Mapping[InstanceId, Instance],
        leases: Leases,
        drain: Callable[[Instance, float, LossCause], None],
    ) -> None:
        self._pools = pools
        self._instances = instances
        self._leases = leases
        self._drain = drain
        self._promised = 0
        """Needed starts that wait for the end of a process that is ending."""
        self._ending = self._leaving = 0
        """The number of processes that leave room when they have ended, without and with draining ones."""
        self._is_any_ending = False
        self._counts: dict[PoolKey, int] = {}
        """The number of active instances of each pool."""
        self._idle: deque[Instance] = deque()
        self._starting: deque[Instance] = deque()
        self._has_looked = False
        self._is_costly_sought = False
        self._shares: TurnShares | None = None
        """How the leased processes are shared out, if that was asked for; none has ended since then."""
        self.is_exhausted = False
        """No pool without an instance finds room in this pass, except what a line of leases is given of
        whoever holds most (`sharing_pools`).
        """

    def _look(self) -> None:
        """Look at all instances, once."""
        self._has_looked = True
        idle: list[Instance] = []
        starting: list[Instance] = []
        for each in self._instances.values():
            self._note_end(each)
            if each.is_counted:
                self._counts[each.pool.key] = self._counts.get(each.pool.key, 0) + 1
            if each.is_process and each.state is InstanceState.SERVING and self._is_idle(each):
                idle.append(each)
            elif each.is_process and each.state in _STARTING:
                starting.append(each)
        self._idle = deque(sorted(idle, key=lambda i: i.idle_since))
        self._starting = deque(reversed(starting))

    def make_room(self, needy: Pool, count: int, free: int, now: float) -> None:
        """End instances for as many starts of this pool. `free`: the cap for this pool minus the processes
        that run; none is free.
        """
        if not self._has_looked:
            self._look()
        for _ in range(count):
            if not self._is_coming(self._ending, free):
                found = self._victim_without_cost(needy)
                if found is None and not self._is_coming(self._leaving, free):
                    found = None if self._is_any_ending else self._costly_victim(needy, now)
                    if found is None:
                        self.is_exhausted = self.is_exhausted or not needy.instances
                        return
                if found is not None:
                    self._end(needy, *found, now)
            self._promised += 1

    def _is_coming(self, leaving: int, free: int) -> bool:
        """True if a process that leaves makes room that no other need waits for."""
        return leaving - self._promised + free > 0

    def _note_end(self, instance: Instance) -> None:
        """Count it if it is ending. A worn one leaves no room soon: it may drain for a day."""
        if instance.state in ENDING:
            self._is_any_ending = True
            self._ending += instance.is_process
            self._leaving += instance.is_process
        elif instance.state is InstanceState.DRAINING and not instance.limit_reached:
            self._leaving += instance.is_process

    def _end(self, needy: Pool, victim: Instance, cause: LossCause, now: float) -> None:
        pool = victim.pool
        if pool is not needy and victim.is_counted:
            self._counts[pool.key] -= 1
            pool.target = max(pool.active_count() - 1, 0)
        self._drain(victim, now, cause)
        self._note_end(victim)
        self._shares = None

    # --- the choice ------------------------------------------------------------------------------------

    def _victim_without_cost(self, needy: Pool) -> tuple[Instance, LossCause] | None:
        """The least recently used idle instance without a holder; else one that is only starting to be a
        spare.
        """
        victim = self._take(self._idle, needy, self._can_spare) or self._take(
            self._starting, needy, self._is_spare_to_be
        )
        return None if victim is None else (victim, "room")

    def _take(
        self, line: deque[Instance], needy: Pool, may_end: Callable[[Instance], bool]
    ) -> Instance | None:
        """Take the first instance of another pool that may end. Those that may not leave the line too."""
        own: list[Instance] = []
        found: Instance | None = None
        while line and found is None:
            instance = line.popleft()
            if instance.pool is needy:
                own.append(instance)
            elif may_end(instance):
                found = instance
        line.extendleft(reversed(own))
        return found

    def _is_idle(self, instance: Instance) -> bool:
        return not instance.is_busy and self._leases.holder(instance.id) is None

    def _can_spare(self, instance: Instance) -> bool:
        pool = instance.pool
        busy = instance.is_busy or pool.queue or pool.operations
        is_left = instance.state is InstanceState.SERVING and self._leases.holder(instance.id) is None
        return is_left and not busy and self._counts.get(pool.key, 0) > pool.policy.min_instances

    def _is_spare_to_be(self, instance: Instance) -> bool:
        pool = instance.pool
        if instance.state not in _STARTING:
            return False
        return self._counts.get(pool.key, 0) > needed_instances(pool, self._leases)

    def _costly_victim(self, needy: Pool, now: float) -> tuple[Instance, LossCause] | None:
        """The instance to end if none is idle: one that a session holds idle while it waits for another. For
        a pool without any instance also one of several of another pool, so that every server with demand gets
        one. Else one of whoever holds most of all instances, if others have waited long enough.
        """
        return self._yielding_or_one_of_several(needy) or self._one_of_largest_turn(needy, now)

    def sharing_pools(self, now: float) -> list[PoolKey]:
        """The pools for which sessions have waited long enough, if whoever holds most can give back an
        instance.
        """
        if self._is_any_ending or not self._turn_shares().can_give:
            return []
        return [
            key
            for key in self._leases.pools_waited_for()
            if self._leases.has_waited(key, away_limit_s(self._pools[key].policy), now)
        ]

    def _turn_shares(self) -> TurnShares:
        if self._shares is None:
            local = (pool.key for pool in self._pools.values() if not pool.is_remote)
            self._shares = self._leases.turn_shares(local)
        return self._shares

    def _one_of_largest_turn(self, needy: Pool, now: float) -> tuple[Instance, LossCause] | None:
        held = sum(self._leases.holder(each.id) is not None for each in needy.serving)
        found = self._leases.pick_from_largest_turn(
            needy.key,
            self._turn_shares,
            coming=needy.active_count() - held,
            now=now,
            grace_s=away_limit_s(needy.policy),
        )
        return None if found is None else (self._instances[found], "share")

    def _yielding_or_one_of_several(self, needy: Pool) -> tuple[Instance, LossCause] | None:
        if self.is_exhausted:  # of such a pool, and all that it could have taken
            return None
        if not self._is_costly_sought:
            self._is_costly_sought = True
            yielding = self._leases.pick_victim(self._waiting_for_more())
            if yielding is not None:
                return self._instances[yielding], "needed"
        if needy.active_count():
            return None
        others = [i for i in self._instances.values() if i.state is InstanceState.SERVING and i.is_process]
        several = [i for i in others if i.pool is not needy and self._counts.get(i.pool.key, 0) > 1]
        free = [i for i in several if self._leases.holder(i.id) is None]
        if free:
            return max(free, key=lambda i: self._counts[i.pool.key]), "room"
        held = [i for i in several if not self._leases.is_busy(i.id)]
        return (min(held, key=lambda i: i.idle_since), "room") if held else None

    def _waiting_for_more(self) -> set[SessionId]:
        """The sessions that wait for another instance than the one they hold."""
        return {
            session
            for pool in self._pools.values()
            for session in pool.queue.sessions()
            if self._leases.held_instance(session, pool.server) is None
        }
