"""A monotonic clock that leaves out times in which this process did not run.

A process that was stopped (SIGSTOP, a debugger) or slept with its machine must not find all its deadlines
passed when it wakes: the answers may be waiting in its sockets. `watch` reads the clock every few seconds; a
gap that is longer by `LATE_S` means that the process did not run, and is left out.

On Linux the monotonic clock itself stands still while the machine sleeps (PEP 418), and only the wall clock
shows it. A wall clock that moved much further than ours, or back, also counts as a jump, with nothing to
leave out (rule 8).

Knows nothing of: deadlines, the reaction to a jump.
Decision: docs/decisions/0003.
"""

import time
from collections.abc import Callable
from typing import Final

from carpool_protocol.runtime.pace import LATE_S, Pace
from carpool_protocol.runtime.wallclock import unix_s

TICK_S: Final = 1.0
JUMP_S: Final = 5.0
"""A wall clock that moved by more than this, next to ours, has jumped."""


class SteadyClock:
    """A clock to call: returns monotonic seconds without the times left out."""

    def __init__(
        self, source: Callable[[], float] = time.monotonic, wall: Callable[[], float] = unix_s
    ) -> None:
        self._source = source
        self._last = source()
        self._wall = wall
        self._ahead_s = wall() - self._last
        self._left_out_s = 0.0
        self._wait_s = TICK_S
        """The time until `watch` reads the clock again, if nobody does before."""
        self.jumps = 0
        """Number of times that a gap was left out or the wall clock jumped."""

    def __call__(self) -> float:
        now = self._source()
        gap_s = now - self._last
        if gap_s > self._wait_s + LATE_S:
            self._left_out_s += gap_s - self._wait_s
            self.jumps += 1
        self._last = now
        return now - self._left_out_s

    async def watch(self, on_jump: Callable[[], None], pace: Pace | None = None) -> None:
        """Read the clocks until cancelled, every second or at this pace, and call `on_jump` after each gap
        and jump.
        """
        import trio  # the door has this clock, and another event loop

        seen = self.jumps
        while True:
            self._wait_s = TICK_S if pace is None else pace.delay_s()
            await trio.sleep(self._wait_s)
            self()
            self._check_wall_clock()
            if self.jumps != seen:
                seen = self.jumps
                on_jump()

    def _check_wall_clock(self) -> None:
        ahead_s = self._wall() - self._source()
        if abs(ahead_s - self._ahead_s) > JUMP_S:
            self.jumps += 1
        self._ahead_s = ahead_s  # small adjustments of the clock are no jump
