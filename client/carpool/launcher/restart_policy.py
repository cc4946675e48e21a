"""When one daemon process is to be started again, and when its silence has lasted too long.

Pure: the clock comes in (`now`, monotonic seconds). One `RestartPolicy` per process that the
launcher keeps up, over all its incarnations. Rule 8 and the launcher's back-off.
Refuses to know what the process does.
"""

from collections.abc import Callable

FIRST_DELAY_S, MAX_DELAY_S = 0.2, 5.0
SETTLED_AFTER_S = 5.0
"""A process that lived this long starts with the first delay again. Sessions wait 25 s for it at most."""
SILENT_S = 20.0
CHECK_FROM_FRACTION = 0.25
"""From this part of the allowed silence on, the process is checked for being stopped."""


class RestartPolicy:
    """The record of one process: deaths in a row, and when it last gave a sign of life."""

    def __init__(
        self,
        silent_s: float = SILENT_S,
        *,
        settled_after_s: float = SETTLED_AFTER_S,
        first_delay_s: float = FIRST_DELAY_S,
    ) -> None:
        self._silent_s = silent_s
        self._settled_after_s = settled_after_s
        self._first_delay_s = first_delay_s
        self._started = 0.0
        self._heard = 0.0
        self._delay_s = 0.0
        self.deaths = 0
        """The deaths in a row, without a long life in between."""

    def started(self, now: float) -> None:
        """A new incarnation runs."""
        self._started = self._heard = now

    def alive_received(self, now: float) -> None:
        """The process gave a sign of life, or its silence is excused: it, or this launcher, was stopped."""
        self._heard = now

    def exited(self, now: float) -> float:
        """The process has exited. Returns the seconds until its next start."""
        if now - self._started >= self._settled_after_s:
            self.deaths = 0
            self._delay_s = 0.0
        self.deaths += 1
        self._delay_s = min(self._delay_s * 2, MAX_DELAY_S) if self._delay_s else self._first_delay_s
        return self._delay_s

    def is_silent(self, now: float, is_stopped: Callable[[], bool]) -> bool:
        """True if the process was silent for too long and is not stopped: replace it. `is_stopped` is asked
        from a part of that time on, so that a process that goes on after a stop has the rest of it for a
        sign of life.
        """
        quiet_s = now - self._heard
        if quiet_s >= self._silent_s * CHECK_FROM_FRACTION and is_stopped():
            self.alive_received(now)
            return False
        return quiet_s >= self._silent_s
