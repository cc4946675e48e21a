"""Whether an instance that says nothing is idle, busy or dead. A pure function (rule 8).

A server that runs its tools on its event loop answers no ping while a tool runs: it is busy. So
silence is only held against it once it has lasted as long as any call may take.
"""

from enum import Enum, auto

from carpool_supervisor.core.pool import Instance


class Judgement(Enum):
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


def judge(instance: Instance, now: float, *, may_end: bool) -> Judgement:
    """What the silence of a serving instance means at this moment. `may_end`: its pool can do without it."""
    pool = instance.pool
    policy = pool.policy
    idle = not instance.busy and now - instance.idle_since >= policy.idle_s
    if idle and may_end and not pool.waiting:
        return Judgement.END_IDLE
    if instance.probed_at is None:
        return Judgement.PROBE if now - instance.last_heard >= policy.probe_s else Judgement.NOTHING
    silent_s = now - max(instance.probed_at, instance.last_heard)
    longest = [opened.timeout_s for opened in instance.in_flight.values()]
    until = max((each.until for each in instance.lingering.values()), default=0.0)
    if silent_s >= max([policy.probe_s, policy.timeout_s, *longest]) and now >= until:
        return Judgement.CONDEMN
    return Judgement.SUSPEND if silent_s >= policy.probe_s else Judgement.NOTHING
