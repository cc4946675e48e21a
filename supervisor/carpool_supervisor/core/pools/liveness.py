"""Liveness of one instance: idle, busy or dead, judged by its silence (rule 8).

A server that runs its tools on its event loop answers no ping while a tool runs: it is busy. So a silent
instance is ended only after the longest time that any of its calls may take. Time in which carpool does not
read its stdout never counts. Time in which the server waits for an agent's answer does not count towards its
end either, because a simple server reads its stdin only for that answer. Meanwhile it gets no new call if it
answers no probe.

Knows nothing of: why reading was paused, the content of asks, how an instance is ended.
"""

from collections.abc import Callable
from enum import Enum, auto

from carpool_supervisor.core.model.pool import Instance


class LivenessVerdict(Enum):
    """The action for a serving instance."""

    NOTHING = auto()
    END_IDLE = auto()
    """No session has needed it for a while."""
    PROBE = auto()
    """It is silent: send a ping."""
    SUSPEND = auto()
    """It has not answered the ping: place nothing new on it."""
    CONDEMN = auto()
    """It is silent for longer than any call may take."""


def judge_liveness(instance: Instance, now: float, *, may_end: Callable[[], bool]) -> LivenessVerdict:
    """Judge the silence of a serving instance at this moment. `may_end`: true if its pool can do without it;
    asked of an idle one only.
    """
    pool = instance.pool
    policy = pool.policy
    idle = not instance.is_busy and now - instance.idle_since >= policy.idle_s
    if idle and not pool.queue and may_end():
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
    """Shift the times of an instance that is read again, so that the pause does not count as silence."""
    since = instance.unread_since
    assert since is not None
    instance.unread_since = None
    instance.last_output_at = _shifted(instance.last_output_at, since, now)
    instance.asks_closed_at = _shifted(instance.asks_closed_at, since, now)
    if instance.probed_at is not None:
        instance.probed_at = _shifted(instance.probed_at, since, now)


def _shifted(at: float, since: float, now: float) -> float:
    """`at`, later by the part of the pause that came after it."""
    return at + now - max(since, at)
