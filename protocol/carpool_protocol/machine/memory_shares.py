"""The share of one owner in a budget that many owners use (docs/decisions/0020).

One rule: an owner may use as much as is left for all others. So the first that floods gets half, the next one
half of the rest, and the sum never exceeds the budget. Also owns the number of bytes that each owner uses
(`MemoryUse`).

Knows nothing of: what is counted, who the owners are, what becomes of what does not fit.
"""

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

Owner = TypeVar("Owner", bound=Hashable)


def exceeds_share(budget: int, total: int, mine: int, more: int) -> bool:
    """True if an owner that has `mine` of the `total` may not have so much `more`."""
    return mine + more > budget - total


class MemoryUse(Generic[Owner]):
    """The number of bytes that each owner uses."""

    __slots__ = ("_by_owner", "total_bytes")

    def __init__(self) -> None:
        self.total_bytes = 0
        self._by_owner: dict[Owner, int] = {}
        """Owners that use none are not in it."""

    def of(self, owner: Owner) -> int:
        """Return the number of bytes that this owner uses."""
        return self._by_owner.get(owner, 0)

    def add(self, owner: Owner, size_bytes: int) -> None:
        """Add so many bytes to what the owner uses; a negative number for what it no longer uses."""
        self.total_bytes += size_bytes
        used = self._by_owner.get(owner, 0) + size_bytes
        if used:
            self._by_owner[owner] = used
        else:
            self._by_owner.pop(owner, None)

    def exceeds_share(self, budget: int, owner: Owner, more: int) -> bool:
        """True if this owner may not have so much `more` of the budget."""
        return exceeds_share(budget, self.total_bytes, self._by_owner.get(owner, 0), more)

    def check(self, used: Mapping[Owner, int]) -> None:
        """Assert that each owner is counted with so many bytes, and that the sum is theirs."""
        assert self._by_owner == {owner: size for owner, size in used.items() if size}
        assert self.total_bytes == sum(self._by_owner.values())
