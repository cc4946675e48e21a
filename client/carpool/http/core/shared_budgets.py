"""Budgets of one HTTP door that its principals share.

Owns how much of each budget is used, in all and by whom. A principal may use as much as is left for all
others (`memory_shares`), so that none takes it from the others. Where all clients are programs of one user,
there is nobody to leave room for: that principal may use all of it. Invariant: what is reserved never exceeds
the budget.

Knows nothing of: what is counted, what becomes of what does not fit.
"""

from collections.abc import Mapping
from typing import Final

from carpool.http.core.access import ANY_PRINCIPAL, GENERATED_PRINCIPAL
from carpool_protocol.machine.memory_shares import exceeds_share

_ALONE: Final = frozenset({ANY_PRINCIPAL, GENERATED_PRINCIPAL})
"""Beside these there are no other agents."""


class SharedBudget:
    """One budget, in bytes or in anything else that is counted."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self._shares: dict[str, BudgetShare] = {}
        """Of each principal that ever had one: their names are those of the configuration."""

    def share_of(self, principal: str) -> "BudgetShare":
        """Return what this principal uses; always the same object."""
        found = self._shares.get(principal)
        if found is None:
            found = self._shares[principal] = BudgetShare(self, is_alone=principal in _ALONE)
        return found

    def check(self, used: Mapping[str, int]) -> None:
        """Assert that each principal is counted with so much, and that the sum is theirs."""
        counted = {name: share.used for name, share in self._shares.items() if share.used}
        assert counted == {name: size for name, size in used.items() if size}
        assert self.used == sum(counted.values())


class BudgetShare:
    """What one principal uses of a budget."""

    __slots__ = ("_budget", "_is_alone", "used")

    def __init__(self, budget: SharedBudget, *, is_alone: bool) -> None:
        self._budget = budget
        self._is_alone = is_alone
        self.used = 0

    def reserve(self, size: int) -> bool:
        """Count so much more. Returns False if there is no room for it; then it is not counted."""
        budget = self._budget
        total = budget.used + size
        # Up to half of the budget nobody can have more than is left for all others.
        if total + total > budget.size and self._exceeds(size):
            return False
        budget.used = total
        self.used += size
        return True

    def count(self, size: int) -> None:
        """Count so much more, also where there is no room: what came must be kept."""
        self._budget.used += size
        self.used += size

    @property
    def is_full(self) -> bool:
        """True if this principal has its share: nothing more of it is to be taken."""
        return self._exceeds(0)

    def release(self, size: int) -> None:
        """Count so much less."""
        self._budget.used -= size
        self.used -= size

    def _exceeds(self, size: int) -> bool:
        budget = self._budget
        if self._is_alone:
            return budget.used + size > budget.size
        return exceeds_share(budget.size, budget.used, self.used, size)
