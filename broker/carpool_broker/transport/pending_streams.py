"""Streams of a carrier that wait to be open: it is looked what is where their sessions want to be.

Owns the frames that come for them meanwhile, within a bound.
Knows nothing of: what a frame means, who looks.
"""

from typing import Final

HELD_BYTES: Final = 16 * 1024 * 1024
"""Of all streams of a connection that wait together. What an earlier broker has taken of a session that comes
back does not count (as in `attach`).
"""


class Opening:
    """Those of one connection."""

    def __init__(self) -> None:
        self._held: dict[int, list[bytes]] = {}
        self._taken: dict[int, int] = {}
        """So many of each do not count."""
        self._bytes = 0

    def __contains__(self, number: int) -> bool:
        return number in self._held

    def begin(self, number: int, taken: int = 0) -> None:
        """This stream waits from now on. `taken`: so many frames an earlier broker has taken."""
        self._held[number], self._taken[number] = [], taken

    def hold(self, number: int, frame: bytes) -> bool:
        """Keep a frame of one that waits. False: that is too much."""
        held = self._held[number]
        held.append(frame)
        if len(held) > self._taken[number]:
            self._bytes += len(frame)
        return self._bytes <= HELD_BYTES

    def end(self, number: int) -> list[bytes] | None:
        """It waits no more: its frames. None: it did not wait, or not any more."""
        frames, taken = self._held.pop(number, None), self._taken.pop(number, 0)
        self._bytes -= sum(map(len, (frames or [])[taken:]))
        return frames
