"""How often another node may have something done within a minute.

Pure. Knows nothing of: what is counted, clocks (`now` is given).
"""

from math import inf
from typing import Final

MINUTE_S: Final = 60.0


class MinuteCounts:
    """Counts by node, from zero again each minute. `most`: so many are allowed to a node, and `most_of_all`
    to all nodes together.
    """

    def __init__(self, most: int, most_of_all: float = inf) -> None:
        self._most = most
        self._most_of_all = most_of_all
        self._allowed = 0
        self._counts: dict[str, int] = {}
        self._since = float("-inf")

    def allows(self, node: str, now: float) -> bool:
        """Count one more of a node. False: it is one too many."""
        if now >= self._since + MINUTE_S:
            self._counts.clear()
            self._allowed = 0
            self._since = now
        count = self._counts[node] = self._counts.get(node, 0) + 1
        is_allowed = count <= self._most and self._allowed < self._most_of_all
        self._allowed += is_allowed
        return is_allowed
