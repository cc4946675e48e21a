"""The times at which the periodic work of a process is due.

Owns one rule: periodic work is due at whole multiples of its period on the monotonic clock, which is the same
clock in all processes of the machine. So all work of one process wakes it once, and what a process says to
another then finds that one awake. While nothing happens the period is `IDLE_S`; a process in which something
happened within `REST_AFTER_S` looks every `BUSY_S`. Ends of processes and input wake a process by their
descriptors, never by this.

Knows nothing of: the work, what happens in the process. Standard library only: the launcher uses it.
"""

import time
from collections.abc import Callable
from typing import Final

ALONE_S: Final = 16.0
"""The period of looks at files without a session of an agent. One that comes causes a look at once."""
IDLE_S: Final = 4.0
BUSY_S: Final = 1.0
REST_AFTER_S: Final = 10.0
LATE_S: Final = 4.0
"""On a loaded machine a timer fires up to so much later. A process that is later still did not run: it was
stopped, or the machine slept.
"""

_SHORTEST: Final = 0.1
"""A wait is at least this part of its period: a timer may fire a little early, which is no reason to wake
twice.
"""


def until_due(period_s: float, now: float | None = None) -> float:
    """Return the seconds to the next multiple of the period. `now`: by the monotonic clock."""
    if now is None:
        now = time.monotonic()
    left_s = period_s - now % period_s
    return left_s if left_s >= period_s * _SHORTEST else left_s + period_s


class Pace:
    """The period of one process, by the number of times that something has happened in it."""

    def __init__(self, happened: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        """`happened` returns a number that grows while anything happens."""
        self._happened = happened
        self._clock = clock
        self._seen = happened()
        self._active_at = clock()

    def delay_s(self, idle_s: float = IDLE_S) -> float:
        """Return the seconds until periodic work is due again. `idle_s`: its period while nothing happens."""
        now, count = self._clock(), self._happened()
        if count != self._seen:
            self._seen, self._active_at = count, now
        return until_due(BUSY_S if now - self._active_at < REST_AFTER_S else idle_s, now)
