"""The state of pools as the broker and operators see it.

Owns the announcements (the end of operators' commands, the catalog, the state with its reason, the mode; each
once per change), and the report of a pool and its instances for `status` and `ps`. Owns also the time of
these checks, and adjusts pools to their targets before them.

Knows nothing of: the causes of changes, memory and CPU (the shell adds them).
"""

from collections.abc import Callable, Iterator
from typing import Final

from carpool_protocol.ids import PoolKey, SessionId
from carpool_protocol.link.messages import Catalog, InstanceReport, OperationEnded, PoolChanged, PoolReport
from carpool_supervisor.core.calls.leases import Leases
from carpool_supervisor.core.calls.refusals import (
    greeting_silence,
    instance_silence,
    last_error,
    left_out_text,
    public_error,
)
from carpool_supervisor.core.model.effects import AnyEffect
from carpool_supervisor.core.model.instance_limits import limit_reached
from carpool_supervisor.core.model.lifecycle import InstanceState
from carpool_supervisor.core.model.pool import Instance, Pool
from carpool_supervisor.core.model.pool_table import Pools
from carpool_supervisor.core.pools import operator_state
from carpool_supervisor.core.pools.start_queue import StartQueue
from carpool_supervisor.core.pools.targets import PoolTargets

SILENT: Final = "silent in its greeting"
"""The announced error of a pool whose server does not answer its greeting; the text of it names a time."""


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

    def announce_touched(self, now: float) -> None:
        """Adjust the pools that an event has touched, and announce their changes."""
        pools, changed = self._pools, dict[PoolKey, Pool]()
        while pools.touched:  # what one pool releases may serve another
            touched = pools.take_touched()
            if self._targets.retire_unwanted(touched, now):
                self._start_queue.start_queued(now)  # a pool that is gone may have blocked other starts
            self._targets.adjust_pools([pool for pool in touched if pool.key in pools], now)
            for pool in touched:
                changed[pool.key] = pool
        for pool in changed.values():
            self.announce(pool, now)

    def check(self, now: float) -> None:
        """Assert that each pool is announced as it is. A pool whose pause has just ended is announced with
        its timer.
        """
        assert not self._pools.touched
        for pool in self._pools.values():
            pause_ends = pool.not_before and pool.not_before <= now and self._start_queue.will_start(pool)
            if pool.wanted and not pause_ends:
                assert pool.catalog is None or pool.is_catalog_sent, f"{pool.key}: its catalog is unsent"
                assert not _is_changed(pool, now), f"{pool.key} has changed, and nobody was told"


def pool_changes(pool: Pool, now: float) -> Iterator[OperationEnded | Catalog | PoolChanged]:
    """The changes of this pool since the last announcements. They count as announced."""
    if pool.operations:
        yield from operator_state.finished_operations(pool)
    if not pool.wanted:
        return
    if pool.catalog is not None and not pool.is_catalog_sent:
        pool.is_catalog_sent = True
        yield pool.catalog
    if not _is_changed(pool, now):
        return
    state = pool.state_at(now)
    silence = greeting_silence(pool, now)
    pool.announced_error = _error_to_announce(pool, now)
    pool.announced = PoolChanged(
        pool.key,
        state,
        "" if state == "serving" else f"It {silence}." if silence else last_error(pool),
        pool.retry_after_s(now) if state in ("backing_off", "breaker_open") else None,
        pool.mode,
        pool.restart.hopeless and state != "serving",
        pool.both_eras,
        pool.keeps_state,
        pool.is_remote,
    )
    yield pool.announced


def _is_changed(pool: Pool, now: float) -> bool:
    """True if the pool is in another state than it was announced in."""
    announced, state = pool.announced, pool.state_at(now)
    return (
        announced is None
        or (announced.state, announced.mode, announced.both_eras, announced.keeps_state)
        != (state, pool.mode, pool.both_eras, pool.keeps_state)
        or pool.announced_error != _error_to_announce(pool, now)
    )


def _error_to_announce(pool: Pool, now: float) -> str:
    if pool.state_at(now) == "serving":
        return ""
    return SILENT if greeting_silence(pool, now) else pool.last_error


def report_pool(pool: Pool, now: float, leases: Leases) -> PoolReport:
    """The report of a pool at this moment."""
    return PoolReport(
        key=pool.key,
        server=pool.server,
        state=pool.state_at(now),
        sharing=pool.mode,
        waiting=len(pool.queue),
        restarts=pool.restart.restarts,
        last_error=greeting_silence(pool, now) or _problem(pool),
        stderr_tail=list(pool.stderr),
        instances=[_instance(each, now, leases) for each in pool.instances.values()],
        verified=pool.verdict.verified,
        asking=pool.asking,
        breaker=pool.restart.breaker,
        retry_after_s=pool.retry_after_s(now),
        shortage=pool.shortage if pool.queue else "",
        left_out=left_out_text(pool),
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
    """The limit for which it drains, if that is the reason; or that it does not answer its greeting."""
    if instance.is_silent_greeting:
        return instance_silence(instance, now)
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
