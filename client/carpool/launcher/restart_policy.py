"""When one daemon process is to be started again, and when its silence has lasted too long.

Pure: the clock comes in (`now`, monotonic seconds). One `RestartPolicy` per process that the
launcher keeps up, over all its incarnations. Rule 8 and the launcher's back-off.
Refuses to know what the process does.
"""

from collections.abc import Callable

FIRST_DELAY_S, MAX_DELAY_S = 0.2, 5.0
SETTLED_AFTER_S = 5.0
"""A process that lived this long starts with the first delay again: sessions wait for it, 25 s at most."""
SILENT_S = 20.0
CHECK_FROM_FRACTION = 0.25
"""Of the time in which a process may be silent: after so much of it we look whether it is stopped."""


class RestartPolicy:
    """One process's record: deaths in a row, and when it was last heard."""

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
        """In a row, without a settled life between."""

    def started(self, now: float) -> None:
        """A new incarnation runs."""
        self._started = self._heard = now

    def alive_received(self, now: float) -> None:
        """It said something; or its silence is excused (it is stopped, or we were)."""
        self._heard = now

    def exited(self, now: float) -> float:
        """It is gone: how long to wait (seconds) before it is started again."""
        if now - self._started >= self._settled_after_s:
            self.deaths = 0
            self._delay_s = 0.0
        self.deaths += 1
        self._delay_s = min(self._delay_s * 2, MAX_DELAY_S) if self._delay_s else self._first_delay_s
        return self._delay_s

    def is_silent(self, now: float, is_stopped: Callable[[], bool]) -> bool:
        """Nothing was heard for too long, and it is not stopped: replace it. `is_stopped` is asked from a
        part of that time on: whoever goes on after a stop has the rest of it to say something.
        """
        quiet_s = now - self._heard
        if quiet_s >= self._silent_s * CHECK_FROM_FRACTION and is_stopped():
            self.alive_received(now)
            return False
        return quiet_s >= self._silent_s
