"""What the broker is told of a pool, once each time that it is different.

Owns: operators' answers, the catalog, state with its reason, mode; when that is looked at, and that pools are
as they are wanted to be by then. Knows nothing of: what changes them.
"""

from collections.abc import Callable, Iterator

from carpool_protocol.link.messages import Catalog, OperationEnded, PoolChanged
from carpool_supervisor.core.calls.refusals import last_error
from carpool_supervisor.core.model.effects import AnyEffect
from carpool_supervisor.core.model.pool import Pool, Pools
from carpool_supervisor.core.pools import operator_state
from carpool_supervisor.core.pools.start_queue import StartQueue
from carpool_supervisor.core.pools.targets import PoolTargets


class PoolAnnouncer:
    """To one broker, of all pools."""

    def __init__(
        self, pools: Pools, targets: PoolTargets, starts: StartQueue, out: Callable[[AnyEffect], None]
    ) -> None:
        self._pools = pools
        self._targets = targets
        self._start_queue = starts
        self._emit = out

    def announce(self, pool: Pool, now: float) -> None:
        """Tell what is different of this pool."""
        for news in pool_changes(pool, now):
            self._emit(news)

    def announce_all(self, now: float) -> None:
        """Tell what is different from what the broker was last told, of every pool."""
        pools = list(self._pools.values())
        if self._targets.retire_all(now):
            self._start_queue.start_queued(now)  # others may start only after one that is gone now
        for pool in pools:
            if not pool.plain and pool.key in self._pools:
                self._targets.adjust_pool(pool, now)
        for pool in pools:
            self.announce(pool, now)


def pool_changes(pool: Pool, now: float) -> Iterator[OperationEnded | Catalog | PoolChanged]:
    """What is different from what it was last told; it counts as told."""
    if pool.operations:
        yield from operator_state.finished_operations(pool)
    if not pool.wanted:
        return
    if pool.catalog is not None and not pool.is_catalog_sent:
        pool.is_catalog_sent = True
        yield pool.catalog
    state = pool.state_at(now)
    reason = "" if state == "serving" else last_error(pool)
    retry_after_s = pool.retry_after_s(now) if state in ("backing_off", "breaker_open") else None
    said = pool.announced
    error = "" if state == "serving" else pool.last_error
    if (
        said is None
        or (said.state, said.mode, said.both_eras) != (state, pool.mode, pool.both_eras)
        or pool.announced_error != error
    ):
        pool.announced_error = error
        cannot_start = pool.restart.hopeless and state != "serving"
        pool.announced = PoolChanged(
            pool.key, state, reason, retry_after_s, pool.mode, cannot_start, pool.both_eras
        )
        yield pool.announced
