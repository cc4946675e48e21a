"""What the broker is told of a pool, once each time that it is different.

Owns: operators' answers, the catalog, state with its reason, mode. Knows nothing of: what changes them.
"""

from collections.abc import Iterator

from carpool_protocol.messages import Catalog, Operated, PoolChanged
from carpool_supervisor.core import operators
from carpool_supervisor.core.pool import Pool
from carpool_supervisor.core.refusals import last_error


def announced(pool: Pool, now: float) -> Iterator[Operated | Catalog | PoolChanged]:
    """What is different from what it was last told; it counts as told."""
    if pool.operations:
        yield from operators.settled(pool)
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
    if said is None or said.state != state or pool.said_error != error or said.mode != pool.mode:
        pool.said_error = error
        pool.said = PoolChanged(pool.key, state, reason, retry_after_s, pool.mode)
        yield pool.said
