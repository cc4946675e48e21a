"""The state of pools as the broker and operators see it.

Owns the announcements (the end of operators' commands, the catalog, the state with its reason, the mode; each
once per change), and the report of a pool and its instances for `status` and `ps`. Owns also the time of
these checks, and adjusts pools to their targets before them.

Knows nothing of: the causes of changes, memory and CPU (the shell adds them).
"""

from collections.abc import Callable, Iterator

from carpool_protocol.ids import SessionId
from carpool_protocol.link.messages import Catalog, InstanceReport, OperationEnded, PoolChanged, PoolReport
from carpool_supervisor.core.calls.leases import Leases
from carpool_supervisor.core.calls.refusals import last_error, left_out_text, public_error
from carpool_supervisor.core.model.effects import AnyEffect
from carpool_supervisor.core.model.instance_limits import limit_reached
from carpool_supervisor.core.model.lifecycle import InstanceState
from carpool_supervisor.core.model.pool import Instance, Pool, Pools
from carpool_supervisor.core.pools import operator_state
from carpool_supervisor.core.pools.start_queue import StartQueue
from carpool_supervisor.core.pools.targets import PoolTargets


class PoolAnnouncer:
    """Announces the state of all pools to one broker."""

    def __init__(
        self, pools: Pools, targets: PoolTargets, starts: StartQueue, out: Callable[[AnyEffect], None]
    ) -> None:
        self._pools = pools
        self._targets = targets
        self._start_queue = starts
        self._emit = out

    def announce(self, pool: Pool, now: float) -> None:
        """Announce the changes of this pool."""
        for news in pool_changes(pool, now):
            self._emit(news)

    def announce_all(self, now: float) -> None:
        """Announce the changes of all pools since the last announcements."""
        pools = list(self._pools.values())
        if self._targets.retire_all(now):
            self._start_queue.start_queued(now)  # a pool that is gone may have blocked other starts
        for pool in pools:
            if not pool.plain and pool.key in self._pools:
                self._targets.adjust_pool(pool, now)
        for pool in pools:
            self.announce(pool, now)


def pool_changes(pool: Pool, now: float) -> Iterator[OperationEnded | Catalog | PoolChanged]:
    """The changes of this pool since the last announcements. They count as announced."""
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
    announced = pool.announced
    error = "" if state == "serving" else pool.last_error
    if (
        announced is None
        or (announced.state, announced.mode, announced.both_eras, announced.keeps_state)
        != (state, pool.mode, pool.both_eras, pool.keeps_state)
        or pool.announced_error != error
    ):
        pool.announced_error = error
        cannot_start = pool.restart.hopeless and state != "serving"
        pool.announced = PoolChanged(
            pool.key,
            state,
            reason,
            retry_after_s,
            pool.mode,
            cannot_start,
            pool.both_eras,
            pool.keeps_state,
            pool.is_remote,
        )
        yield pool.announced


def report_pool(pool: Pool, now: float, leases: Leases) -> PoolReport:
    """The report of a pool at this moment."""
    return PoolReport(
        key=pool.key,
        server=pool.server,
        state=pool.state_at(now),
        sharing=pool.mode,
        waiting=len(pool.queue),
        restarts=pool.restart.restarts,
        last_error=_problem(pool),
        stderr_tail=list(pool.stderr),
        instances=[_instance(each, now, leases) for each in pool.instances.values()],
        verified=pool.verdict.verified,
        asking=pool.asking,
        breaker=pool.restart.breaker,
        retry_after_s=pool.retry_after_s(now),
    )


def _problem(pool: Pool) -> str:
    """The last error, and the sentence on offers that are left out; text in both only once."""
    told, over = public_error(pool), left_out_text(pool)
    if told in over or over in told:
        return max(told, over, key=len)
    return f"{told}; {over}"


def _instance(instance: Instance, now: float, leases: Leases) -> InstanceReport:
    return InstanceReport(
        id=instance.id,
        pid=instance.pid,
        state=_state_text(instance, leases),
        generation=instance.generation,
        era=instance.era,
        in_flight=len(instance.in_flight),
        calls=instance.calls,
        rss_bytes=0,
        pss_bytes=0,
        cpu_percent=0.0,
        uptime_s=now - instance.spawned_at,
        holder=leases.holder(instance.id) or SessionId(""),
        asks=sum(opened.asks for opened in instance.in_flight.values()),
        why=_why(instance, leases, now),
        node=instance.node,
    )


def _state_text(instance: Instance, leases: Leases) -> str:
    if instance.state is not InstanceState.SERVING:
        return instance.state.value
    if instance.suspended:
        return "suspended"
    return "spare" if leases.is_spare(instance.id) else instance.state.value


def _why(instance: Instance, leases: Leases, now: float) -> str:
    """The limit for which it drains, if that is the reason."""
    if (
        instance.limit_reached
        or instance.state is not InstanceState.SERVING
        or leases.holder(instance.id) is None
    ):
        return instance.limit_reached
    reached = limit_reached(
        instance.pool.policy, instance.generation, instance.calls, now - instance.spawned_at
    )
    return f"{reached}; replaced when its lease ends" if reached else ""
