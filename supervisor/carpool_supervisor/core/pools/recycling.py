"""Recycling: replaces instances that have reached a limit of memory, calls or age.

Such an instance is *worn*. It serves while a replacement greets, then takes no new call and ends after its
last open call (its drain lasts as long as a call may, so no call is ended). If it is not needed now it ends
without a replacement. If two must not run side by side (`stop_first`) it drains first, and all calls wait
meanwhile. That begins when no call runs on it, or `drain_s` later. Each pool recycles one instance at a time.
A leased instance is left to its session: calls and age count when the lease ends, because the instance ends
then anyway. Past its memory limit the session keeps it for `drain_s` more and is then told of the loss.
Nothing is recycled while the breaker of the pool is not closed, because no replacement could start.

Invariant (`check`): a pool has at most one worn instance that serves, and a worn one has no holder. Knows
nothing of: how memory is measured, the limits (`instance_limits`), how an instance ends (`instances`).
"""

from collections.abc import Callable
from typing import Final

from carpool_supervisor.core.calls.leases import Leases
from carpool_supervisor.core.model.effects import AnyEffect, WriteLogLine
from carpool_supervisor.core.model.events import MemoryMeasured
from carpool_supervisor.core.model.instance_limits import (
    NEVER,
    OVER_RSS,
    is_over_rss,
    limit_reached,
    rss_limit_reached,
)
from carpool_supervisor.core.model.lifecycle import InstanceState
from carpool_supervisor.core.model.pool import Instance, Pool
from carpool_supervisor.core.model.pool_table import Pools
from carpool_supervisor.core.model.timer_kinds import ALL, SupervisorTimers
from carpool_supervisor.core.pools.instances import Instances

IN_USE_S: Final = 60.0
"""After a call this recent another one is likely, so a replacement greets first."""

RECHECK_S: Final = 5.0
"""The interval of checks of ages."""


class Recycling:
    """The worn instances of all pools."""

    def __init__(
        self,
        pools: Pools,
        instances: Instances,
        leases: Leases,
        *,
        timers: SupervisorTimers,
        out: Callable[[AnyEffect], None],
    ) -> None:
        self._pools = pools
        self._instances = instances
        self._leases = leases
        self._emit = out
        self._timers = timers

    # --- limits ------------------------------------------------------------------------------------------

    def memory_measured(self, event: MemoryMeasured, now: float) -> None:
        """The memory of these instances was measured."""
        for instance_id, size_bytes in event.sizes:
            instance = self._instances.by_id.get(instance_id)
            if instance is None:
                continue
            instance.rss_mb = size_bytes >> 20
            over = is_over_rss(instance.pool.policy, instance.rss_mb)
            instance.over_rss_count = instance.over_rss_count + 1 if over else 0
            self.recheck(instance, now)

    def recheck(self, instance: Instance, now: float) -> None:
        """Check the limits of an instance, and recycle it if it has reached one."""
        pool = instance.pool
        if instance.state is not InstanceState.SERVING or instance.limit_reached or pool.trial is instance:
            return
        instance.review_from = NEVER  # `check_ages` returns to it in any case
        rss = rss_limit_reached(pool.policy, instance.rss_mb) if instance.over_rss_count >= OVER_RSS else ""
        reached = rss or limit_reached(
            pool.policy, instance.generation, instance.calls, now - instance.spawned_at
        )
        if not reached:
            instance.recycle_pending_since = None
            instance.update_review()
            return
        is_held = self._leases.holder(instance.id) is not None
        if pool.restart.breaker != "closed" or not pool.wanted or any(i.limit_reached for i in pool.serving):
            return
        if is_held and not rss:
            return
        if not is_held and self._should_wait(instance, now):
            return
        text = f"{pool.server} #{instance.id} is to be replaced: {reached}"
        self._emit(WriteLogLine("info", text, pool.server, instance.id))
        if is_held:
            instance.note_end(reached)
            self._instances.wind_down(instance, now, "memory")
        elif not _in_use(instance, now):
            instance.note_end(reached)
            self._instances.end_without_replacement(instance, now)
        instance.limit_reached = reached
        if instance in pool.serving and (pool.stop_first or pool.mode == "session"):
            self._drain_worn(instance, now)
        self._instances.start_queue.enqueue(pool, now)
        self._instances.start_queue.start_queued(now)
        self.watch(now)

    def _should_wait(self, instance: Instance, now: float) -> bool:
        """True if it is better to wait for a moment in which no call runs there."""
        pool = instance.pool
        if not (pool.stop_first and instance.in_flight):
            return False
        if instance.recycle_pending_since is None:
            instance.recycle_pending_since = now
        if now >= instance.recycle_pending_since + pool.policy.drain_s:
            return False
        instance.review_from = 0  # any answer may be that of the last call
        self.watch(now)
        return True

    # --- replacement -------------------------------------------------------------------------------------

    def instance_greeted(self, instance: Instance, now: float) -> None:
        """A new instance is fit, perhaps as the replacement of a worn one."""
        self._end_replaced(instance.pool, now)
        if _has_limits(instance.pool):
            self.watch(now)

    def check_ages(self, now: float) -> None:
        """Check the ages of instances, and the replacements that were put off."""
        for instance in list(self._instances.by_id.values()):
            if _has_limits(instance.pool):
                self.recheck(instance, now)
        for pool in self._pools.values():
            self._end_replaced(pool, now)
        self.watch(now)

    def _end_replaced(self, pool: Pool, now: float) -> None:
        """End the worn instance once enough others serve."""
        worn = [instance for instance in pool.serving if instance.limit_reached]
        fresh = sum(not (instance.limit_reached or instance.suspended) for instance in pool.serving)
        if worn and fresh >= max(pool.target, 1):
            self._drain_worn(worn[0], now)

    def _drain_worn(self, instance: Instance, now: float) -> None:
        instance.note_end(instance.limit_reached)  # until now, something else could end it
        self._instances.drain(instance, now)

    def watch(self, now: float) -> None:
        """See that ages are checked in time, if any running instance has a limit."""
        if self._timers.has("recycling_check", ALL):
            return
        running = {each.pool.key: each.pool for each in self._instances.by_id.values()}
        ages = [pool.policy.limit_age_s or RECHECK_S * 4 for pool in running.values() if _has_limits(pool)]
        if ages:
            self._timers.arm("recycling_check", ALL, now, min(max(min(ages) / 4, 0.05), RECHECK_S))

    def check(self) -> None:
        """Assert every invariant."""
        for pool in self._pools.values():
            worn = [instance for instance in pool.serving if instance.limit_reached]
            assert len(worn) <= 1, f"{pool.key} replaces several at once"
            assert not any(self._leases.holder(instance.id) for instance in worn), "a worn one is held"
            assert not (worn and pool.stop_first), f"{pool.key} would run two beside each other"


def _in_use(instance: Instance, now: float) -> bool:
    pool = instance.pool
    busy = instance.in_flight or pool.queue or pool.operations
    return bool(busy or pool.policy.min_instances) or now - instance.idle_since < IN_USE_S


def _has_limits(pool: Pool) -> bool:
    policy = pool.policy
    return bool(policy.limit_rss_mb or policy.limit_calls or policy.limit_age_s)
