"""Which servers a session sees, and how: the value that sessions with equal rights share.

Owns the value and its rule about which tools of a server it lets through. Invariant: a server is in a
scope once. Knows nothing of: catalogs, sessions, where the configuration came from.
"""

from fnmatch import fnmatchcase

from msgspec import Struct

from carpool_protocol.ids import PoolKey, ServerName
from carpool_protocol.messages import ToolOffer
from carpool_protocol.names import SEPARATOR


class ScopeEntry(Struct, frozen=True, kw_only=True, cache_hash=True):
    """One server within a scope."""

    server: ServerName
    key: PoolKey
    prefix: str | None = None
    """`tools_prefix`: None is the server's name, `""` shows the tools under their own names."""
    description_prefix: bool = False
    """Put `[server] ` before each description."""
    tools_allow: tuple[str, ...] = ("*",)
    """Shell patterns over the server's own tool names; a tool must match one. Empty lets nothing through."""
    tools_deny: tuple[str, ...] = ()
    """Shell patterns; stronger than `tools_allow`."""
    tags: tuple[str, ...] = ()
    offline: tuple[ToolOffer, ...] | None = None
    """What its `tools_file` lists, shown while the server has not told by itself, or is away."""

    def allows(self, tool: str) -> bool:
        """Whether the server's tool of this name may be seen and called."""
        return any(fnmatchcase(tool, pattern) for pattern in self.tools_allow) and not any(
            fnmatchcase(tool, pattern) for pattern in self.tools_deny
        )


class Off(Struct, frozen=True):
    """A server that is disabled, so in no scope."""

    why: str
    """For people: by its file, or by `carpool disable`."""
    prefix: str | None = None
    """See `ScopeEntry`."""


class Scope(Struct, frozen=True, cache_hash=True):
    """What a session sees. Compared by value: equal scopes share one view."""

    servers: tuple[ScopeEntry, ...]
    separator: str = SEPARATOR

    def offline_of(self, key: PoolKey) -> tuple[ToolOffer, ...] | None:
        """What the `tools_file` of this pool's server lists here; None: it has none."""
        return next((entry.offline for entry in self.servers if entry.key == key), None)

    def server_of(self, key: PoolKey) -> ServerName | None:
        """Which server this pool is here; None: it is not seen."""
        return next((entry.server for entry in self.servers if entry.key == key), None)
