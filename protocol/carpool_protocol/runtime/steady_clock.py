"""A monotonic clock that stands still while this process does not run.

A process that was stopped (SIGSTOP, a debugger) or slept with its machine must not find all its
deadlines passed when it wakes: what it waited for may be lying in its sockets. `watch` reads the
clock every second; a gap much longer than that was no waiting of ours, and is left out.

Knows nothing of: deadlines, what happens after a jump.
"""

import time
from collections.abc import Callable
from typing import Final

import trio

TICK_S: Final = 1.0
LONGEST_GAP_S: Final = 5.0
"""On a loaded machine a second may become several; a freeze is longer, or harmless."""


class SteadyClock:
    """Call it for the time in seconds."""

    def __init__(self, source: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._last = source()
        self._left_out_s = 0.0
        self.jumps = 0
        """How often time was left out."""

    def __call__(self) -> float:
        now = self._source()
        gap_s = now - self._last
        if gap_s > LONGEST_GAP_S:
            self._left_out_s += gap_s - TICK_S
            self.jumps += 1
        self._last = now
        return now - self._left_out_s

    async def watch(self, on_jump: Callable[[], None]) -> None:
        """Read the clock every second until cancelled; `on_jump` is called after each gap."""
        seen = self.jumps
        while True:
            await trio.sleep(TICK_S)
            self()
            if self.jumps != seen:
                seen = self.jumps
                on_jump()
