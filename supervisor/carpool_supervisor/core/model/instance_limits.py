"""Whether an instance has done its time: calls, age, memory. Pure functions of its pool's policy.

A limit is not a wall: who has reached it goes on until another can take its place (`recycling`). Instances
of one pool start together and share their calls, so of calls and age each of them has a little less than
the limit, by its generation: generations that follow one another lie far apart (the golden ratio).

Knows nothing of: instances, pools, how memory is measured.
"""

from typing import Final

from carpool_protocol.link.messages import Policy

NEVER: Final = 1 << 62
"""More calls than an instance can have."""

SPREAD: Final = 0.1
"""At most this part of a limit is taken off."""

_GOLDEN: Final = 0.6180339887498949

OVER_RSS: Final = 2
"""So many measurements in a row above the limit: a peak is not a leak."""


def max_calls(policy: Policy, generation: int) -> int:
    """After so many calls it has done its time."""
    return policy.limit_calls - int(policy.limit_calls * _part(generation)) or NEVER


def max_age_s(policy: Policy, generation: int) -> float:
    """At this age it has."""
    return policy.limit_age_s * (1.0 - _part(generation)) or float("inf")


def limit_reached(policy: Policy, generation: int, calls: int, age_s: float) -> str:
    """The limit of calls or age that is reached, as a clause; empty: none."""
    if calls >= max_calls(policy, generation):
        return f"it was given {calls} calls (limits.calls: {policy.limit_calls})"
    if age_s >= max_age_s(policy, generation):
        return f"it is {age_s:.0f} s old (limits.age_s: {policy.limit_age_s:g})"
    return ""


def rss_limit_reached(policy: Policy, rss_mb: int) -> str:
    """The same for memory that was measured often enough."""
    return f"its processes hold {rss_mb} MiB (limits.rss_mb: {policy.limit_rss_mb})"


def is_over_rss(policy: Policy, rss_mb: int) -> bool:
    """Whether one measurement is above the limit."""
    return 0 < policy.limit_rss_mb < rss_mb


def _part(generation: int) -> float:
    """So much of a limit is taken off."""
    return SPREAD * (generation * _GOLDEN % 1.0)
