"""Where the lists of each pool come from, and of when they are, for operators.

Knows nothing of: how that is shown, what is in a list.
"""

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.following import AWAY
from carpool_protocol.ids import PoolKey

Origin = Literal["server", "earlier", "file", "unknown"]
"""`earlier`: the server told them to a carpool before this one, and has not been started since."""


class Lists(Struct, frozen=True):
    """What is known of what one pool offers."""

    origin: Origin = "unknown"
    tools: int = 0
    told_at: str = ""
    """When the server told them, as `wallclock` writes it; empty where that is not known."""

    def sentence(self) -> str:
        """For people; empty where the server has told by itself or nothing is known."""
        if self.origin == "earlier":
            when = f"on {self.told_at[:10]} at {self.told_at[11:16]} UTC" if self.told_at else "earlier"
            return (
                f"Its lists are those that it told {when}: it has told none since carpool started. When it "
                f"starts it tells them anew."
            )
        if self.origin == "file":
            return "Its tools are listed as its `tools_file` says, until it tells its own."
        return ""


def known_lists(core: BrokerCore, told_at: Callable[[PoolKey], str]) -> dict[PoolKey, Lists]:
    """Of every pool that is wanted."""
    away = {key for key, state in core.states.items() if state.state in AWAY}
    offline: dict[PoolKey, int] = {}
    for source in core.sources.sources.values():
        for lane in source.lanes.values():
            offline |= {it.key: len(it.offline) for it in lane.in_force.servers if it.offline is not None}
    found: dict[PoolKey, Lists] = {}
    for spec in core.sources.wanted().pools:
        key = spec.key
        told, known = core.registry.catalog(key), core.registry.known(key)
        if key in offline and (told is None or key in away):
            found[key] = Lists("file", offline[key])
        elif known is not None:
            found[key] = Lists("earlier" if told is None else "server", len(known.tools), told_at(key))
        else:
            found[key] = Lists()
    return found
