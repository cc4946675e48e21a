"""Catalogs and pool states from the supervisor that the registry has not learned yet.

Owns their order. A long catalog is learned in slices, one slice per tick. Other catalogs wait behind it,
and so do states of its pool (docs/decisions/0039).

Knows nothing of: what follows when a catalog is learned or the state of a pool changes (`updates`).
"""

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from carpool_broker.core.model.timer_kinds import BrokerTimers
from carpool_broker.core.registry.registry import ChangedLists, Registry
from carpool_protocol.ids import PoolKey
from carpool_protocol.link.messages import Catalog, PoolChanged
from carpool_protocol.machine.slices import SlicedWork

NEXT_SLICE: Final = "next"
"""The key of the timer for the next slice."""


class Learned(NamedTuple):
    """A catalog that the registry knows now."""

    catalog: Catalog
    changes: ChangedLists
    came: float
    """When the supervisor told it."""


class CatalogQueue:
    """The queue for all pools, oldest first."""

    def __init__(self, registry: Registry, timers: BrokerTimers) -> None:
        self._registry = registry
        self._timers = timers
        self._told: deque[tuple[Catalog | PoolChanged, float]] = deque()
        """Each with its time of arrival."""
        self._learning: SlicedWork[ChangedLists] | None = None
        """The catalog at the head, while it is being learned."""

    def __len__(self) -> int:
        return len(self._told)

    def add(self, event: Catalog | PoolChanged, now: float) -> None:
        """Append an event."""
        self._told.append((event, now))

    def holds(self, key: PoolKey) -> bool:
        """True if an event about this pool is queued."""
        return any(event.key == key for event, _ in self._told)

    def advance(self, now: float) -> Iterator[Learned | PoolChanged]:
        """Learn the next slice. Yields the catalog if this was its last slice, then the pool states queued
        behind it, up to the next catalog.
        """
        self._timers.disarm("catalog_slice", NEXT_SLICE)
        if self._told and isinstance(self._told[0][0], Catalog):
            catalog, came = self._told[0]
            assert isinstance(catalog, Catalog)
            learning = self._learning = self._learning or SlicedWork(self._registry.apply_in_slices(catalog))
            if learning.run_slice():
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
            self._timers.arm("catalog_slice", NEXT_SLICE, now, 0.0)

    def drop(self, key: PoolKey) -> list[Catalog | PoolChanged]:
        """Remove the events of a pool that is no longer wanted, and return them."""
        found = [event for event, _ in self._told if event.key == key]
        if found:
            if self._told[0][0].key == key:
                self._learning = None
            self._told = deque(each for each in self._told if each[0].key != key)
        return found
