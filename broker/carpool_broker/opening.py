"""Streams of a carrier that wait to be open: it is looked what is where their sessions want to be.

Owns the frames that come for them meanwhile, within a bound.
Knows nothing of: what a frame means, who looks.
"""

from typing import Final

HELD_BYTES: Final = 16 * 1024 * 1024
"""Of all streams of a connection that wait together."""


class Opening:
    """Those of one connection."""

    def __init__(self) -> None:
        self._held: dict[int, list[bytes]] = {}
        self._bytes = 0

    def __contains__(self, number: int) -> bool:
        return number in self._held

    def begin(self, number: int) -> None:
        """This stream waits from now on."""
        self._held[number] = []

    def hold(self, number: int, frame: bytes) -> bool:
        """Keep a frame of one that waits. False: that is too much."""
        self._held[number].append(frame)
        self._bytes += len(frame)
        return self._bytes <= HELD_BYTES

    def end(self, number: int) -> list[bytes] | None:
        """It waits no more: its frames. None: it did not wait, or not any more."""
        frames = self._held.pop(number, None)
        self._bytes -= sum(map(len, frames or ()))
        return frames
