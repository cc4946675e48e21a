"""What `status` and `ps` are told of a pool and its instances.

Pure. Knows nothing of: memory and CPU (the shell adds them), who reads it.
"""

from carpool_protocol.ids import SessionId
from carpool_protocol.link.messages import InstanceReport, PoolReport
from carpool_supervisor.core.calls.leases import Leases
from carpool_supervisor.core.calls.refusals import left_out_text, public_error
from carpool_supervisor.core.model.instance_limits import limit_reached
from carpool_supervisor.core.model.lifecycle import InstanceState
from carpool_supervisor.core.model.pool import Instance, Pool


def report_pool(pool: Pool, now: float, leases: Leases) -> PoolReport:
    """A pool as it is now."""
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
    """What went wrong last, and what its server offers beyond the bounds; what both say once."""
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
    )


def _state_text(instance: Instance, leases: Leases) -> str:
    if instance.state is not InstanceState.SERVING:
        return instance.state.value
    if instance.suspended:
        return "suspended"
    return "spare" if leases.is_spare(instance.id) else instance.state.value


def _why(instance: Instance, leases: Leases, now: float) -> str:
    """Why it is on its way out, where that is a limit."""
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
