"""A monotonic clock that stands still while this process does not run.

A process that was stopped (SIGSTOP, a debugger) or slept with its machine must not find all its
deadlines passed when it wakes: what it waited for may be lying in its sockets. `watch` reads the
clock every second; a gap much longer than that was no waiting of ours, and is left out.

Where the monotonic clock itself stands still while the machine sleeps (Linux; PEP 418), only the wall clock
tells of it: one that went much further than ours, or back, is a jump too, with nothing to leave out (rule 8).

Knows nothing of: deadlines, what happens after a jump.
Decision: docs/decisions/0003.
"""

import time
from collections.abc import Callable
from typing import Final

from carpool_protocol.runtime.wallclock import unix_s

TICK_S: Final = 1.0
LONGEST_GAP_S: Final = 5.0
"""On a loaded machine a second may become several; a freeze is longer, or harmless."""


class SteadyClock:
    """Call it for the time in seconds."""

    def __init__(
        self, source: Callable[[], float] = time.monotonic, wall: Callable[[], float] = unix_s
    ) -> None:
        self._source = source
        self._last = source()
        self._wall = wall
        self._ahead_s = wall() - self._last
        self._left_out_s = 0.0
        self.jumps = 0
        """How often time was left out, or the wall clock jumped."""

    def __call__(self) -> float:
        now = self._source()
        gap_s = now - self._last
        if gap_s > LONGEST_GAP_S:
            self._left_out_s += gap_s - TICK_S
            self.jumps += 1
        self._last = now
        return now - self._left_out_s

    async def watch(self, on_jump: Callable[[], None]) -> None:
        """Read the clocks every second until cancelled; `on_jump` is called after each gap and jump."""
        import trio  # the door has this clock, and another event loop

        seen = self.jumps
        while True:
            await trio.sleep(TICK_S)
            self()
            self._check_wall_clock()
            if self.jumps != seen:
                seen = self.jumps
                on_jump()

    def _check_wall_clock(self) -> None:
        ahead_s = self._wall() - self._source()
        if abs(ahead_s - self._ahead_s) > LONGEST_GAP_S:
            self.jumps += 1
        self._ahead_s = ahead_s  # a clock that is adjusted little by little does not jump
