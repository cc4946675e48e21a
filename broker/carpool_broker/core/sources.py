"""Which scope each source of configuration has in force, and which pools are wanted for it.

A source is one configuration seen with one environment; many sessions share one. When it is read
again, a server whose launch changed keeps its old pool until the new one has greeted (design
section 10), so no agent meets a broken window; a new one that fails leaves the old one in force and
says so. With `stop_first` the new pool is in force at once and starts after the old one is gone.

Invariants (`check`): each source's scope in force is retained in the registry exactly once; all
pools of scopes in force and of scopes to come are wanted.

Knows nothing of: sessions, files, environments.
"""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from carpool_broker.core.events import SourceId, SourceRead
from carpool_broker.core.registry import Registry
from carpool_broker.core.scope import Scope, ScopeEntry
from carpool_protocol.ids import PoolKey, ServerName
from carpool_protocol.messages import PoolChanged, PoolSpec, Wanted

FAILED: Final = frozenset({"backing_off", "given_up"})


class Source:
    """One configuration seen with one environment."""

    __slots__ = ("after", "goal", "in_force", "replacing", "specs")

    def __init__(self, goal: SourceRead) -> None:
        self.goal = goal
        self.in_force = goal.scope
        self.specs: dict[PoolKey, PoolSpec] = {spec.key: spec for spec in goal.specs}
        """Specs of the scope in force and of the goal."""
        self.replacing: dict[ServerName, PoolKey] = {}
        """Servers whose new pool has not greeted yet: the key that is still in force."""
        self.after: dict[PoolKey, PoolKey] = {}
        """Of pools with `stop_first`: the one before. The supervisor knows when it is gone."""


class Sources:
    """All sources."""

    def __init__(self, registry: Registry, states: Mapping[PoolKey, PoolChanged]) -> None:
        self._registry = registry
        self._states = states
        """What the supervisor last said of each pool."""
        self.sources: dict[SourceId, Source] = {}

    def read(self, event: SourceRead) -> bool:
        """Take over a source. True when its scope in force is another one now."""
        source = self.sources.get(event.source)
        if source is None:
            source = self.sources[event.source] = Source(event)
            self._registry.retain(source.in_force)
            return True
        source.goal = event
        return self._settle(source)

    def drop(self, source: SourceId) -> None:
        """No session uses it any more."""
        gone = self.sources.pop(source, None)
        if gone is not None:
            self._registry.release(gone.in_force)

    def advance(self) -> list[SourceId]:
        """A catalog came or a pool changed: the sources whose scope in force is another one now."""
        return [name for name, source in self.sources.items() if source.replacing and self._settle(source)]

    def _settle(self, source: Source) -> bool:
        old = {entry.server: entry for entry in source.in_force.servers}
        goal = source.goal
        specs = {spec.key: spec for spec in goal.specs}
        source.replacing = {}
        entries: list[ScopeEntry] = []
        for entry in goal.scope.servers:
            before = old.get(entry.server)
            if before is None or before.key == entry.key:
                entries.append(entry)
                continue
            if entry.server in goal.stop_first:
                source.after[entry.key] = before.key
                entries.append(entry)
            elif self._must_wait(before.key, entry.key):
                source.replacing[entry.server] = before.key
                specs[before.key] = source.specs[before.key]
                entries.append(replace(entry, key=before.key))
            else:
                entries.append(entry)
        source.after = {key: before for key, before in source.after.items() if key in specs}
        for key, before_key in source.after.items():
            specs[key] = replace(specs[key], start_after=before_key)
        source.specs = specs
        scope = replace(goal.scope, servers=tuple(entries))
        if scope == source.in_force:
            return False
        self._registry.retain(scope)
        self._registry.release(source.in_force)
        source.in_force = scope
        return True

    def _must_wait(self, old: PoolKey, new: PoolKey) -> bool:
        """The new pool has not yet shown that it can serve, or has shown that it cannot."""
        old_state = self._states[old].state if old in self._states else "cold"
        new_state = self._states[new].state if new in self._states else "cold"
        if new_state in FAILED:
            return old_state not in FAILED
        return old_state == "serving" and new_state != "serving"

    def scope(self, source: SourceId) -> Scope:
        """The scope in force."""
        return self.sources[source].in_force

    def misconfigured(self, source: SourceId) -> Mapping[ServerName, str]:
        """Servers that cannot be run, and why."""
        return self.sources[source].goal.misconfigured

    def to_discover(self) -> list[PoolKey]:
        """New pools that must greet before they replace an old one."""
        return [
            entry.key
            for source in self.sources.values()
            for entry in source.goal.scope.servers
            if entry.server in source.replacing
        ]

    def wanted(self) -> Wanted:
        """Every pool of every source, in a stable order."""
        specs: dict[PoolKey, PoolSpec] = {}
        for source in self.sources.values():
            specs.update(source.specs)
        goals = [source.goal for source in self.sources.values()]
        return Wanted(
            sorted(specs.values(), key=lambda spec: spec.key),
            max((goal.max_processes for goal in goals), default=64),
            max((goal.max_greeting for goal in goals), default=3),
        )

    def check(self) -> None:
        """Assert every invariant."""
        for source in self.sources.values():
            for entry in source.in_force.servers:
                assert entry.key in source.specs, f"{entry.key} is in force and not wanted"
            for server, key in source.replacing.items():
                assert any(e.server == server and e.key == key for e in source.in_force.servers)
