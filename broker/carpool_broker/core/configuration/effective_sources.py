"""Which scopes each source of configuration has in force, and which pools are wanted for them.

A source is one configuration seen with one environment; many sessions share one. It has a scope for plain
agents, and one for each other class of agents from the first of these on: those that can be asked (rule 12;
`pool_variants` says which launches are one pool after all), and those of the stateless era
(`EraVariants`). When it is read again, a server whose launch changed keeps its old pool until the new one
has greeted, so no agent meets a broken window; a new one that fails leaves the old one in force and says
so. It is the same when a launch becomes one pool or two. With `stop_first` the new pool is in force at once
and starts after the old one is gone, unless that is in force elsewhere still. A project's server that gives
way to one of the user's is out of force at once: its file may have lost the user's trust.

A source that no agent uses starts nothing by itself: its pools have neither `pool.min` nor `auto_connect`,
and a changed server's new pool is in force at once.

Invariants (`check`): each scope in force is retained in the registry exactly once; all pools of scopes in
force and of scopes to come are wanted, and no others.

Knows nothing of: sessions, files, environments.
Decision: docs/decisions/0009.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from carpool_broker.core.configuration.pool_variants import FAILED, CapabilityVariants, EraVariants
from carpool_broker.core.configuration.shared_entries import SharedEntries
from carpool_broker.core.model.events import SourceId, SourceRead
from carpool_broker.core.model.scope import DisabledServer, Scope, ScopeEntry
from carpool_broker.core.registry.registry import ChangedLists, Registry
from carpool_protocol.ids import PoolKey, ServerName
from carpool_protocol.link.messages import Catalog, PoolChanged, PoolSpec, SetPools


class PoolVariant:
    """What one class of agents sees of a source."""

    __slots__ = ("asking", "in_force", "replacing", "stateless")

    def __init__(self, in_force: Scope, *, asking: bool = False, stateless: bool = False) -> None:
        self.asking = asking
        self.stateless = stateless
        self.in_force = in_force
        self.replacing: dict[ServerName, PoolKey] = {}
        """The servers whose new pool has not greeted yet, and the key of that pool. The old pool is in force
        until then.
        """


class ServerProblem(Struct, frozen=True):
    """The servers that cannot be run in some source."""

    misconfigured: Mapping[ServerName, str]
    """The reasons, for people. A server that is wrong in itself comes before one that lacks variables."""
    untrusted: frozenset[ServerName]
    unset: frozenset[ServerName]
    """The servers that lack nothing but variables or places."""


class EffectiveSource:
    """One configuration seen with one environment."""

    __slots__ = ("agents", "before", "goal", "lanes", "specs")

    def __init__(self, source_read: SourceRead) -> None:
        self.goal = source_read
        self.agents = 0
        """The number of sessions of agents that use it."""
        self.lanes = {(False, False): PoolVariant(Scope((), source_read.scope.separator))}
        """By (agents that can be asked, agents of the stateless era). The first is always there; each other
        one stays from its first agent on.
        """
        self.specs: dict[PoolKey, PoolSpec] = {}
        """The pools that are in force or to come."""
        self.before: dict[PoolKey, tuple[PoolKey, ...]] = {}
        """The pools that each pool replaced, or replaces, the last one first: one for each
        class of agents.
        """

    @property
    def is_used(self) -> bool:
        """True if an agent uses it, or it is not there because of sessions."""
        return self.agents > 0 or not self.goal.of_sessions

    def starts_by_itself(self) -> bool:
        """True if a server of it runs without being asked for."""
        return any(spec.policy.min_instances or spec.policy.auto_connect for spec in self.specs.values())


class EffectiveSources:
    """All sources."""

    def __init__(self, registry: Registry, states: Mapping[PoolKey, PoolChanged]) -> None:
        self._registry = registry
        self._states = states
        """The last state of each pool that the supervisor has told."""
        self._capability_variants = CapabilityVariants(registry, states)
        self._era_variants = EraVariants(registry, states)
        self.sources: dict[SourceId, EffectiveSource] = {}
        self._twins = SharedEntries[PoolKey, PoolKey]()
        """See `CapabilityVariants.set_pairs`."""
        self._stateless = SharedEntries[PoolKey, PoolKey]()
        """See `EraVariants.set_pairs`."""
        self._kept = SharedEntries[PoolKey, Catalog]()
        """The catalogs that pools told an earlier carpool."""
        self._specs = SharedEntries[PoolKey, PoolSpec](first_counts=True)
        """The pools that are in force or to come."""
        self._replacing_specs = SharedEntries[PoolKey, PoolSpec]()
        """Those of them that replace another pool in their source: one that came later knows of no pool
        before.
        """
        self._of_user_file = SharedEntries[PoolKey, None]()
        """The pools that come from the user's file in some source: no other layer has a say in their turn."""
        self._names = SharedEntries[ServerName, None]()
        """The servers that sources name, in whatever state."""
        self.paused_servers: frozenset[ServerName] = frozenset()
        """The servers that operators have paused, in every source."""

    def source_read(self, event: SourceRead) -> ChangedLists:
        """Take over a source that was read. Returns the scopes whose lists changed by what is kept."""
        source = self.sources.get(event.source)
        if source is None:
            source = self.sources[event.source] = EffectiveSource(event)
            self._registry.retain_scope(source.lanes[False, False].in_force)
        source.goal = event
        self._twins.set_source(event.source, {plain: twin.key for plain, twin in event.twins.items()})
        self._stateless.set_source(event.source, {plain: spec.key for plain, spec in event.stateless.items()})
        self._kept.set_source(event.source, event.kept)
        named = (*(it.server for it in event.scope.servers), *event.misconfigured, *event.disabled)
        self._names.set_source(event.source, dict.fromkeys(named))
        self._update_pairs()
        changes = self._registry.set_cached_catalogs(self._kept.entries)
        self._apply_ready(source)
        return changes

    def add_variant(self, source: SourceId, *, asking: bool, stateless: bool) -> bool:
        """Note that an agent of this class uses the source. Returns True for the first one."""
        found = self.sources[source]
        if (asking, stateless) in found.lanes:
            return False
        lane = PoolVariant(Scope((), found.goal.scope.separator), asking=asking, stateless=stateless)
        found.lanes[asking, stateless] = lane
        self._registry.retain_scope(lane.in_force)
        self._apply_ready(found)
        return True

    def agent_came(self, source: SourceId) -> bool:
        """Note that another agent uses the source. Returns True if servers start by that."""
        found = self.sources[source]
        was_used = found.is_used
        found.agents += 1
        return not was_used and found.starts_by_itself()

    def agent_left(self, source: SourceId) -> bool:
        """Note that an agent uses the source no more. Returns True if the wanted pools changed by that."""
        found = self.sources[source]
        found.agents -= 1
        if found.is_used:
            return False
        is_replacing = any(lane.replacing for lane in found.lanes.values())
        return (is_replacing and self._apply_ready(found)) or found.starts_by_itself()

    def drop_source(self, source: SourceId) -> ChangedLists:
        """Forget a source that no session uses. Returns the same as `source_read`."""
        gone = self.sources.pop(source, None)
        if gone is None:
            return {}
        for lane in gone.lanes.values():
            self._registry.release_scope(lane.in_force)
        for shared in self._shared_entries():
            shared.set_source(source, {})
        self._update_pairs()
        return self._registry.set_cached_catalogs(self._kept.entries)

    def pools_changed(self, keys: Sequence[PoolKey]) -> bool:
        """Catalogs or states of these pools have come. Returns True if other scopes are in force or other
        pools wanted.
        """
        otherwise = False
        for key in keys:
            for variants in (self._capability_variants, self._era_variants):
                otherwise = variants.recheck(key) or otherwise
        changed = False
        for source in self.sources.values():
            if otherwise or any(lane.replacing for lane in source.lanes.values()):
                changed = self._apply_ready(source) or changed
        return changed

    def _shared_entries(self) -> tuple[SharedEntries[Any, Any], ...]:
        return (
            self._twins, self._stateless, self._kept, self._names, self._specs, self._replacing_specs,
            self._of_user_file,
        )  # fmt: skip

    def _update_pairs(self) -> None:
        twins = self._twins.entries
        self._capability_variants.set_pairs(twins)
        self._era_variants.set_pairs(self._stateless.entries, twins)

    def _apply_ready(self, source: EffectiveSource) -> bool:
        """Put in force what is ready. Returns True if the scopes in force or the wanted pools changed."""
        goal = source.goal
        goals = (*goal.specs, *goal.twins.values(), *goal.stateless.values())
        known = {**source.specs, **{spec.key: spec for spec in goals}}
        used: set[PoolKey] = set()
        moved = False
        for lane in source.lanes.values():
            entries: list[ScopeEntry] = []
            old = {entry.server: entry for entry in lane.in_force.servers}
            lane.replacing = {}
            for entry in self._goal_entries(goal, lane):
                used.add(entry.key)
                entries.append(self._current_entry(source, lane, entry, old.get(entry.server)))
            used.update(entry.key for entry in entries)
            scope = replace(goal.scope, servers=tuple(entries), absent=goal.absent)
            if scope != lane.in_force:
                self._registry.retain_scope(scope)
                self._registry.release_scope(lane.in_force)
                lane.in_force = scope
                moved = True
        moved = moved or used != source.specs.keys()
        source.before = {key: before for key, before in source.before.items() if key in used and before}
        source.specs = {key: self._with_replaced_pool(source, known[key]) for key in used}
        self._specs.set_source(goal.source, source.specs)
        self._replacing_specs.set_source(
            goal.source, {key: spec for key, spec in source.specs.items() if spec.replaces}
        )
        self._of_user_file.set_source(
            goal.source, {key: None for key, spec in source.specs.items() if not spec.layer}
        )
        return moved

    def _goal_entries(self, source_read: SourceRead, variant: PoolVariant) -> Iterator[ScopeEntry]:
        """Return what this class of agents sees once every pool has greeted."""
        for entry in source_read.scope.servers:
            twin = source_read.twins.get(entry.key)
            own = self._era_variants.stateless_pool(entry.key) if variant.stateless else None
            key = entry.key
            if own is not None:
                key = own
            elif twin is not None:
                key = twin.key if variant.asking else self._capability_variants.plain_pool(key)
            yield entry if key == entry.key else replace(entry, key=key)

    def _current_entry(
        self, source: EffectiveSource, variant: PoolVariant, entry: ScopeEntry, former: ScopeEntry | None
    ) -> ScopeEntry:
        """Return what is in force of this goal now."""
        if former is None or former.key == entry.key:
            return entry
        before = former.key
        if not _are_variants(source.goal, before, entry.key):
            others = source.before.get(entry.key, ())
            source.before[entry.key] = (before, *(key for key in others if key != before))
            back = source.before.get(before, ())  # the change may be taken back
            source.before[before] = tuple(key for key in back if key != entry.key)
        is_over = former.project and not entry.project  # a file that nobody trusts now has no say any more
        at_once = is_over or entry.server in source.goal.stop_first or not source.is_used
        if not at_once and self._must_wait(before, entry.key):
            variant.replacing[entry.server] = entry.key
            return replace(entry, key=before, pin=former.pin)  # it is met by what it runs itself
        return entry

    def _must_wait(self, old: PoolKey, new: PoolKey) -> bool:
        """True if the new pool has not yet shown that it can serve, or has shown that it cannot."""
        old_state = self._states[old].state if old in self._states else "cold"
        new_state = self._states[new].state if new in self._states else "cold"
        if new_state in FAILED:
            return old_state not in FAILED
        could = new_state in ("serving", "offline") or (
            new_state != "stopped" and self._registry.told_catalog(new) is not None
        )
        return old_state == "serving" and not could

    def _with_replaced_pool(self, source: EffectiveSource, spec: PoolSpec) -> PoolSpec:
        """Return the spec with the pools that it replaces. The supervisor knows when these are gone."""
        before, *others = source.before.get(spec.key) or (PoolKey(""),)
        after = before if spec.server in source.goal.stop_first else PoolKey("")
        if (spec.replaces, spec.start_after, spec.replaces_too) == (before, after, others):
            return spec
        return replace(spec, replaces=before, start_after=after, replaces_too=others)

    def scope(self, source: SourceId, *, asking: bool = False, stateless: bool = False) -> Scope:
        """Return the scope in force, for agents that can be asked (`asking`) or of the stateless era
        (`stateless`), as far as the source has such agents.
        """
        lanes = self.sources[source].lanes
        for which in ((asking, stateless), (asking, False)):
            if which in lanes:
                return lanes[which].in_force
        return lanes[False, False].in_force

    def is_still_used(self, source: SourceId, old: PoolKey, new: PoolKey) -> bool:
        """True if the replaced pool still serves other sessions of this source."""
        return old in self._specs.entries and not _are_variants(self.sources[source].goal, old, new)

    def _servers_of_agents(self, operators: Set[SourceId]) -> Set[ServerName]:
        """Return the servers that sources besides these name: what these add says nothing about them."""
        return self._names.keys_besides(operators)

    def pools_of_agents(self, operators: Set[SourceId]) -> frozenset[PoolKey]:
        """Return the pools of all sources besides these, and of these the pools of servers that no other
        source names.
        """
        elsewhere = self._servers_of_agents(operators)
        of_agents = self._specs.keys_besides(operators)
        return frozenset(
            key
            for key, spec in self._specs.entries.items()
            if key in of_agents or spec.server not in elsewhere
        )

    def scopes_in_force(self) -> Collection[Scope]:
        """Return the scopes that are in force in some source, each once."""
        return dict.fromkeys(
            lane.in_force for source in self.sources.values() for lane in source.lanes.values()
        ).keys()

    def problems(
        self, operators: Set[SourceId] = frozenset(), asker: SourceId | None = None
    ) -> ServerProblem:
        """Return the problems of the servers of all sources. Problems of `operators` count only for servers
        that no other source names. The servers of `asker` have its problems and no others.
        """
        elsewhere = self._servers_of_agents(operators) if operators else frozenset()
        lame = [
            (name, why, source.goal)
            for each, source in self.sources.items()
            for name, why in source.goal.misconfigured.items()
            if each not in operators or name not in elsewhere
        ]
        if asker is not None:
            goal = self.sources[asker].goal
            own = {entry.server for entry in goal.scope.servers} | goal.misconfigured.keys()
            lame = [each for each in lame if each[0] not in own]
            lame += [(name, why, goal) for name, why in goal.misconfigured.items()]
        found: dict[ServerName, str] = {}
        for name, why, _ in lame:
            found.setdefault(name, why)
        wrong = {name: why for name, why, goal in lame if name not in goal.unset}
        untrusted = frozenset(name for name, _, goal in lame if name in goal.untrusted)
        return ServerProblem({**found, **wrong}, untrusted, frozenset(found) - wrong.keys())

    def unrunnable(self, source: SourceId) -> Mapping[ServerName, tuple[str, str]]:
        """Return the servers that cannot be run, and for each the fault (`untrusted_servers`, `unset` or
        `misconfigured`) and the reason.
        """
        goal = self.sources[source].goal
        return {
            name: (
                "untrusted" if name in goal.untrusted else "unset" if name in goal.unset else "misconfigured",
                why,
            )
            for name, why in goal.misconfigured.items()
        }

    def has_servers(self, source: SourceId) -> bool:
        """Return True if anything is configured for the source, in whatever state it is."""
        goal = self.sources[source].goal
        return bool(goal.specs or goal.misconfigured or goal.disabled or goal.broken)

    def untrusted_servers(self, source: SourceId) -> frozenset[ServerName]:
        """Return the servers among them that only wait for the user's trust."""
        return self.sources[source].goal.untrusted

    def project_problem(self, source: SourceId) -> str:
        """Return why the servers of its project are not known, as a clause; empty if they are known."""
        return self.sources[source].goal.broken

    def user_problem(self, source: SourceId) -> str:
        """Return the sentence that the user's file cannot be read; empty if it can."""
        return self.sources[source].goal.user_broken

    def disabled_servers(self, source: SourceId) -> Mapping[ServerName, DisabledServer]:
        """Return the disabled servers, and why each is disabled."""
        return self.sources[source].goal.disabled

    def servers_with_roots(self, source: SourceId) -> frozenset[ServerName]:
        """Return the servers that are told the roots of the agent."""
        return self.sources[source].goal.own_roots

    def pools_to_discover(self) -> list[PoolKey]:
        """Return the new pools that must greet before they replace an old one."""
        return sorted(
            {
                key
                for source in self.sources.values()
                for lane in source.lanes.values()
                for key in lane.replacing.values()
            }
        )

    def wanted_pools(self) -> SetPools:
        """Return every pool of every source, in a stable order."""
        unused = {source for source, each in self.sources.items() if not each.is_used}
        of_agents = self._specs.entries_besides(unused)
        specs = {
            key: _with_policy_of(of_agents.get(key), spec)
            for key, spec in {**self._specs.entries, **self._replacing_specs.entries}.items()
        }
        # What others want still, in another workspace, does not end: nothing can start after it.
        pools = [
            replace(spec, start_after=PoolKey("")) if spec.start_after in specs else spec
            for spec in specs.values()
        ]
        pools = [
            replace(spec, layer="") if spec.layer and spec.key in self._of_user_file.entries else spec
            for spec in pools
        ]
        pools = [replace(spec, paused=True) if spec.server in self.paused_servers else spec for spec in pools]
        goals = [source.goal for source in self.sources.values()]
        return SetPools(
            sorted(pools, key=lambda spec: spec.key),
            max((goal.max_processes for goal in goals), default=64),
            max((goal.max_greeting for goal in goals), default=3),
        )

    def check(self) -> None:
        """Assert every invariant."""
        for shared in self._shared_entries():
            shared.check()
        self._capability_variants.check()
        self._era_variants.check()
        for source in self.sources.values():
            used: set[PoolKey] = set()
            for lane in source.lanes.values():
                in_force = {entry.server: entry.key for entry in lane.in_force.servers}
                used |= {*in_force.values(), *lane.replacing.values()}
                for server, key in lane.replacing.items():
                    assert in_force[server] != key, f"{key} replaces itself"
            assert used == source.specs.keys(), "what is wanted is not what is in force and to come"
            for key, older in source.before.items():
                assert all(key not in source.before.get(each, ()) for each in older), "a place taken in turns"


def _with_policy_of(agents_spec: PoolSpec | None, spec: PoolSpec) -> PoolSpec:
    """Return the pool with the policy of agents' sources. None: no agent has it."""
    if agents_spec is None:
        return _without_starts(spec)
    return spec if agents_spec.policy == spec.policy else replace(spec, policy=agents_spec.policy)


def _without_starts(spec: PoolSpec) -> PoolSpec:
    """Return the pool as one in which an instance starts only on request, and that may lose all of them."""
    policy = spec.policy
    if not (policy.min_instances or policy.auto_connect):
        return spec
    return replace(spec, policy=replace(policy, min_instances=0, auto_connect=False))


def _are_variants(source_read: SourceRead, one: PoolKey, other: PoolKey) -> bool:
    """True if these pools are of one launch, for agents that can be asked and for those that cannot: neither
    replaces the other. A pool for the stateless era alone does not stand beside one that all share.
    """
    return any({one, other} == {plain, twin.key} for plain, twin in source_read.twins.items())
