"""Which servers are spoken to in the era of each agent (`"era": "match"`), and which speak one era only.

A launch with `match` may have a pool more, for agents of the stateless era. It is started when the first of
them comes; what it tells says which era the server speaks (`Catalog.era`). A server that speaks one era has
no need of it: then all agents are served from the pools that agents of the handshake era have. That is found
out once per launch, and holds as long as the launch is in use.

Invariant: only launches in use are remembered.
Knows nothing of: sources, sessions, when pools start and drain, how an era is found out.
"""

from collections.abc import Mapping

from carpool_broker.core.registry import Registry
from carpool_protocol.ids import PoolKey


class Matches:
    """All launches with a pool for agents of the stateless era."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._plain_of: dict[PoolKey, PoolKey] = {}
        """By each pool of such a launch: the key of its plain one."""
        self._stateless: dict[PoolKey, PoolKey] = {}
        """By plain key: the pool for agents of the stateless era."""
        self._one_era: set[PoolKey] = set()

    def know(self, stateless: Mapping[PoolKey, PoolKey], twins: Mapping[PoolKey, PoolKey]) -> None:
        """Of every launch in use, by its plain key: the pool for agents of the stateless era, and the pool
        for agents that can be asked.
        """
        self._stateless = dict(stateless)
        self._plain_of = {
            key: plain
            for plain, other in stateless.items()
            for key in (plain, other, twins.get(plain, plain))
        }
        self._one_era &= stateless.keys()

    def look(self, key: PoolKey) -> bool:
        """A catalog or a state of this pool came. True when its launch is to be served otherwise now."""
        plain = self._plain_of.get(key)
        catalog = self._registry.catalog(key)
        if plain is None or plain in self._one_era or catalog is None:
            return False
        if (catalog.era == "stateless") == (key == self._stateless[plain]):
            return False  # it speaks what this pool is for
        self._one_era.add(plain)
        return True

    def serving(self, plain: PoolKey) -> PoolKey | None:
        """The pool for agents of the stateless era; None: they have none of their own."""
        return None if plain in self._one_era else self._stateless.get(plain)

    def check(self) -> None:
        """Assert every invariant."""
        assert self._one_era <= self._stateless.keys()
