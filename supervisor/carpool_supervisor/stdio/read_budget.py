"""The limit on reading from servers: no more than the broker takes, and one budget for all unfinished long
lines.

Decides which instances are paused. While many bytes wait for the broker no instance is read, so servers wait
in turn (rule 10). While all unfinished long lines together exceed their budget only the oldest of them is
read on, as at the agents' socket (rule 3): 64 servers that each write a line of 64 MiB cost 256 MiB, not 4
GiB. A server that stops within the oldest line is ended for its silence (rule 8); an instance that is not
read does not count as silent (`liveness`).

Knows nothing of: instances, calls, the meaning of a line.
"""

from typing import Final

from carpool_supervisor.stdio.child_io import LONG_LINE_BYTES, ChildIo

HELD_HIGH_BYTES: Final = 64 * 1024 * 1024
HELD_LOW_BYTES: Final = 16 * 1024 * 1024
"""While this many bytes wait for the broker, no server is read."""
LINES_BUDGET_BYTES: Final = 256 * 1024 * 1024
"""The limit for all unfinished lines above `LONG_LINE_BYTES`; shorter ones are not counted."""


class ReadBudget:
    """The pauses of all instances. Call `add` and `remove` for each of them."""

    def __init__(self, budget_bytes: int = LINES_BUDGET_BYTES) -> None:
        self._budget_bytes = budget_bytes
        self._all: dict[ChildIo, None] = {}
        self._long: dict[ChildIo, None] = {}
        """The instances with an unfinished long line, the oldest first."""
        self._rationed: set[ChildIo] = set()
        self._broker_is_slow = False

    def add(self, io: ChildIo) -> None:
        """Add a new instance."""
        self._all[io] = None
        if self._broker_is_slow:
            io.pause()

    def remove(self, io: ChildIo) -> None:
        """Remove an instance that has ended."""
        self._all.pop(io, None)
        self._rationed.discard(io)
        if io in self._long:
            del self._long[io]
            self._ration()

    def line_grew(self, io: ChildIo) -> None:
        """Its unfinished line has become long, or has ended."""
        if io.pending_bytes > LONG_LINE_BYTES:
            self._long[io] = None
        elif io in self._long:
            del self._long[io]
        else:
            return
        self._ration()

    def settle(self, held_bytes: int) -> bool:
        """End a burst; this many bytes wait for the broker. Returns True if any instance was paused or
        resumed.
        """
        if held_bytes > HELD_HIGH_BYTES and not self._broker_is_slow:
            self._broker_is_slow = True
            for io in list(self._all):
                io.pause()
            return True
        if self._broker_is_slow and held_bytes < HELD_LOW_BYTES:
            self._broker_is_slow = False
            for io in list(self._all):
                if io not in self._rationed:
                    io.resume()
            return True
        return False

    def _ration(self) -> None:
        spent = sum(io.pending_bytes for io in self._long) > self._budget_bytes
        rationed = set(list(self._long)[1:]) if spent else set()
        before, self._rationed = self._rationed, rationed
        for io in rationed - before:
            io.pause()
        if not self._broker_is_slow:
            for io in before - rationed:
                io.resume()
