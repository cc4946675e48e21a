"""A scope: which servers a session sees, and how. Sessions with equal rights share one.

Owns the value, and its rule about what of a server it lets through: the server's own configuration and the
profile must both permit it. Invariant: a server is in a scope once. Refuses to know: catalogs, sessions,
where the configuration came from. Decision: docs/decisions/0024.
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
from carpool_protocol.wire.tool_name_resolver import MAX_NAME_CHARS, SEPARATOR, NamePrefixes

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
    """True: each description begins with `[server] `."""
    tools_allow: tuple[str, ...] = EVERY_TOOL
    """Shell patterns over the server's own tool names. A tool must match one of them; an empty tuple lets
    nothing through.
    """
    tools_deny: tuple[str, ...] = ()
    """Shell patterns of tools that are kept back, whatever `tools_allow` says."""
    max_tools: int | None = None
    """The number of its tools that are listed; the others can be called. None: all are listed."""
    pin: PinId = NO_PIN
    """The key of the approval of its tools; empty if the server is not pinned."""
    tags: tuple[str, ...] = ()
    project: bool = False
    """True if a project's file says how to start it."""
    stranger: bool = False
    """True if a project's server has the name of one of the user's servers and the user was not told so in
    the question for trust. Grants by name or tag do not apply to it (docs/rules.md, rule 19).
    """
    offline: tuple[ToolOffer, ...] | None = None
    """The tools that its `tools_file` lists. They are shown until the server has told its own, and while it
    is away.
    """

    def allows(self, tool: str) -> bool:
        """True if the server's tool of this name may be seen and called."""
        return self.allows_all or (
            any(fnmatchcase(tool, pattern) for pattern in self.tools_allow)
            and not any(fnmatchcase(tool, pattern) for pattern in self.tools_deny)
        )

    @property
    def allows_all(self) -> bool:
        """True if the server's configuration keeps no tool back."""
        return self.tools_allow == EVERY_TOOL and not self.tools_deny


class DisabledServer(Struct, frozen=True):
    """A server that is disabled, and therefore in no scope."""

    why: str
    """The reason, for people: its file, or `carpool disable`."""
    prefix: str | None = None
    """See `ScopeEntry`."""


class Scope(Struct, frozen=True, cache_hash=True):
    """What a session sees. Equal scopes share one view."""

    servers: tuple[ScopeEntry, ...]
    """The servers of which the rights permit anything."""
    separator: str = SEPARATOR
    profile: str = ""
    """The profile whose rights these are; empty if nothing limits them."""
    rights: Rights = ALL_RIGHTS
    barred: NamedServers = ()
    """Configured servers of which the rights permit nothing."""
    absent: NamedServers = ()
    """Configured servers that are disabled or cannot be run."""
    former: NamedServers = ()
    """Earlier servers of the session, whose names agents may still use."""
    name_chars: int = MAX_NAME_CHARS
    """The greatest length of names."""
    max_tools: int | None = None
    """The number of tools that are listed; the others can be called. None: all are listed."""
    search: bool = False
    """True: tools that find, describe and call tools are shown in place of the tools."""
    resource_tools: bool = False
    """True: tools that list and read resources and prompts are shown."""

    def permits(self, kind: Kind, entry: ScopeEntry, name: str) -> bool:
        """True if the server's offer of this name or URI may be seen and called."""
        if kind == "tool" and not entry.allows(name):
            return False
        return self.rights.are_all or self.rights.permits(
            kind, entry.server, entry.tags, name, stranger=entry.stranger
        )

    def reads_all(self, entry: ScopeEntry) -> bool:
        """True if no resource of the server is kept back."""
        return self.rights.are_all or self.rights.permits_all(
            "resource", entry.server, entry.tags, stranger=entry.stranger
        )

    def permits_completion(self, entry: ScopeEntry, template: str) -> bool:
        """True if values for this template of the server may be told, because none names a resource that is
        kept back.
        """
        return self.reads_all(entry) or self.rights.permits_expansions(
            entry.server, entry.tags, template, stranger=entry.stranger
        )

    def may_permit(self, kind: Kind, entry: ScopeEntry) -> bool:
        """True if some offer of this kind of the server can be let through."""
        return self.rights.may_permit(kind, entry.server, entry.tags, stranger=entry.stranger)

    @property
    def prefixes(self) -> Mapping[ServerName, str | None]:
        """Return `tools_prefix` of each server that is seen: one mapping for all who ask."""
        return _prefixes(self)

    @property
    def known(self) -> NamedServers:
        """Return all configured servers, in whatever state."""
        return (*self.prefixes.items(), *self.barred, *self.absent)

    @property
    def name_prefixes(self) -> NamePrefixes:
        """Return which server each spelling of a prefix is a name of."""
        return _name_prefixes(self.known, self.former, self.separator)

    def barred_server(self, spelling: str) -> ServerName | None:
        """Return the server of which nothing is permitted and whose name `spelling` is."""
        readers = self.name_prefixes.servers_of(spelling) if self.barred else ()
        return next((server for server, _ in self.barred if server in readers), None)

    def entry_of(self, server: ServerName) -> ScopeEntry | None:
        """Return the entry of this server; None if it is not seen."""
        return next((entry for entry in self.servers if entry.server == server), None)

    def offline_tools(self, key: PoolKey) -> tuple[ToolOffer, ...] | None:
        """Return what the `tools_file` of this pool's server lists; None if it has none."""
        return next((entry.offline for entry in self.servers if entry.key == key), None)

    def server_of(self, key: PoolKey) -> ServerName | None:
        """Return the server that this pool serves here; None if it is not seen."""
        return next((entry.server for entry in self.servers if entry.key == key), None)


LeftPools = tuple[tuple[ServerName, PoolKey, PoolKey], ...]
"""Servers, each with the pool that served it and the one that serves it now (empty if none does)."""


def pools_of(scope: Scope) -> dict[ServerName, PoolKey]:
    """Return the pool of each server in this scope."""
    return {entry.server: entry.key for entry in scope.servers}


def pools_left(before: Scope, now: Scope) -> LeftPools:
    """Return the servers of `before` that the same pool does not serve in `now`."""
    keys = pools_of(now)
    return tuple(
        (entry.server, entry.key, keys.get(entry.server, PoolKey("")))
        for entry in before.servers
        if keys.get(entry.server) != entry.key
    )


@lru_cache(maxsize=256)
def _prefixes(scope: Scope) -> Mapping[ServerName, str | None]:
    return {entry.server: entry.prefix for entry in scope.servers}


@lru_cache(maxsize=64)
def _name_prefixes(known: NamedServers, former: NamedServers, separator: str) -> NamePrefixes:
    return NamePrefixes(dict(known), separator, former=dict(former))
