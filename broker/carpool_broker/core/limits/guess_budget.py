"""How many similar names are searched in a second, for names that nobody has.

Owns the counts of the present second, by principal; a session without a principal stands for itself. A search
among a thousand names takes a millisecond and more, and a request names what it likes. Beyond the budget the
error is told without similar names.

Deterministic: time is a parameter. Knows nothing of: names, errors, how names are compared.
"""

from collections import Counter
from typing import Final

from carpool_broker.core.model.session import Session, SessionOwner

GUESSES_OF_ONE: Final = 8
"""Searches in one second for one principal: an agent that misspells names waits for the answers to them."""
GUESSES_OF_ALL: Final = 32
"""The same for all together."""


class GuessBudget:
    """The searches of one second."""

    __slots__ = ("_counts", "_left", "_second")

    def __init__(self) -> None:
        self._second = 0
        self._left = GUESSES_OF_ALL
        self._counts: Counter[SessionOwner] = Counter()

    def take(self, session: Session, now: float) -> bool:
        """Count one more search for this session. Returns False if there is to be none."""
        second = int(now)
        if second != self._second:
            self._second, self._left = second, GUESSES_OF_ALL
            self._counts.clear()
        owner = session.owner
        if not self._left or self._counts[owner] >= GUESSES_OF_ONE:
            return False
        self._left -= 1
        self._counts[owner] += 1
        return True
