"""How long agents of the stateless era may take lists for current, and when servers are asked for theirs
again.

Owns: when each catalog was told; the hint of a list that is put together of many catalogs (the least of what
each allows, and public only if all are); that a catalog which has run out is asked for again, at most once
until the next is told (what is old is served meanwhile). A server of the handshake era has no such hint: its
list holds for a moment if it announces changes, because then whoever listens hears of them. Source: MCP
2026-07-28, server/utilities/caching.

Knows nothing of: pages, sessions, how a hint is worded.
"""

from collections.abc import Callable, Iterable
from typing import Final

from carpool_broker.core.model.effects import AnyEffect
from carpool_broker.core.model.pagination import Family
from carpool_broker.core.registry.registry import Registry
from carpool_broker.core.registry.view import View
from carpool_protocol.ids import PoolKey
from carpool_protocol.link.messages import Catalog, DiscoverCatalog, Feature

HANDSHAKE_TTL_MS: Final = 30_000

_CHANGES: Final[dict[Family, tuple[Feature, Feature]]] = {
    "tools": ("tools", "tools.listChanged"),
    "prompts": ("prompts", "prompts.listChanged"),
    "resources": ("resources", "resources.listChanged"),
    "templates": ("resources", "resources.listChanged"),
}


class ListFreshness:
    """The freshness of every pool's catalog."""

    def __init__(self, registry: Registry, out: Callable[[AnyEffect], None]) -> None:
        self._registry = registry
        self._emit = out
        self._expires_at: dict[PoolKey, float] = {}
        """The time at which a catalog runs out, if the server has said so."""
        self._renewing: set[PoolKey] = set()

    def catalog_received(self, catalog: Catalog, now: float) -> None:
        """A pool told its catalog, which may be the same as before."""
        self._renewing.discard(catalog.key)
        if catalog.ttl_ms >= 0:
            self._expires_at[catalog.key] = now + catalog.ttl_ms / 1000
        else:
            self._expires_at.pop(catalog.key, None)

    def retain_pools(self, keys: Iterable[PoolKey]) -> None:
        """Forget all pools but these, which are wanted."""
        wanted = set(keys)
        self._expires_at = {key: end for key, end in self._expires_at.items() if key in wanted}
        self._renewing &= wanted

    def supervisor_connected(self, runs: Callable[[PoolKey], bool]) -> None:
        """A new supervisor has connected, which was asked for none of these pools."""
        self._renewing = {key for key in self._renewing if not runs(key)}

    def ttl_of(self, view: View, families: Iterable[Family], now: float) -> tuple[int, bool]:
        """Return for how many milliseconds lists of these families hold, and whether they may be given to
        anybody.
        """
        keys = [entry.key for entry in view.scope.servers if entry.key not in view.hidden_pools]
        if view.unknown_pools or not keys:
            return 0, False
        wanted = tuple(families)
        ttl_ms, public = HANDSHAKE_TTL_MS, True
        limits: list[int] = []
        for key in keys:
            catalog = self._registry.told_catalog(key)
            end = self._expires_at.get(key)
            if catalog is None:
                return 0, False
            if end is None:
                public = False
                changes = [_CHANGES[family] for family in wanted]
                if any(has in catalog.features and says not in catalog.features for has, says in changes):
                    return 0, False
                limits.append(HANDSHAKE_TTL_MS)
            else:
                public = public and catalog.public
                limits.append(max(0, int((end - now) * 1000)))
        ttl_ms = min(limits)
        return ttl_ms, public

    def request_renewal(self, view: View, now: float) -> None:
        """Ask for catalogs of this view that have run out, because an agent reads its lists."""
        if not self._expires_at:
            return
        for entry in view.scope.servers:
            end = self._expires_at.get(entry.key)
            if (
                end is not None
                and end <= now
                and entry.key not in self._renewing
                and entry.key not in view.hidden_pools
            ):
                self._renewing.add(entry.key)
                self._emit(DiscoverCatalog(entry.key, again=True))
