"""Liveness of one instance: idle, busy or dead, judged by its silence (rule 8).

A server that runs its tools on its event loop answers no ping while a tool runs: it is busy. So an instance
is ended for its silence only after the longest time that any of its calls may take. Time in which carpool
does not read its stdout does not count at all. Time in which the server waits for an agent's answer does not
count towards its end either: a simple server reads its stdin for that answer only. It gets no new call
meanwhile, if it answers no probe.

Knows nothing of: why reading was paused, what was asked, how an instance is ended.
"""

from enum import Enum, auto

from carpool_supervisor.core.model.pool import Instance


class LivenessVerdict(Enum):
    """What to do about an instance that serves."""

    NOTHING = auto()
    END_IDLE = auto()
    """Nobody has needed it for a while."""
    PROBE = auto()
    """It has been silent: ask whether it lives."""
    SUSPEND = auto()
    """It has not answered the probe: place nothing new on it."""
    CONDEMN = auto()
    """No call may take as long as it has been silent."""


def judge_liveness(instance: Instance, now: float, *, may_end: bool) -> LivenessVerdict:
    """What the silence of a serving instance means at this moment. `may_end`: its pool can do without it."""
    pool = instance.pool
    policy = pool.policy
    idle = not instance.is_busy and now - instance.idle_since >= policy.idle_s
    if idle and may_end and not pool.queue:
        return LivenessVerdict.END_IDLE
    if instance.unread_since is not None:
        return LivenessVerdict.NOTHING
    if instance.probed_at is None:
        return (
            LivenessVerdict.PROBE
            if now - instance.last_output_at >= policy.probe_s
            else LivenessVerdict.NOTHING
        )
    silent_s = now - max(instance.probed_at, instance.last_output_at)
    longest = [opened.timeout_s for opened in instance.in_flight.values()]
    until = max((each.until for each in instance.abandoned.values()), default=0.0)
    counted_s = 0.0 if instance.asks else min(silent_s, now - instance.asks_closed_at)
    if counted_s >= max([policy.probe_s, policy.timeout_s, *longest]) and now >= until:
        return LivenessVerdict.CONDEMN
    return LivenessVerdict.SUSPEND if silent_s >= policy.probe_s else LivenessVerdict.NOTHING


def leave_out_pause(instance: Instance, now: float) -> None:
    """Reading from this instance goes on: shift its times, so that the pause does not count as silence."""
    since = instance.unread_since
    assert since is not None
    instance.unread_since = None
    instance.last_output_at = _shifted(instance.last_output_at, since, now)
    instance.asks_closed_at = _shifted(instance.asks_closed_at, since, now)
    if instance.probed_at is not None:
        instance.probed_at = _shifted(instance.probed_at, since, now)


def _shifted(at: float, since: float, now: float) -> float:
    """`at`, later by as much of the pause as came after it."""
    return at + now - max(since, at)
