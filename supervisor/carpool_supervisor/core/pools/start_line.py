"""One line of pools that wait for a start, in order. Those that are slow to greet stand behind all others.

Layers (one configuration file with all that it includes) take turns, each with its own pools in order: a
layer with a hundred waiting pools delays the first one of another layer by one start. Layers that may not
start anything are passed over as a whole, however many of their pools wait.

Stands apart because the start queue has several such lines. Knows nothing of: turns, room, what a line is
for, why a layer may not start anything.
"""

from collections import OrderedDict
from collections.abc import Callable
from itertools import zip_longest

from carpool_protocol.ids import PoolKey
from carpool_supervisor.core.model.pool import Pool

MayStart = Callable[[str, bool], bool]
"""True if pools of this layer may start, those that are slow to greet or the others."""


class StartLine:
    """Pools in the order in which they start. A pool keeps its place when it is added again."""

    def __init__(self) -> None:
        self._places: dict[PoolKey, tuple[bool, str]] = {}
        """Of each pool: is it slow to greet, and its layer."""
        self._parts: dict[bool, OrderedDict[str, OrderedDict[PoolKey, None]]] = {
            False: OrderedDict(),
            True: OrderedDict(),
        }
        """The pools of each layer, next layer first: those that are not slow to greet, and those that are."""

    def __contains__(self, key: PoolKey) -> bool:
        return key in self._places

    def __len__(self) -> int:
        return len(self._places)

    def add(self, pool: Pool) -> None:
        """Put the pool at the end, if it is not in its part of the line already."""
        place = pool.is_slow_to_greet, pool.layer
        if self._places.get(pool.key) != place:
            self.discard(pool.key)
            self._places[pool.key] = place
            self._parts[place[0]].setdefault(place[1], OrderedDict())[pool.key] = None

    def discard(self, key: PoolKey) -> None:
        """Take the pool out, if it is in the line."""
        place = self._places.pop(key, None)
        if place is not None:
            is_slow, layer = place
            pools = self._parts[is_slow][layer]
            del pools[key]
            if not pools:
                del self._parts[is_slow][layer]

    def move(self, key: PoolKey, *, last: bool) -> None:
        """Move the pool behind those of its layer in its part of the line, or before them, if it is in the
        line.
        """
        place = self._places.get(key)
        if place is not None:
            self._parts[place[0]][place[1]].move_to_end(key, last=last)

    def layer_started(self, layer: str) -> None:
        """A pool of this layer has started: the others have their turn before it."""
        for part in self._parts.values():
            if layer in part:
                part.move_to_end(layer)

    def keys(self, may_start: MayStart) -> list[PoolKey]:
        """The pools in order, without those that may not start."""
        found: list[PoolKey] = []
        for is_slow, part in self._parts.items():
            lines = [pools for layer, pools in part.items() if may_start(layer, is_slow)]
            if len(lines) == 1:
                found += lines[0]
            else:
                found += [key for each in zip_longest(*lines) for key in each if key is not None]
        return found

    def is_held_up(self, may_start: MayStart) -> bool:
        """True if a pool is in the line that may not start."""
        return any(not may_start(layer, is_slow) for is_slow, part in self._parts.items() for layer in part)
