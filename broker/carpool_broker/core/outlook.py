"""What sessions see now, and how long it is worth waiting for more.

Owns the way from a session to its view, what the supervisor last said of each pool, and the patience with
catalogs that are on their way (rule 18): nobody waits for a failing pool, and no list waits twice for a slow
one.

Knows nothing of: what waits, and for whom.
"""

from collections.abc import Callable
from typing import Final

from carpool_broker.core.effects import AnyEffect
from carpool_broker.core.registry import Registry
from carpool_broker.core.session import Session
from carpool_broker.core.sources import Sources
from carpool_broker.core.view import View
from carpool_protocol.ids import PoolKey
from carpool_protocol.messages import Discover, PoolChanged

FAILING: Final = frozenset({"given_up", "stopped", "backing_off"})
"""States in which nothing waits for a pool's catalog."""


class Outlook:
    """Views and patience."""

    def __init__(self, registry: Registry, out: Callable[[AnyEffect], None]) -> None:
        self._registry = registry
        self._out = out
        self.states: dict[PoolKey, PoolChanged] = {}
        self.sources = Sources(registry, self.states)
        self.slow: set[PoolKey] = set()
        """Pools that a list has once waited for in vain."""

    def view(self, session: Session) -> View:
        """What this session sees."""
        return self._registry.view(self.sources.scope(session.source))

    def is_settled(self, key: PoolKey) -> bool:
        """Whether waiting for this pool's catalog is pointless."""
        state = self.states.get(key)
        return state is not None and state.state in FAILING

    def unsettled(self, view: View) -> bool:
        """Whether a list is worth waiting for."""
        return any(not self.is_settled(key) and key not in self.slow for key in view.unknown)

    def discover(self, view: View) -> None:
        """Have the unknown catalogs of this view told."""
        for key in sorted(view.unknown):
            if not self.is_settled(key):
                self._out(Discover(key))
