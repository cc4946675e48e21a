"""What sessions of one scope see at one moment: tools under their qualified names, in pages.

Owns: the order of a list (by server, then by tool, both by code point: the same for every agent,
whatever order the configuration or the server uses, and after every restart), pages and cursors (rule
18), what a spelling means to a session. Everything here is immutable to its users; caches are filled on
first use.

Invariants: a cursor continues the very list it was given out with, or is refused; it names the beginning
of a page, so nobody can have other pages built. A tool that is listed can be resolved by its name.

Knows nothing of: when a view changes and who holds which (`registry`), profiles, sessions, JSON-RPC.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct

from carpool_broker.core.scope import Scope
from carpool_protocol.ids import PoolKey, RawJson, ServerName
from carpool_protocol.names import Ambiguous, Resolved, Resolver, Tool, Unknown, may_be_of, qualify_all

PAGE_ENTRIES = 1000
PAGE_BYTES = 4 * 1024 * 1024

_HEAD = b'{"tools":['
_TAIL = b"]}"
_CURSOR_ROOM_BYTES = 64


class ViewTool(Struct, frozen=True):
    """One tool as the agents of a scope see it."""

    qualified: str
    server: ServerName
    tool: str
    """The server's own name for it."""
    key: PoolKey
    definition: RawJson
    """The whole tool object, with the qualified name in place of the server's."""


class Page(Struct, frozen=True):
    """One page of a list."""

    body: RawJson
    """The result object: `{"tools": [...], "nextCursor": ...}`."""
    next_cursor: str | None


class BadCursor(Struct, frozen=True):
    """Not a cursor of this list, or of a version that is no longer kept (-32602, fault `bad_cursor`)."""


class Denied(Struct, frozen=True):
    """The tool exists, but its server's configuration does not let it through (fault `not_permitted`)."""

    server: ServerName
    tool: str


class Listing:
    """One version of the list of a scope. Pages are encoded once, for all agents."""

    __slots__ = ("_mark", "_pages", "_starts", "ordinal", "tools", "version")

    def __init__(
        self,
        tools: tuple[ViewTool, ...],
        *,
        version: int,
        ordinal: int,
        mark: str,
        entries: int,
        size_bytes: int,
    ) -> None:
        """`ordinal` counts the lists of one scope; `mark` tells this broker's cursors from earlier ones'."""
        self.tools = tools
        self.version = version
        self.ordinal = ordinal
        self._mark = mark
        self._starts = _page_starts(tools, entries, size_bytes)
        self._pages: dict[str | None, Page] = {}

    @property
    def is_paged(self) -> bool:
        """Whether any cursor into this list can be out."""
        return len(self._starts) > 1

    def page(self, cursor: str | None) -> Page | None:
        """The page that `cursor` begins; None for a cursor that this list never gave out."""
        page = self._pages.get(cursor)
        if page is None:
            for number, start in enumerate(self._starts):
                if cursor == self._cursor(start):
                    page = self._pages[cursor] = self._encode(number)
        return page

    def _cursor(self, start: int) -> str | None:
        return f"{self._mark}{self.version}.{start}" if start else None

    def _encode(self, number: int) -> Page:
        start = self._starts[number]
        is_last = number + 1 == len(self._starts)
        end = len(self.tools) if is_last else self._starts[number + 1]
        body = _HEAD + b",".join([tool.definition for tool in self.tools[start:end]])
        if is_last:
            return Page(RawJson(body + _TAIL), None)
        cursor = self._cursor(end)
        return Page(RawJson(body + b'],"nextCursor":' + msgspec.json.encode(cursor) + b"}"), cursor)


def _page_starts(tools: Sequence[ViewTool], entries: int, size_bytes: int) -> tuple[int, ...]:
    """Where pages begin: as few as the limits allow; a tool too large for any page has one to itself."""
    starts = [0]
    room_bytes = size_bytes - len(_HEAD) - _CURSOR_ROOM_BYTES
    used_bytes = 0
    for index, tool in enumerate(tools):
        entry_bytes = len(tool.definition) + 1
        if index > starts[-1] and (index - starts[-1] >= entries or used_bytes + entry_bytes > room_bytes):
            starts.append(index)
            used_bytes = 0
        used_bytes += entry_bytes
    return tuple(starts)


