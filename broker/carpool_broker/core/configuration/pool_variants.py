"""Which launches need more than one pool, because agents with other capabilities or of another era are
served.

Two rules, each with what it has to remember; only launches in use are remembered.

`CapabilityVariants` (docs/rules.md, rule 12): a launch has two possible pools, plain, and greeted for
agents that can be asked. Once both have told the same catalog and the server is not known to ask, the
asking pool serves all agents; that stays so when the plain pool is gone, until the server asks. A server in
mode `session` stays as it is: each agent has an instance of its own, and a lease must not be left behind in
the other pool.

`EraVariants` (docs/decisions/0034): a launch whose era is not configured has two sets of pools, those that
greet with a handshake first, and one for agents of the stateless era. One set serves both eras where

- what a pool told shows that the server speaks one era only (`Catalog.era`);
- the supervisor knows that from earlier, or knows that the server is not to run twice
  (`PoolChanged.both_eras`): then no process is started to find out;
- the pool for the stateless era cannot start beside the other one.

What was seen here holds as long as the launch is in use; what the supervisor knows, until it says otherwise.

Refuses to know: sources, sessions, when pools start and drain, how an era is detected.
"""

from collections.abc import Mapping
from typing import Final

from carpool_broker.core.registry.registry import Registry
from carpool_protocol.ids import PoolKey
from carpool_protocol.link.messages import Catalog, PoolChanged


class CapabilityVariants:
    """All pairs of pools that may be one."""

    def __init__(self, registry: Registry, states: Mapping[PoolKey, PoolChanged]) -> None:
        self._registry = registry
        self._states = states
        self._asking_of: dict[PoolKey, PoolKey] = {}
        self._plain_of: dict[PoolKey, PoolKey] = {}
        self._merged: set[PoolKey] = set()
        """Plain keys of launches that the asking pool serves alone."""

    def set_pairs(self, pairs: Mapping[PoolKey, PoolKey]) -> None:
        """Plain key to asking key of every launch in use; of others nothing is remembered."""
        self._asking_of = dict(pairs)
        self._plain_of = {asking: plain for plain, asking in pairs.items()}
        self._merged &= pairs.keys()

    def recheck(self, key: PoolKey) -> bool:
        """A catalog or a state of this pool came. True when its launch is to be served otherwise now."""
        plain = self._plain_of.get(key, key)
        asking = self._asking_of.get(plain)
        if asking is None or not self._is_shared(asking):
            return False
        if plain not in self._merged and not self._is_shared(plain):
            return False
        merge = self._may_merge(plain, asking)
        if merge == (plain in self._merged):
            return False
        if merge:
            self._merged.add(plain)
        else:
            self._merged.remove(plain)
        return True

    def plain_pool(self, plain: PoolKey) -> PoolKey:
        """The pool for plain agents."""
        return self._asking_of[plain] if plain in self._merged else plain

    def _is_shared(self, key: PoolKey) -> bool:
        """False also while the mode is not known: a new supervisor tells catalogs first."""
        state = self._states.get(key)
        return state is not None and state.mode != "session"

    def _may_merge(self, plain: PoolKey, asking: PoolKey) -> bool:
        one, other = self._registry.told_catalog(plain), self._registry.told_catalog(asking)
        if (one is not None and one.asks) or (other is not None and other.asks):
            return False
        if plain in self._merged:
            return True
        return one is not None and other is not None and _comparable(one) == _comparable(other)

    def check(self) -> None:
        """Assert every invariant."""
        assert self._merged <= self._asking_of.keys()
        assert len(self._plain_of) == len(self._asking_of), "two launches share a pool"


def _comparable(catalog: Catalog) -> tuple[object, ...]:
    """What agents could tell two catalogs apart by, in whatever order a server lists it."""
    return (
        {offer.name: offer.definition for offer in catalog.tools},
        {offer.name: offer.definition for offer in catalog.prompts},
        {offer.uri: offer.definition for offer in catalog.resources},
        {offer.uri: offer.definition for offer in catalog.templates},
        catalog.instructions,
        frozenset(catalog.features),
    )


FAILED: Final = frozenset({"backing_off", "given_up", "breaker_open", "half_open"})
"""States of a pool that cannot start."""


class EraVariants:
    """All launches with a pool for agents of the stateless era."""

    def __init__(self, registry: Registry, states: Mapping[PoolKey, PoolChanged]) -> None:
        self._registry = registry
        self._states = states
        self._plain_of: dict[PoolKey, PoolKey] = {}
        """By each pool of such a launch: the key of its plain one."""
        self._stateless: dict[PoolKey, PoolKey] = {}
        """By plain key: the pool for agents of the stateless era."""
        self._seen: set[PoolKey] = set()
        """Plain keys of launches of which was seen here that one set of pools is enough."""
        self._told: set[PoolKey] = set()
        """The same, as the supervisor says it."""

    def set_pairs(self, stateless: Mapping[PoolKey, PoolKey], twins: Mapping[PoolKey, PoolKey]) -> None:
        """Of every launch in use, by its plain key: the pool for agents of the stateless era, and the pool
        for agents that can be asked.
        """
        self._stateless = dict(stateless)
        self._plain_of = {
            key: plain
            for plain, other in stateless.items()
            for key in (plain, other, twins.get(plain, plain))
        }
        self._seen &= stateless.keys()
        self._told &= stateless.keys()
        for plain in stateless:
            self.recheck(plain)

    def recheck(self, key: PoolKey) -> bool:
        """A catalog or a state of this pool came. True when its launch is to be served otherwise now."""
        plain = self._plain_of.get(key)
        if plain is None:
            return False
        before = self.stateless_pool(plain)
        if self._needs_one_pool(key, plain):
            self._seen.add(plain)
        state = self._states.get(plain)
        if state is not None and state.both_eras is not None:
            # A server that was seen to speak the stateless era does, whatever its program did elsewhere.
            own = self._registry.told_catalog(self._stateless[plain])
            if state.both_eras and (own is None or own.era != "stateless"):
                self._told.add(plain)
            else:
                self._told.discard(plain)
        return self.stateless_pool(plain) != before

    def _needs_one_pool(self, key: PoolKey, plain: PoolKey) -> bool:
        """The pool speaks the era that it is not for, or does not start beside the plain one."""
        catalog, is_own = self._registry.told_catalog(key), key == self._stateless[plain]
        if catalog is not None:
            return (catalog.era == "stateless") != is_own
        if not is_own:
            return False
        own, other = self._states.get(key), self._states.get(plain)
        return own is not None and own.state in FAILED and other is not None and other.state == "serving"

    def stateless_pool(self, plain: PoolKey) -> PoolKey | None:
        """The pool for agents of the stateless era; None: they have none of their own."""
        if plain in self._seen or plain in self._told:
            return None
        return self._stateless.get(plain)

    def check(self) -> None:
        """Assert every invariant."""
        assert self._seen | self._told <= self._stateless.keys()
