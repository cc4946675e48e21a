"""HTTP requests that wait for a broker that is not there yet, or that has died.

Owns how many may wait, with how much, and how long each. Who asks how carpool is wants to know soon; all
others wait as long as the broker may take to come back.

Knows nothing of: what they want, connections.
"""

from typing import Final

from carpool.http.core.effects import HttpRequest

PATIENCE_S: Final = 3.0
"""For a broker that is just being started."""
RETURN_S: Final = 25.0
"""For one that has died. The next one waits 30 s for those who come back."""
MAX_WAITING: Final = 1024
MAX_WAITING_BYTES: Final = 64 * 1024 * 1024


class PendingRequests:
    """All that wait, in order."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[float, HttpRequest]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, x: int, request: HttpRequest, until: float) -> bool:
        """It waits until then. False: there are too many."""
        size = self._bytes + len(request.body)
        if len(self._waiting) >= MAX_WAITING or size > MAX_WAITING_BYTES:
            return False
        self._waiting[x] = (until, request)
        self._bytes = size
        return True

    def remove(self, x: int) -> bool:
        """Its client has gone. False: it does not wait."""
        found = self._waiting.pop(x, None)
        if found is not None:
            self._bytes -= len(found[1].body)
        return found is not None

    def take_due(self, now: float) -> list[tuple[int, HttpRequest]]:
        """Those that have waited long enough by then; they wait no longer."""
        found = [(x, request) for x, (until, request) in self._waiting.items() if until <= now]
        for x, _ in found:
            self.remove(x)
        return found