class View:
    """What a scope sees: its list, and what every spelling means.

    The tools of a server that is away (given up, stopped, disabled) are not listed but keep their names
    and can be resolved: a call gets the reason, and no other tool changes its name or meaning because a
    server went away.
    """

    __slots__ = (
        "_by_name",
        "_denied",
        "_denied_resolver",
        "_earlier",
        "_listing",
        "_resolver",
        "away",
        "instructions",
        "scope",
        "unknown",
    )

    def __init__(
        self,
        scope: Scope,
        listing: Listing,
        *,
        earlier: tuple[Listing, ...],
        known: Iterable[ViewTool],
        denied: Sequence[Tool],
        unknown: frozenset[PoolKey],
        away: frozenset[PoolKey],
        instructions: str,
    ) -> None:
        """`earlier`: the lists whose cursors still count; `known`: all tools let through, listed or away."""
        self.scope = scope
        self.unknown = unknown
        """Pools whose catalog is not known yet and may still come: what `tools/list` waits for."""
        self.away = away
        """Pools that were hidden: their tools are not listed, and there is nothing to wait for."""
        self.instructions = instructions
        """What the servers that are not away say about themselves, merged."""
        self._listing = listing
        self._earlier = earlier
        self._by_name = {tool.qualified: tool for tool in known}
        self._denied = denied
        self._resolver: Resolver | None = None
        self._denied_resolver: Resolver | None = None

    @property
    def version(self) -> int:
        """Greater whenever the list is another one; unique within a registry."""
        return self._listing.version

    @property
    def tools(self) -> tuple[ViewTool, ...]:
        """What is listed, in order."""
        return self._listing.tools

    @property
    def listings(self) -> tuple[Listing, ...]:
        """The present list and the earlier ones whose cursors still count, newest first."""
        return (self._listing, *self._earlier)

    @property
    def resolver(self) -> Resolver:
        """All spellings of all tools let through; built when the first name is not a qualified one."""
        if self._resolver is None:
            self._resolver = Resolver({(t.server, t.tool): t.qualified for t in self._by_name.values()})
        return self._resolver

    def resolve(self, spelling: str) -> ViewTool | Ambiguous | Denied | Unknown:
        """The tool that `spelling` means. A qualified name costs one dictionary lookup."""
        tool = self._by_name.get(spelling)
        return tool if tool is not None else self._resolve_otherwise(spelling)

    def suspects(self, spelling: str) -> tuple[PoolKey, ...]:
        """Pools without a known catalog that `spelling` can belong to, by the server's name at its head.

        Never a route: it says whose catalog is worth waiting for before an unknown name is refused, and which
        server that is away is meant. With `tools_prefix` `""` every name can belong to the server.
        """
        waiting = self.unknown | self.away
        if not waiting:
            return ()
        known = {tool.key for tool in self._by_name.values()}
        return tuple(
            entry.key
            for entry in self.scope.servers
            if entry.key in waiting
            and entry.key not in known
            and may_be_of(spelling, entry.server, self.scope.separator, entry.prefix)
        )

    def page(self, cursor: str | None) -> Page | BadCursor:
        """One page of the present list, or of the earlier one that `cursor` belongs to."""
        if cursor is None:
            page = self._listing.page(None)
            assert page is not None  # every list has a first page
            return page
        for listing in self.listings:
            page = listing.page(cursor)
            if page is not None:
                return page
        return BadCursor()

    def _resolve_otherwise(self, spelling: str) -> ViewTool | Ambiguous | Denied | Unknown:
        answer = self.resolver.resolve(spelling)
        match answer:
            case Resolved():
                return self._by_name[answer.qualified]
            case Ambiguous():
                return answer
            case Unknown():
                if not self._denied:
                    return answer
        if self._denied_resolver is None:
            names = qualify_all(self._denied, prefixes_of(self.scope), self.scope.separator)
            self._denied_resolver = Resolver(names)
        denied = self._denied_resolver.resolve(spelling)
        return Denied(denied.server, denied.tool) if isinstance(denied, Resolved) else answer


def prefixes_of(scope: Scope) -> Mapping[ServerName, str | None]:
    """`tools_prefix` of each server, as `names.qualify_all` wants them."""
    return {entry.server: entry.prefix for entry in scope.servers}
