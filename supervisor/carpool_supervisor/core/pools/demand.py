"""The number of instances that a pool needs. Pure functions of pools and leases.

A plain pool grows one by one as its instances fill up (`PoolTargets.grow`). In mode `serial` each waiting
call needs an instance. In mode `session` each session that holds one or waits needs one, and while there is
such a session some spares stay warm, so that the next lease is instant. No pool has to make room for spares.

Stands apart because `targets` and `instances` both need it. Knows nothing of: processes, single calls (only
the number of waiting ones).
"""

from carpool_supervisor.core.calls.leases import Leases
from carpool_supervisor.core.model.lifecycle import InstanceState
from carpool_supervisor.core.model.pool import Instance, Pool


def needed_instances(pool: Pool, leases: Leases) -> int:
    """The number of instances with work to do: for these, other pools make room at the process cap."""
    if pool.mode != "session":
        return pool.target
    least = max(pool.policy.min_instances, min(pool.target, 1))
    return max(least, min(_in_use(pool, leases) + _unleasable_count(pool, leases), pool.max_instances))


def wanted_instances(pool: Pool, leases: Leases) -> int:
    """The least number of instances for the calls in flight and in the queue now."""
    if pool.mode == "serial":
        lanes = sum(each.is_counted for each in pool.serving)
        return min(lanes + len(pool.queue), pool.max_instances) if pool.queue else 0
    if pool.mode == "session":
        in_use = _in_use(pool, leases)
        spares = pool.policy.spares if in_use else 0
        return min(in_use + spares + _unleasable_count(pool, leases), pool.max_instances)
    return 0


def kept_instances(pool: Pool, leases: Leases) -> int:
    """The number of instances that the pool keeps although they are idle."""
    kept = pool.policy.min_instances
    return max(kept, wanted_instances(pool, leases)) if pool.mode == "session" else kept


def is_unleasable(instance: Instance, leases: Leases) -> bool:
    """True for an instance that served several sessions before its pool began to lease, or is to be replaced:
    it is never leased, and ends.
    """
    over = instance.calls > 0 or bool(instance.limit_reached)
    return over and instance.state is InstanceState.SERVING and leases.holder(instance.id) is None


def _in_use(pool: Pool, leases: Leases) -> int:
    return sum(leases.holder(each.id) is not None for each in pool.serving) + leases.waiting_count(pool.key)


def _unleasable_count(pool: Pool, leases: Leases) -> int:
    return sum(is_unleasable(each, leases) for each in pool.serving)
