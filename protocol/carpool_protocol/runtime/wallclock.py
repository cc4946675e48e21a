"""The time of day, for lines that people read. The only place that asks for it.

Never for durations: the wall clock jumps (use `trio.current_time` in shells, `now` in cores).
Knows nothing of: what is written beside it.
"""

import time

_second = -1
_text = ""


def wallclock() -> str:
    """Now in UTC as `2026-11-21T22:00:01.123Z`: sorts as text, the same width always."""
    global _second, _text
    second, rest_ns = divmod(time.time_ns(), 1_000_000_000)
    if second != _second:  # formatting a date costs 10 times the rest
        _second, _text = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
    return f"{_text}.{rest_ns // 1_000_000:03d}Z"


def unix_s() -> float:
    """Seconds since 1970, for comparing with what the system tells in them (start times of processes)."""
    return time.time_ns() / 1e9
