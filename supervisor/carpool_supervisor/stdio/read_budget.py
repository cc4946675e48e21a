"""How much is read from servers: no more than the broker takes, and unfinished lines within one budget.

Owns who is paused and why. While much waits for the broker nobody is read from, so servers wait in turn
(rule 10). While the unfinished long lines of all together exceed their budget only the oldest of them goes
on, as at the agents' door (rule 3): 64 servers that each write a line of 64 MiB cost 256 MiB and not 4 GiB.
A server that stops in the middle of the oldest is ended by its silence (rule 8); those that are not read
meanwhile are not silent (`liveness`).

Knows nothing of: instances, calls, what a line says.
"""

from typing import Final

from carpool_supervisor.stdio.child_io import LONG_LINE_BYTES, ChildIo

HELD_HIGH_BYTES: Final = 64 * 1024 * 1024
HELD_LOW_BYTES: Final = 16 * 1024 * 1024
"""While so much waits for the broker, no more is read from servers."""
LINES_BUDGET_BYTES: Final = 256 * 1024 * 1024
"""Of all unfinished lines above `LONG_LINE_BYTES`; shorter ones are not counted."""


class ReadBudget:
    """The reading of all instances. `add` and `remove` every one."""

    def __init__(self, budget_bytes: int = LINES_BUDGET_BYTES) -> None:
        self._budget_bytes = budget_bytes
        self._all: dict[ChildIo, None] = {}
        self._long: dict[ChildIo, None] = {}
        """Whose unfinished line is long, the oldest first."""
        self._rationed: set[ChildIo] = set()
        self._broker_is_slow = False

    def add(self, io: ChildIo) -> None:
        """An instance begins."""
        self._all[io] = None
        if self._broker_is_slow:
            io.pause()

    def remove(self, io: ChildIo) -> None:
        """It is gone."""
        self._all.pop(io, None)
        self._rationed.discard(io)
        if io in self._long:
            del self._long[io]
            self._ration()

    def line_grew(self, io: ChildIo) -> None:
        """Its unfinished line is long, or was."""
        if io.pending_bytes > LONG_LINE_BYTES:
            self._long[io] = None
        elif io in self._long:
            del self._long[io]
        else:
            return
        self._ration()

    def settle(self, held_bytes: int) -> bool:
        """The burst is over, and so much waits for the broker. Whether anything is read now that was not, or
        the other way round.
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
