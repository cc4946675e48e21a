"""One direction of a link with little bandwidth, on virtual time: a frame waits for all frames before it.

Owns when a frame arrives. Knows nothing of: what frames say, clocks (`now` is given).
"""

from math import inf


class FrameQueue:
    """See the module. Without a bandwidth, frames arrive after the delay."""

    def __init__(self, bytes_per_s: float = inf, delay_s: float = 0.0) -> None:
        self.bytes_per_s = bytes_per_s
        self.delay_s = delay_s
        self._free_at = -inf
        """When all frames before the next one have left."""

    def put(self, size_bytes: int, now: float) -> float:
        """Put in a frame of this size, and return when it arrives."""
        self._free_at = max(self._free_at, now) + size_bytes / self.bytes_per_s
        return self._free_at + self.delay_s

    def waiting_s(self, now: float) -> float:
        """Return how long the next frame will wait for those before it."""
        return max(self._free_at - now, 0.0)

    def clear(self) -> None:
        """Forget what is on its way: the link was cut."""
        self._free_at = -inf
