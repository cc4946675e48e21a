"""One line of pools that wait for a start, in order. Those that are slow to greet stand behind all others.

Layers (one configuration file with all that it includes) take turns, and within a layer so do those whose
calls wait (principals, and sessions without one), each with its own pools in order: a layer or an agent with
a hundred waiting pools delays the first one of another by one start. Layers that may not start anything are
passed over as a whole, however many of their pools wait.

A pool that several wait for has its place among the pools of whoever waits for the fewest, as far as that was
seen when their calls came.

Stands apart because the start queue has several such lines. Knows nothing of: turns, room, what a line is
for, why a layer may not start anything.
"""

from collections import OrderedDict
from collections.abc import Callable
from itertools import zip_longest

from carpool_protocol.ids import PoolKey, SessionId
from carpool_supervisor.core.model.pool import Pool

MayStart = Callable[[str, bool], bool]
"""True if pools of this layer may start, those that are slow to greet or the others."""

_Place = tuple[bool, str, SessionId]
"""Of a pool: is it slow to greet, its layer, and among whose pools it is."""
_NOBODY = SessionId("")
_Pools = OrderedDict[PoolKey, None]
_Askers = OrderedDict[SessionId, _Pools]
"""The pools that each of them waits for, next turn first."""


class StartLine:
    """Pools in the order in which they start. A pool keeps its place when it is added again."""

    def __init__(self, *, of_askers: bool = False) -> None:
        """`of_askers`: pools are in it because calls wait, and those whose calls these are take turns."""
        self._of_askers = of_askers
        self._places: dict[PoolKey, _Place] = {}
        self._parts: dict[bool, OrderedDict[str, _Askers]] = {False: OrderedDict(), True: OrderedDict()}
        """The pools of each layer, next layer first: those that are not slow to greet, and those that are."""

    def __contains__(self, key: PoolKey) -> bool:
        return key in self._places

    def __len__(self) -> int:
        return len(self._places)

    def add(self, pool: Pool) -> None:
        """Put the pool at the end, if it is not in its part of the line already."""
        before = self._places.get(pool.key)
        place = pool.is_slow_to_greet, pool.layer, self._asker_of(pool, before)
        if before != place:
            is_slow, layer, asker = place
            self.discard(pool.key)
            self._places[pool.key] = place
            of_layer = self._parts[is_slow].setdefault(layer, OrderedDict())
            of_layer.setdefault(asker, OrderedDict())[pool.key] = None

    def _asker_of(self, pool: Pool, before: _Place | None) -> SessionId:
        """Return among whose pools it is from now on."""
        if not (self._of_askers and pool.queue):
            return _NOBODY if before is None else before[2]
        last = pool.queue.last_turn()
        if before is None:
            return last
        askers = self._parts[pool.is_slow_to_greet].get(pool.layer, _Askers())
        is_shorter = len(askers.get(last, ())) + 1 < len(askers.get(before[2], ()))
        return last if is_shorter else before[2]

    def discard(self, key: PoolKey) -> None:
        """Take the pool out, if it is in the line."""
        place = self._places.pop(key, None)
        if place is not None:
            is_slow, layer, asker = place
            askers = self._parts[is_slow][layer]
            del askers[asker][key]
            if not askers[asker]:
                del askers[asker]
            if not askers:
                del self._parts[is_slow][layer]

    def move_to_front(self, key: PoolKey) -> None:
        """Move the pool before those beside it, if it is in the line. Nobody's turn comes earlier by that."""
        place = self._places.get(key)
        if place is not None:
            is_slow, layer, asker = place
            self._parts[is_slow][layer][asker].move_to_end(key, last=False)

    def pool_started(self, pool: Pool) -> None:
        """An instance of this pool, which may be in another line, starts: all others have their turn before
        it.
        """
        place = self._places.get(pool.key)
        if place is not None:
            is_slow, layer, asker = place
            askers = self._parts[is_slow][layer]
            askers[asker].move_to_end(pool.key)
            askers.move_to_end(asker)
        for part in self._parts.values():
            if pool.layer in part:
                part.move_to_end(pool.layer)

    def keys(self, may_start: MayStart) -> list[PoolKey]:
        """The pools in order, without those that may not start."""
        found: list[PoolKey] = []
        for is_slow, part in self._parts.items():
            layers = (askers for layer, askers in part.items() if may_start(layer, is_slow))
            found += _in_turns([_in_turns(list(askers.values())) for askers in layers])
        return found

    def is_held_up(self, may_start: MayStart) -> bool:
        """True if a pool is in the line that may not start."""
        return any(not may_start(layer, is_slow) for is_slow, part in self._parts.items() for layer in part)


def _in_turns(lines: "list[_Pools] | list[list[PoolKey]]") -> list[PoolKey]:
    """The first of each line, then the second of each."""
    if len(lines) == 1:
        return list(lines[0])
    return [key for each in zip_longest(*lines) for key in each if key is not None]
