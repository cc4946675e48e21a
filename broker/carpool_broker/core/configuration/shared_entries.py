"""The entries of many sources together, by key.

Owns the union of one mapping for each source, kept up to date source by source: a source that comes or goes
costs its own entries, however many others there are; `keys_besides` alone costs the union.
Where several sources have a key, the entry of the one
that had it first counts, or of the one that had it last.

Knows nothing of: what keys and entries are.
"""

from collections import Counter
from collections.abc import Mapping, Set
from typing import Generic, TypeVar

from carpool_broker.core.model.events import SourceId

K = TypeVar("K")
V = TypeVar("V")


class SharedEntries(Generic[K, V]):
    """The union of the entries of all sources."""

    __slots__ = ("_by_key", "_by_source", "_first_counts", "entries")

    def __init__(self, *, first_counts: bool = False) -> None:
        self._first_counts = first_counts
        self._by_source: dict[SourceId, Mapping[K, V]] = {}
        self._by_key: dict[K, dict[SourceId, V]] = {}
        self.entries: dict[K, V] = {}
        """The union."""

    def set_source(self, source: SourceId, entries: Mapping[K, V]) -> None:
        """Set the entries of a source, in place of those that it had; none: the source has gone. `entries` is
        not changed after that.
        """
        former = self._by_source.pop(source, {})
        for key in former:
            if key not in entries:
                self._remove(source, key)
        for key, entry in entries.items():
            if key not in former or former[key] is not entry:
                self._by_key.setdefault(key, {})[source] = entry
                self._choose(key)
        if entries:
            self._by_source[source] = entries

    def keys_besides(self, sources: Set[SourceId]) -> set[K]:
        """Return the keys that some other source than these has. It costs their entries, and no others."""
        held = Counter(key for source in sources for key in self._by_source.get(source, ()))
        return {key for key in self._by_key if len(self._by_key[key]) > held[key]}

    def entries_besides(self, sources: Set[SourceId]) -> dict[K, V]:
        """Return the union without these sources. It costs the union and their entries."""
        found = dict(self.entries)
        for key in {key for source in sources for key in self._by_source.get(source, ())}:
            holders = self._by_key[key]
            order = holders if self._first_counts else reversed(holders)
            chosen = next((each for each in order if each not in sources), None)
            if chosen is None:
                del found[key]
            else:
                found[key] = holders[chosen]
        return found

    def _remove(self, source: SourceId, key: K) -> None:
        holders = self._by_key[key]
        del holders[source]
        if holders:
            self._choose(key)
        else:
            del self._by_key[key], self.entries[key]

    def _choose(self, key: K) -> None:
        holders = self._by_key[key]
        self.entries[key] = holders[next(iter(holders) if self._first_counts else reversed(holders))]

    def check(self) -> None:
        """Assert that the union is that of the sources."""
        keys = {key for entries in self._by_source.values() for key in entries}
        assert keys == self.entries.keys() == self._by_key.keys()
        for key, holders in self._by_key.items():
            assert holders == {
                source: entries[key] for source, entries in self._by_source.items() if key in entries
            }
            assert any(self.entries[key] is entry for entry in holders.values())
