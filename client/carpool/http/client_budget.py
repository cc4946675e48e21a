"""The memory of one HTTP door for what waits at its connections: request bodies, or answers left unread.

Owns how many bytes all connections together may have there, and how many of them one principal. Invariants:
one principal has at most three quarters, all clients without a valid token together one eighth; so there is
room for others whoever sends how much. Everything that was taken is given back by the same principal.
`core.shared_budgets` is for what clients with a good token have open.

Knows nothing of: connections, what tokens are, how long a single body or answer may be.
"""

from collections import Counter

from carpool.http.core.access import ANY_PRINCIPAL, NO_PRINCIPAL
from carpool.http.core.limits import MAX_UNFINISHED_BYTES


class ClientBudget:
    """One budget of bytes, of all clients of an HTTP door."""

    def __init__(self, size: int = MAX_UNFINISHED_BYTES) -> None:
        self._size = size
        self.used = 0
        self._used_by: Counter[str] = Counter()

    def reserve(self, principal: str, size: int) -> bool:
        """Count this many bytes. Returns False if they exceed the room; then the caller releases them."""
        self.used += size
        self._used_by[principal] += size
        return self.used <= self._size and self._used_by[principal] <= self._most(principal)

    def release(self, principal: str, size: int) -> None:
        """This many bytes no longer wait."""
        self.used -= size
        self._used_by[principal] -= size
        if not self._used_by[principal]:
            del self._used_by[principal]

    def _most(self, principal: str) -> int:
        if principal == ANY_PRINCIPAL:  # there is nobody to leave room for
            return self._size
        return self._size // 8 if principal == NO_PRINCIPAL else self._size * 3 // 4
