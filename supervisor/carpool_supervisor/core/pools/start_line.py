"""One line of pools that wait for a start, in order. Those that are slow to greet stand behind all others.

Stands apart because the start queue has several such lines. Knows nothing of: turns, room, what a line is
for.
"""

from collections import OrderedDict

from carpool_protocol.ids import PoolKey
from carpool_supervisor.core.model.pool import Pool


class StartLine:
    """Pools in the order in which they start. A pool keeps its place when it is added again."""

    def __init__(self) -> None:
        self._prompt: OrderedDict[PoolKey, None] = OrderedDict()
        self._slow: OrderedDict[PoolKey, None] = OrderedDict()
        """Those that are slow to greet."""

    def __contains__(self, key: PoolKey) -> bool:
        return key in self._prompt or key in self._slow

    def __len__(self) -> int:
        return len(self._prompt) + len(self._slow)

    @property
    def has_slow(self) -> bool:
        """True if a pool that is slow to greet is in the line."""
        return bool(self._slow)

    def add(self, pool: Pool) -> None:
        """Put the pool at the end, if it is not in its part of the line already."""
        here, there = (self._slow, self._prompt) if pool.is_slow_to_greet else (self._prompt, self._slow)
        there.pop(pool.key, None)
        here.setdefault(pool.key)

    def discard(self, key: PoolKey) -> None:
        """Take the pool out, if it is in the line."""
        self._prompt.pop(key, None)
        self._slow.pop(key, None)

    def move(self, key: PoolKey, *, last: bool) -> None:
        """Move the pool to the end of its part of the line, or to the front, if it is in the line."""
        for part in (self._prompt, self._slow):
            if key in part:
                part.move_to_end(key, last=last)

    def keys(self, *, with_slow: bool) -> list[PoolKey]:
        """The pools in order."""
        return [*self._prompt, *self._slow] if with_slow else list(self._prompt)
