"""Catalogs and pool states from the supervisor that the registry has not learned yet.

Owns their order, and when they are learned. A long catalog is learned in slices, one slice per tick. Other
catalogs wait behind it, and so do states of its pool (docs/decisions/0039). Learning that took long is
followed by a rest of three times that length. Catalogs that come meanwhile are learned together: views are
then made once for all of them, so that the start of a thousand servers costs no thousand views.

Knows nothing of: what follows when a catalog is learned or the state of a pool changes (`updates`).
"""

from collections import Counter, deque
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from carpool_broker.core.model.timer_kinds import BrokerTimers
from carpool_broker.core.registry.registry import ChangedLists, Registry
from carpool_protocol.ids import PoolKey
from carpool_protocol.link.messages import Catalog, PoolChanged
from carpool_protocol.machine.slices import SlicedWork

NEXT_SLICE: Final = "next"
"""The key of the timer for the next slice."""

REST_UNITS: Final = 1_000
"""Learning that costs less, about a millisecond, is followed by no rest."""

REST_FACTOR: Final = 3
"""A rest is so much longer than the learning before it."""

MAX_REST_S: Final = 0.5

_UNITS_PER_S: Final = 1_000_000


class Learned(NamedTuple):
    """Catalogs that the registry knows now."""

    catalogs: list[tuple[Catalog, float]]
    """Each with the time at which the supervisor told it."""
    changes: ChangedLists
    has_first: bool
    """True if nothing was known before of the offers of one of the pools."""


class CatalogQueue:
    """The queue for all pools, oldest first."""

    def __init__(self, registry: Registry, timers: BrokerTimers) -> None:
        self._registry = registry
        self._timers = timers
        self._told: deque[tuple[Catalog | PoolChanged, float]] = deque()
        """Each with its time of arrival."""
        self._count_by_pool: Counter[PoolKey] = Counter()
        """The number of queued events of each pool."""
        self._learning: SlicedWork[ChangedLists] | None = None
        """The catalogs at the head, while they are being learned."""
        self._taken = 0
        """The number of events at the head that end with the last of these catalogs."""
        self._has_first = False
        """See `Learned`."""
        self._rests_until = 0.0

    def __len__(self) -> int:
        return len(self._told)

    def add(self, event: Catalog | PoolChanged, now: float) -> None:
        """Append an event."""
        self._told.append((event, now))
        self._count_by_pool[event.key] += 1

    def holds(self, key: PoolKey) -> bool:
        """True if an event about this pool is queued."""
        return key in self._count_by_pool

    def is_due(self, now: float) -> bool:
        """True if the next slice is to be learned now. Otherwise it is learned at the end of the rest."""
        if self._learning is None and now < self._rests_until:
            self._timers.arm("catalogs", NEXT_SLICE, now, self._rests_until - now)
            return False
        return True

    def advance(self, now: float) -> Iterator[Learned | PoolChanged]:
        """Learn the next slice. Yields the catalogs if this was their last slice, then the pool states that
        were queued between and behind them, up to the next catalog.
        """
        self._timers.disarm("catalogs", NEXT_SLICE)
        states: list[PoolChanged] = []
        if self._told and isinstance(self._told[0][0], Catalog):
            learning = self._learning = self._learning or self._begin()
            if learning.run_slice():
                self._learning = None
                if learning.spent_units >= REST_UNITS:
                    rest_s = REST_FACTOR * learning.spent_units / _UNITS_PER_S
                    self._rests_until = now + min(rest_s, MAX_REST_S)
                catalogs: list[tuple[Catalog, float]] = []
                for event, came in [self._take() for _ in range(self._taken)]:
                    if isinstance(event, Catalog):
                        catalogs.append((event, came))
                    else:
                        states.append(event)
                yield Learned(catalogs, learning.result, self._has_first)
        while self._told and self._learning is None and isinstance(self._told[0][0], PoolChanged):
            states.append(self._take()[0])  # type: ignore[arg-type]  # as was just seen
        yield from states
        if self._told:
            rest_s = 0.0 if self._learning is not None else max(0.0, self._rests_until - now)
            self._timers.arm("catalogs", NEXT_SLICE, now, rest_s)

    def _begin(self) -> SlicedWork[ChangedLists]:
        """Begin to learn the catalogs at the head: all up to the second one of some pool."""
        catalogs: dict[PoolKey, Catalog] = {}
        self._taken = 0
        for at, (event, _) in enumerate(self._told, 1):
            if isinstance(event, Catalog):
                if event.key in catalogs:
                    break
                catalogs[event.key] = event
                self._taken = at
        self._has_first = any(self._registry.known_catalog(key) is None for key in catalogs)
        return SlicedWork(self._registry.apply_in_slices(list(catalogs.values())))

    def _take(self) -> tuple[Catalog | PoolChanged, float]:
        found = self._told.popleft()
        self._forget(found[0].key)
        return found

    def _forget(self, key: PoolKey) -> None:
        self._count_by_pool[key] -= 1
        if not self._count_by_pool[key]:
            del self._count_by_pool[key]

    def drop(self, key: PoolKey) -> list[Catalog | PoolChanged]:
        """Remove the events of a pool that is no longer wanted, and return them."""
        if key not in self._count_by_pool:
            return []
        if any(event.key == key for event, _ in islice(self._told, self._taken)):
            self._learning = None
        found = [event for event, _ in self._told if event.key == key]
        self._told = deque(each for each in self._told if each[0].key != key)
        del self._count_by_pool[key]
        return found
