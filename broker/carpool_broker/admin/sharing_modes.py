"""The method `carpool/sharing_modes`: the modes in which servers are shared, told when they change.

Owns what counts as a change, and how long a request waits for one. The node of a cluster asks, so that other
nodes hear of a server that begins to keep state (`carpool.cluster.own_offer`).

Knows nothing of: the reasons for a mode, nodes.
"""

from collections.abc import Mapping
from typing import Any, Final

import trio
from msgspec import Struct

from carpool_broker.admin.methods import Methods
from carpool_broker.core.configuration.session_views import SessionViews
from carpool_protocol.ids import PoolKey
from carpool_protocol.link.messages import PoolChanged

LOOK_S: Final = 0.25
"""How often a request that waits looks for a change."""
MAX_WAIT_S: Final = 60.0


class SharingModesParams(Struct):
    """Params of `carpool/sharing_modes`. `known`: the `modes` of an earlier answer. `within_s`: the longest
    time to wait for others.
    """

    known: dict[str, list[str]] = {}
    within_s: float = 0.0


class SharingModes:
    """The modes of all servers that have a pool."""

    def __init__(self, views: SessionViews) -> None:
        self._views = views
        self.waiting = 0
        """The requests that wait. Their sessions are the node's own, so they are no use of this carpool."""

    def register(self, methods: Methods) -> None:
        """Put the method into the table."""
        methods.add("carpool/sharing_modes", SharingModesParams, lambda _, params: self.changed(params))

    async def changed(self, params: SharingModesParams) -> dict[str, Any]:
        """Return `{"modes"}` as soon as they differ from the known ones, or the time is over."""
        self.waiting += 1
        try:
            with trio.move_on_after(min(max(params.within_s, 0.0), MAX_WAIT_S)):
                while modes_of(self._views.states) == params.known:  # noqa: ASYNC110 - told to the core alone
                    await trio.sleep(LOOK_S)
        finally:
            self.waiting -= 1
        return {"modes": modes_of(self._views.states)}


def modes_of(states: Mapping[PoolKey, PoolChanged]) -> dict[str, list[str]]:
    """Return the modes of each server, sorted: one for each that any of its pools is in."""
    found: dict[str, set[str]] = {}
    for key, state in states.items():
        found.setdefault(key.partition(":")[0], set()).add(state.mode)
    return {server: sorted(modes) for server, modes in sorted(found.items())}
