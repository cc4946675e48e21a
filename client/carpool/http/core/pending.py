"""HTTP requests that wait for a broker that is not there yet, or that has died, or for the next door.

Owns how many may wait, with how much, and how long each. Who asks how carpool is wants to know soon; all
others wait as long as the broker may take to come back, or the door to be handed over.

Knows nothing of: what they want, connections.
"""

from typing import Final

from carpool.http.core.effects import HttpRequest

PATIENCE_S: Final = 3.0
"""The wait for a broker that is starting."""
RETURN_S: Final = 25.0
"""The wait for the broker after one that has died. That one waits 30 s for sessions to come back."""
HOLD_S: Final = 40.0
"""The wait for the next door: longer than calls at their servers may take until then
(`stop_commands.DRAIN_S`).
"""
MAX_WAITING: Final = 1024
MAX_WAITING_BYTES: Final = 64 * 1024 * 1024


class PendingRequests:
    """The waiting HTTP requests, in order."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[float, HttpRequest]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, x: int) -> bool:
        return x in self._waiting

    def add(self, x: int, request: HttpRequest, until: float) -> bool:
        """Let a request wait until this time. Returns False if too many wait."""
        size = self._bytes + len(request.body)
        if len(self._waiting) >= MAX_WAITING or size > MAX_WAITING_BYTES:
            return False
        self._waiting[x] = (until, request)
        self._bytes = size
        return True

    def remove(self, x: int) -> HttpRequest | None:
        """Remove and return a request that waits no longer. None: it did not wait."""
        found = self._waiting.pop(x, None)
        if found is None:
            return None
        self._bytes -= len(found[1].body)
        return found[1]

    def take_due(self, now: float) -> list[tuple[int, HttpRequest]]:
        """Remove and return the requests whose wait is over."""
        found = [(x, request) for x, (until, request) in self._waiting.items() if until <= now]
        for x, _ in found:
            self.remove(x)
        return found
