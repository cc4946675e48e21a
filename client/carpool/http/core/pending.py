"""HTTP requests that wait for a broker that is not there yet, or that has died, or for the next door.

Owns how many may wait, with how much, and how long each; principals share both bounds. Who asks how carpool
is wants to know soon; all others wait as long as the broker may take to come back, or the door to be handed
over.

Knows nothing of: what they want, connections.
"""

from collections import Counter
from typing import Final, NamedTuple

from carpool.http.core.effects import HttpRequest
from carpool.http.core.shared_budgets import SharedBudget

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


class _Waiting(NamedTuple):
    """A request that waits, until when, and whose it is."""

    until: float
    request: HttpRequest
    principal: str


class PendingRequests:
    """The waiting HTTP requests, in order."""

    def __init__(self) -> None:
        self._waiting: dict[int, _Waiting] = {}
        self._count = SharedBudget(MAX_WAITING)
        self._bytes = SharedBudget(MAX_WAITING_BYTES)

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, x: int) -> bool:
        return x in self._waiting

    def add(self, x: int, request: HttpRequest, principal: str, until: float) -> bool:
        """Let a request wait until this time. Returns False if too many wait, of all or of its principal."""
        count = self._count.share_of(principal)
        if not count.reserve(1):
            return False
        if not self._bytes.share_of(principal).reserve(len(request.body)):
            count.release(1)
            return False
        self._waiting[x] = _Waiting(until, request, principal)
        return True

    def extend(self, until: float) -> None:
        """Let every request wait at least until this time."""
        for x, each in self._waiting.items():
            self._waiting[x] = each._replace(until=max(each.until, until))

    def remove(self, x: int) -> HttpRequest | None:
        """Remove and return a request that waits no longer. None: it did not wait."""
        found = self._waiting.pop(x, None)
        if found is None:
            return None
        self._count.share_of(found.principal).release(1)
        self._bytes.share_of(found.principal).release(len(found.request.body))
        return found.request

    def take_due(self, now: float) -> list[tuple[int, HttpRequest]]:
        """Remove and return the requests whose wait is over."""
        found = [(x, each.request) for x, each in self._waiting.items() if each.until <= now]
        for x, _ in found:
            self.remove(x)
        return found

    def check(self) -> None:
        """Assert that the sums are those of the waiting requests."""
        self._count.check(Counter(each.principal for each in self._waiting.values()))
        sizes: Counter[str] = Counter()
        for each in self._waiting.values():
            sizes[each.principal] += len(each.request.body)
        self._bytes.check(sizes)
