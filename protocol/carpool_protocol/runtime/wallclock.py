"""The time of day for lines that people read. The only module that asks the system for it.

Not for durations: the wall clock jumps (use `trio.current_time` in shells, `now` in cores). Knows nothing of:
the text around the time.
"""

import time

_second = -1
_text = ""


def wallclock() -> str:
    """The current time in UTC as `2026-11-21T22:00:01.123Z`: fixed width, sorts as text."""
    global _second, _text
    second, rest_ns = divmod(time.time_ns(), 1_000_000_000)
    if second != _second:  # formatting a date costs 10 times the rest
        _second, _text = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
    return f"{_text}.{rest_ns // 1_000_000:03d}Z"


def utc_text(seconds: float) -> str:
    """The time so many seconds after 1970 in UTC, in whole seconds: `2026-11-21T22:00:01Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def unix_s() -> float:
    """Seconds since 1970, for comparison with system values in this unit (start times of processes)."""
    return time.time_ns() / 1e9
