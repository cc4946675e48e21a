"""What the broker is told of a pool, once each time that it is different.

Owns: operators' answers, the catalog, state with its reason, mode; when that is looked at, and that pools are
as they are wanted to be by then. Knows nothing of: what changes them.
"""

from collections.abc import Callable, Iterator

from carpool_protocol.link.messages import Catalog, Operated, PoolChanged
from carpool_supervisor.core.calls.refusals import last_error
from carpool_supervisor.core.model.effects import AnyEffect
from carpool_supervisor.core.model.pool import Pool, Pools
from carpool_supervisor.core.pools import operator_state
from carpool_supervisor.core.pools.start_queue import Starts
from carpool_supervisor.core.pools.targets import Wishes


class Announcing:
    """To one broker, of all pools."""

    def __init__(
        self, pools: Pools, wishes: Wishes, starts: Starts, out: Callable[[AnyEffect], None]
    ) -> None:
        self._pools = pools
        self._wishes = wishes
        self._starts = starts
        self._out = out

    def tell(self, pool: Pool, now: float) -> None:
        """Tell what is different of this pool."""
        for news in announced(pool, now):
            self._out(news)

    def tell_all(self, now: float) -> None:
        """Tell what is different from what the broker was last told, of every pool."""
        pools = list(self._pools.values())
        if self._wishes.retire_all(now):
            self._starts.fill(now)  # others may start only after one that is gone now
        for pool in pools:
            if not pool.plain and pool.key in self._pools:
                self._wishes.tend(pool, now)
        for pool in pools:
            self.tell(pool, now)


def announced(pool: Pool, now: float) -> Iterator[Operated | Catalog | PoolChanged]:
    """What is different from what it was last told; it counts as told."""
    if pool.operations:
        yield from operator_state.settled(pool)
    if not pool.wanted:
        return
    if pool.catalog is not None and not pool.catalog_said:
        pool.catalog_said = True
        yield pool.catalog
    state = pool.state(now)
    reason = "" if state == "serving" else last_error(pool)
    retry_after_s = pool.retry_after_s(now) if state in ("backing_off", "breaker_open") else None
    said = pool.said
    error = "" if state == "serving" else pool.last_error
    if (
        said is None
        or (said.state, said.mode, said.both_eras) != (state, pool.mode, pool.both_eras)
        or pool.said_error != error
    ):
        pool.said_error = error
        cannot_start = pool.restart.hopeless and state != "serving"
        pool.said = PoolChanged(
            pool.key, state, reason, retry_after_s, pool.mode, cannot_start, pool.both_eras
        )
        yield pool.said
