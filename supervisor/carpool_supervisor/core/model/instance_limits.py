"""Limits of an instance after which it is recycled: calls, age, memory. Pure functions of its pool's policy.

Limits are soft: an instance that has reached one serves until its replacement is ready (`recycling`).
Instances of one pool start together and share their calls. So the limits of calls and age are a little lower
for each, depending on its generation: successive generations lie far apart (the golden ratio).

Knows nothing of: instances, pools, how memory is measured.
"""

from typing import Final

from carpool_protocol.link.messages import Policy

NEVER: Final = 1 << 62
"""More calls than an instance can ever have."""

SPREAD: Final = 0.1
"""The largest part of a limit that is subtracted."""

_GOLDEN: Final = 0.6180339887498949

OVER_RSS: Final = 2
"""The measurements in a row that must be above the limit: a peak is not a leak."""


def max_calls(policy: Policy, generation: int) -> int:
    """The number of calls at which an instance of this generation is recycled."""
    return policy.limit_calls - int(policy.limit_calls * _part(generation)) or NEVER


def max_age_s(policy: Policy, generation: int) -> float:
    """The age at which an instance of this generation is recycled."""
    return policy.limit_age_s * (1.0 - _part(generation)) or float("inf")


def limit_reached(policy: Policy, generation: int, calls: int, age_s: float) -> str:
    """The limit of calls or age that is reached, as a clause; empty: none."""
    if calls >= max_calls(policy, generation):
        return f"it was given {calls} calls (limits.calls: {policy.limit_calls})"
    if age_s >= max_age_s(policy, generation):
        return f"it is {age_s:.0f} s old (limits.age_s: {policy.limit_age_s:g})"
    return ""


def rss_limit_reached(policy: Policy, rss_mb: int) -> str:
    """The memory limit as a clause if enough measurements were above it; else empty."""
    return f"its processes hold {rss_mb} MiB (limits.rss_mb: {policy.limit_rss_mb})"


def is_over_rss(policy: Policy, rss_mb: int) -> bool:
    """True if this measurement is above the limit."""
    return 0 < policy.limit_rss_mb < rss_mb


def _part(generation: int) -> float:
    """The part of a limit that is subtracted for this generation."""
    return SPREAD * (generation * _GOLDEN % 1.0)
