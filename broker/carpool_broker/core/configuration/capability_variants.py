"""Which launches need one pool for each class of agents, and which are served from one (rule 12).

A launch has two possible pools: plain, and greeted for agents that can be asked. Once both have told the same
catalog and the server is not known to ask, the asking pool serves everybody; that stays so when the plain
pool is gone, until the server asks. A server shared as `session` stays as it is: each agent has an instance
of its own anyway, and a lease must not be left behind in the other pool.

Invariant: only launches in use are remembered.
Knows nothing of: sources, sessions, when pools start and drain.
"""

from collections.abc import Mapping

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
