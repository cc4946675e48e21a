"""Where the lists of each pool come from, and of when they are, for operators.

Knows nothing of: how that is shown, what is in a list.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.model.scope import ScopeEntry
from carpool_broker.core.updates import AWAY
from carpool_protocol.ids import PoolKey
from carpool_protocol.link.messages import ToolOffer

Origin = Literal["server", "earlier", "file", "unknown"]
"""`earlier`: the server told them to a carpool before this one, and has not been started since."""


class Lists(Struct, frozen=True):
    """What is known of what one pool offers."""

    origin: Origin = "unknown"
    tools: int = 0
    """Those on offer: that the server's own `tools.allow` and `tools.deny` let through."""
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
    entries: dict[PoolKey, list[ScopeEntry]] = {}
    for source in core.sources.sources.values():
        for lane in source.lanes.values():
            for it in lane.in_force.servers:
                entries.setdefault(it.key, []).append(it)
                if it.offline is not None:
                    offline[it.key] = _on_offer(it.offline, [it])
    found: dict[PoolKey, Lists] = {}
    for spec in core.sources.wanted().pools:
        key = spec.key
        told, known = core.registry.catalog(key), core.registry.known(key)
        if key in offline and (told is None or key in away):
            found[key] = Lists("file", offline[key])
        elif known is not None:
            found[key] = Lists(
                "earlier" if told is None else "server",
                _on_offer(known.tools, entries.get(key, [])),
                told_at(key),
            )
        else:
            found[key] = Lists()
    return found


def _on_offer(tools: Sequence[ToolOffer], entries: Sequence[ScopeEntry]) -> int:
    """How many of a server's tools its own configuration lets through, to some agent at least."""
    return sum(any(entry.allows(tool.name) for entry in entries) for tool in tools)
