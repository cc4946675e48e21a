"""The limit on reading from servers: no more than the broker takes, and one budget for all unfinished long
lines.

Decides which instances are paused. While many bytes wait for the broker no instance is read, so servers wait
in turn (rule 10). While all unfinished long lines together exceed their budget, `line_shares` decides who is
read on, as at the agents' socket (rule 3): 64 servers that each write a line of 64 MiB cost 256 MiB, not 4
GiB. A server that hardly writes on while others wait for its line is ended for its silence (rule 8); an
instance that is not read does not count as silent (`liveness`).

Knows nothing of: instances, calls, the meaning of a line.
"""

from typing import Final

from carpool_protocol.machine.line_shares import MIN_RATE_BYTES, LineShares
from carpool_supervisor.stdio.child_io import LONG_LINE_BYTES, ChildIo

HELD_HIGH_BYTES: Final = 64 * 1024 * 1024
HELD_LOW_BYTES: Final = 16 * 1024 * 1024
"""While this many bytes wait for the broker, no server is read."""
LINES_BUDGET_BYTES: Final = 256 * 1024 * 1024
"""The limit for all unfinished lines above `LONG_LINE_BYTES`; shorter ones are not counted."""


class ReadBudget:
    """The pauses of all instances. Call `add` and `remove` for each of them."""

    def __init__(self, budget_bytes: int = LINES_BUDGET_BYTES) -> None:
        self._all: dict[ChildIo, None] = {}
        self._shares: LineShares[ChildIo, ChildIo] = LineShares(budget_bytes)
        self._life_bytes: dict[ChildIo, int] = {}
        """The size of each unfinished long line when it last counted as a sign of life."""
        self._broker_is_slow = False

    def add(self, io: ChildIo) -> None:
        """Add a new instance."""
        self._all[io] = None
        if self._broker_is_slow:
            io.pause()

    def remove(self, io: ChildIo) -> None:
        """Remove an instance that has ended."""
        self._all.pop(io, None)
        self._line_ended(io)

    def line_grew(self, io: ChildIo) -> bool:
        """Its unfinished line has become long, or has ended. Returns True if that is a sign of life: bytes of
        a line for which others wait are one only by the `MIN_RATE_BYTES`.
        """
        if io.pending_bytes <= LONG_LINE_BYTES:
            self._line_ended(io)
            return True
        held = self._shares.held
        self._shares.line_grew(io, io, io.pending_bytes)
        self._hold(held)
        grown = io.pending_bytes - self._life_bytes.get(io, 0)
        if grown < MIN_RATE_BYTES and self._shares.is_waited_for(io):
            return False
        self._life_bytes[io] = io.pending_bytes
        return True

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
                if io not in self._shares.held:
                    io.resume()
            return True
        return False

    def _line_ended(self, io: ChildIo) -> None:
        self._life_bytes.pop(io, None)
        held = self._shares.held
        if self._shares.line_ended(io):
            self._hold(held)

    def _hold(self, before: frozenset[ChildIo]) -> None:
        """Pause and resume the instances that are held now, or are no longer."""
        held = self._shares.held
        for io in held - before:
            io.pause()
        if not self._broker_is_slow:
            for io in before - held:
                if io in self._all:
                    io.resume()
