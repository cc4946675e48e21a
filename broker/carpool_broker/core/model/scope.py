"""Which servers a session sees, and how: the value that sessions with equal rights share.

Owns the value and its rule about what of a server it lets through: the server's own configuration and the
profile both must. Invariant: a server is in a scope once.

Knows nothing of: catalogs, sessions, where the configuration came from.
Decision: docs/decisions/0024.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

from msgspec import Struct

from carpool_broker.core.model.approval import NO_PIN, PinId
from carpool_broker.core.model.compiled_profile import ALL_RIGHTS, Rights
from carpool_protocol.config.schema.capability import Kind
from carpool_protocol.ids import PoolKey, ServerName
from carpool_protocol.link.messages import ToolOffer
from carpool_protocol.wire.tool_names import MAX_NAME_CHARS, SEPARATOR, NamePrefixes

NamedServers = tuple[tuple[ServerName, str | None], ...]
"""Servers and their `tools_prefix`, as in `ScopeEntry.prefix`."""


EVERY_TOOL: Final = ("*",)


class ScopeEntry(Struct, frozen=True, kw_only=True, cache_hash=True):
    """One server within a scope."""

    server: ServerName
    key: PoolKey
    prefix: str | None = None
    """`tools_prefix`: None is the server's name, `""` shows the tools under their own names."""
    description_prefix: bool = False
    """Put `[server] ` before each description."""
    tools_allow: tuple[str, ...] = EVERY_TOOL
    """Shell patterns over the server's own tool names; a tool must match one. Empty lets nothing through."""
    tools_deny: tuple[str, ...] = ()
    """Shell patterns; stronger than `tools_allow`."""
    max_tools: int | None = None
    """So many of its tools are listed; the others can be called. None: all are."""
    pin: PinId = NO_PIN
    """What the approval of its tools goes by; empty: it is not pinned."""
    tags: tuple[str, ...] = ()
    project: bool = False
    """Its launch is from a project's file."""
    stranger: bool = False
    """It is a project's, has the name of a server of the user's, and the user was not told so when he was
    asked for trust: what he grants by name or tag is not meant for it (rule 19).
    """
    offline: tuple[ToolOffer, ...] | None = None
    """What its `tools_file` lists, shown while the server has not told by itself, or is away."""

    def allows(self, tool: str) -> bool:
        """Whether the server's tool of this name may be seen and called."""
        return self.allows_all or (
            any(fnmatchcase(tool, pattern) for pattern in self.tools_allow)
            and not any(fnmatchcase(tool, pattern) for pattern in self.tools_deny)
        )

    @property
    def allows_all(self) -> bool:
        """Whether no tool of the server is kept back by its configuration."""
        return self.tools_allow == EVERY_TOOL and not self.tools_deny


class DisabledServer(Struct, frozen=True):
    """A server that is disabled, so in no scope."""

    why: str
    """For people: by its file, or by `carpool disable`."""
    prefix: str | None = None
    """See `ScopeEntry`."""


class Scope(Struct, frozen=True, cache_hash=True):
    """What a session sees. Compared by value: equal scopes share one view."""

    servers: tuple[ScopeEntry, ...]
    """Without those of which the rights permit nothing."""
    separator: str = SEPARATOR
    profile: str = ""
    """Whose rights these are; empty where they are all, and nothing else is seen otherwise."""
    rights: Rights = ALL_RIGHTS
    barred: NamedServers = ()
    """Servers that are configured and kept back as a whole by the rights."""
    absent: NamedServers = ()
    """Servers that are configured and not here: disabled, or what cannot be run."""
    former: NamedServers = ()
    """Servers that were here, and that agents may still hold names of."""
    name_chars: int = MAX_NAME_CHARS
    """The length of names, at most."""
    max_tools: int | None = None
    """So many tools are listed; the others can be called. None: all are."""
    search: bool = False
    """Tools that find, describe and call tools are shown instead of those tools."""
    resource_tools: bool = False
    """Tools that list and read resources and prompts are shown."""

    def permits(self, kind: Kind, entry: ScopeEntry, name: str) -> bool:
        """Whether what the server offers under this name of its own, or URI, may be seen and called."""
        if kind == "tool" and not entry.allows(name):
            return False
        return self.rights.are_all or self.rights.permits(
            kind, entry.server, entry.tags, name, stranger=entry.stranger
        )

    def reads_all(self, entry: ScopeEntry) -> bool:
        """Whether no resource that the server may have is kept back."""
        return self.rights.are_all or self.rights.permits_all(
            "resource", entry.server, entry.tags, stranger=entry.stranger
        )

    def permits_completion(self, entry: ScopeEntry, template: str) -> bool:
        """Whether values for this template of the server may be told: none names what is kept back."""
        return self.reads_all(entry) or self.rights.permits_expansions(
            entry.server, entry.tags, template, stranger=entry.stranger
        )

    def may_permit(self, kind: Kind, entry: ScopeEntry) -> bool:
        """Whether anything of this kind that the server may offer can be let through."""
        return self.rights.may_permit(kind, entry.server, entry.tags, stranger=entry.stranger)

    @property
    def prefixes(self) -> Mapping[ServerName, str | None]:
        """`tools_prefix` of each server that is seen."""
        return {entry.server: entry.prefix for entry in self.servers}

    @property
    def known(self) -> NamedServers:
        """All servers that are configured, whatever state they are in."""
        return (*self.prefixes.items(), *self.barred, *self.absent)

    @property
    def name_prefixes(self) -> NamePrefixes:
        """Which server a spelling reads as a name of."""
        return _name_prefixes(self.known, self.former, self.separator)

    def barred_server(self, spelling: str) -> ServerName | None:
        """The server that is kept back as a whole and that `spelling` reads as a name of."""
        readers = self.name_prefixes.servers_of(spelling) if self.barred else ()
        return next((server for server, _ in self.barred if server in readers), None)

    def entry_of(self, server: ServerName) -> ScopeEntry | None:
        """A server of this name; None: it is not seen."""
        return next((entry for entry in self.servers if entry.server == server), None)

    def offline_tools(self, key: PoolKey) -> tuple[ToolOffer, ...] | None:
        """What the `tools_file` of this pool's server lists here; None: it has none."""
        return next((entry.offline for entry in self.servers if entry.key == key), None)

    def server_of(self, key: PoolKey) -> ServerName | None:
        """Which server this pool is here; None: it is not seen."""
        return next((entry.server for entry in self.servers if entry.key == key), None)


@lru_cache(maxsize=64)
def _name_prefixes(known: NamedServers, former: NamedServers, separator: str) -> NamePrefixes:
    return NamePrefixes(dict(known), separator, former=dict(former))
