"""What the supervisor has told of pools, until the registry has learned it.

Owns the order: a long catalog is learned in slices, one with each tick; what else is told of its pool waits
behind it, and so do other catalogs (docs/decisions/0039).

Knows nothing of: what follows when a catalog is learned or a pool is in another state (`updates`).
"""

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from carpool_broker.core.model.timer_kinds import BrokerTimers
from carpool_broker.core.registry.registry import Changes, Registry
from carpool_protocol.ids import PoolKey
from carpool_protocol.link.messages import Catalog, PoolChanged
from carpool_protocol.machine.slices import Sliced

NEXT: Final = "next"
"""The slice that is due at once while a catalog is being learned."""


class Learned(NamedTuple):
    """A catalog that the registry knows now."""

    catalog: Catalog
    changes: Changes
    came: float
    """When it was told."""


class CatalogQueue:
    """What is told of all pools and is not taken over yet."""

    def __init__(self, registry: Registry, timers: BrokerTimers) -> None:
        self._registry = registry
        self._timers = timers
        self._told: deque[tuple[Catalog | PoolChanged, float]] = deque()
        """And when it came."""
        self._learning: Sliced[Changes] | None = None
        """The first of it, under way."""

    def __len__(self) -> int:
        return len(self._told)

    def add(self, event: Catalog | PoolChanged, now: float) -> None:
        """It is taken over after what is here already."""
        self._told.append((event, now))

    def holds(self, key: PoolKey) -> bool:
        """Whether something about this pool is not taken over yet."""
        return any(event.key == key for event, _ in self._told)

    def advance(self, now: float) -> Iterator[Learned | PoolChanged]:
        """The next slice. Yields the catalog if that was its last one, and what waits behind it up to another
        catalog.
        """
        self._timers.disarm("catalog_slice", NEXT)
        if self._told and isinstance(self._told[0][0], Catalog):
            catalog, came = self._told[0]
            assert isinstance(catalog, Catalog)
            learning = self._learning = self._learning or Sliced(self._registry.learning(catalog))
            if learning.go_on():
                self._learning = None
                self._told.popleft()
                yield Learned(catalog, learning.result, came)
        while self._told and self._learning is None:
            state, _ = self._told[0]
            if isinstance(state, Catalog):
                break
            self._told.popleft()
            yield state
        if self._told:
            self._timers.arm("catalog_slice", NEXT, now, 0.0)

    def drop(self, key: PoolKey) -> list[Catalog | PoolChanged]:
        """Nobody wants this pool any more. Returns what was told of it and is not taken over."""
        found = [event for event, _ in self._told if event.key == key]
        if found:
            if self._told[0][0].key == key:
                self._learning = None
            self._told = deque(each for each in self._told if each[0].key != key)
        return found
