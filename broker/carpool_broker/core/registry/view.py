"""What sessions of one scope see at one moment: four lists, and what every spelling means to them.

Composes the name tables of tools and prompts, the table of URIs and the four lists; owns what is announced of
them and where a completion goes. Everything here is immutable to its users; caches are filled on first use.

Invariants: whatever is listed can be resolved by its name or URI; so can what is not because tools of our
own stand in its place (`builtin_tools`). The offers of a server that is away (given
up, stopped) are not listed but keep their names and can be resolved: a call gets the reason, and
nothing else changes its name or meaning because a server went away.

Knows nothing of: when a view changes and who holds which (`registry`), profiles, sessions, JSON-RPC.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from carpool_broker.core.model.pagination import FAMILIES, BadCursor, Family, Listable, ListPage, ListVersions
from carpool_broker.core.model.scope import Scope, ScopeEntry
from carpool_broker.core.registry.approvals import HeldReason
from carpool_broker.core.registry.builtin_tools import BuiltinTool
from carpool_broker.core.registry.names import DeniedName, NameTable
from carpool_broker.core.registry.pool_catalog import (
    MAX_ANNOTATED_BYTES,
    UnverifiedTool,
    ViewPrompt,
    ViewResource,
    ViewTool,
    as_unverified,
)
from carpool_broker.core.registry.uris import UnroutableUri, UriRoute, UriTable
from carpool_protocol.carrier.streams import ANNOTATED_TOOLS
from carpool_protocol.faults.fault_answers import TOOLS_CALL
from carpool_protocol.ids import PoolKey, RawJson, ServerName
from carpool_protocol.link.messages import Feature
from carpool_protocol.wire.content import change_members, text_of
from carpool_protocol.wire.downgrade import NEWEST, tool_edit
from carpool_protocol.wire.jsonrpc import quote
from carpool_protocol.wire.tool_name_resolver import AmbiguousName, NoSuchName, Resolver, Tool

__all__ = [  # what a view is asked for and answers
    "BadCursor",
    "BadReference",
    "BuiltinTool",
    "CompletionTarget",
    "DeniedName",
    "HeldByPin",
    "ListPage",
    "UnroutableUri",
    "UnverifiedTool",
    "UriRoute",
    "View",
    "ViewPrompt",
    "ViewResource",
    "ViewTool",
]


ANNOTATED_PAGE_BYTES: Final = 4 * MAX_ANNOTATED_BYTES
"""The HTTP door reads a page in one step, while its other clients wait."""
NO_BUILTIN_TOOLS: Final[Mapping[str, BuiltinTool]] = MappingProxyType({})

_PLACE: Final[dict[Family, int]] = {family: place for place, family in enumerate(FAMILIES)}


class CompletionTarget(Struct, frozen=True):
    """The server that answers a `completion/complete`."""

    key: PoolKey
    server: ServerName
    ref: RawJson
    """The reference with the server's own name or URI."""


class BadReference(Struct, frozen=True):
    """The reference of a `completion/complete` is none (-32602)."""

    text: str


class HeldByPin(Struct, frozen=True):
    """The tool exists, and its present definition is not approved (fault `quarantined`)."""

    server: ServerName
    tool: str
    why: HeldReason


class View:
    """What the sessions of one scope see."""

    __slots__ = (
        "_absent",
        "_annotated",
        "_by_name",
        "_features",
        "_known_pools",
        "_places",
        "_pools_untold",
        "builtin_tools",
        "dropped_tools",
        "held_tools",
        "hidden_pools",
        "instructions",
        "lists",
        "prompt_names",
        "rewritten_pools",
        "scope",
        "tool_names",
        "tools",
        "unconfirmed",
        "unknown_pools",
        "uris",
    )

    def __init__(
        self,
        scope: Scope,
        *,
        lists: tuple[
            ListVersions[ViewTool | BuiltinTool],
            ListVersions[ViewPrompt],
            ListVersions[ViewResource],
            ListVersions[ViewResource],
        ],
        tools: tuple[ViewTool, ...],
        callable_tools: Mapping[str, ViewTool],
        tool_names: NameTable[ViewTool],
        prompt_names: NameTable[ViewPrompt],
        uris: UriTable,
        unknown: frozenset[PoolKey],
        away: frozenset[PoolKey],
        hearsay: frozenset[PoolKey],
        held: Mapping[Tool, HeldReason],
        untold: frozenset[PoolKey],
        instructions: str,
        features: frozenset[Feature],
        left_out: int = 0,
        own: Mapping[str, BuiltinTool] = NO_BUILTIN_TOOLS,
    ) -> None:
        self.scope = scope
        self.tool_names = tool_names
        self.prompt_names = prompt_names
        self.uris = uris
        self.rewritten_pools = uris.rewritten_pools
        """The pools whose results must pass through `content.rewrite_uris`."""
        self.unknown_pools = unknown
        """The pools whose catalogs are not known yet and may still come. Lists wait for them."""
        self.hidden_pools = away
        """The hidden pools: their offers are not listed, and no list waits for them."""
        self.unconfirmed = hearsay
        """The pools whose offers are known from a file only, carpool's or the user's. The server may offer
        others.
        """
        self.held_tools = held
        """The tools of pinned servers that are not approved: they are not listed, and no spelling leads to
        them.
        """
        self._pools_untold = untold
        """The pools of pinned servers that have not told their catalogs themselves."""
        self.instructions = instructions
        """The merged instructions of the servers that are not away."""
        self._features = features
        self.dropped_tools = left_out
        """The tools that `max_tools` leaves out of the list. They can be called."""
        self.lists = lists
        """The lists, in the order of `FAMILIES`."""
        self.tools = tools
        """The tools of servers that are not away, in order: what is listed, or what carpool's own tools
        find.
        """
        self.builtin_tools = own
        """carpool's own tools that are listed, by name."""
        self._by_name: Mapping[str, ViewTool | BuiltinTool] = (
            {**callable_tools, **own} if own else callable_tools
        )
        # Made on first use, because most views are never asked for a name that they do not have.
        self._annotated: ListVersions[ViewTool | BuiltinTool] | None = None
        """The list of those tools that tell arguments in headers."""
        self._absent: frozenset[PoolKey] | None = None
        """The pools without a told catalog."""
        self._known_pools: dict[str, frozenset[PoolKey]] = {}
        """By family: the pools of all names."""
        self._places: Mapping[str, list[tuple[int, ScopeEntry]]] = {}
        """The entries by server, and at `""` those without a prefix. Each with its place in the scope."""

    # --- lists ---------------------------------------------------------------------------------------------

    def version(self, family: Family) -> int:
        """Return a number that is greater whenever the list differs, and unique within a registry."""
        return self.lists[_PLACE[family]].present.version

    def entries(self, family: Family) -> Sequence[Listable]:
        """Return what is listed."""
        return self.lists[_PLACE[family]].present.entries

    def page(self, family: Family, cursor: str | None, version: str = NEWEST) -> ListPage | BadCursor:
        """Return one page, for agents of this protocol version, of the list that `cursor` belongs to."""
        if family == "tools":
            if cursor is not None and cursor.startswith(ANNOTATED_TOOLS):
                return self._annotated_page(cursor)
            return self.lists[0].page(cursor, tool_edit(version))
        return self.lists[_PLACE[family]].page(cursor)

    def _annotated_page(self, cursor: str) -> ListPage | BadCursor:
        tools = self._annotated
        if tools is None:
            entries = self.lists[0].present.entries
            found = tuple(each for each in entries if isinstance(each, ViewTool) and each.is_annotated)
            tools = self._annotated = self.lists[0].selected(found, ANNOTATED_TOOLS, ANNOTATED_PAGE_BYTES)
        return tools.page(None if cursor == ANNOTATED_TOOLS else cursor)

    @property
    def prompts(self) -> tuple[ViewPrompt, ...]:
        """The prompts that are listed, in order."""
        return self.lists[1].present.entries

    @property
    def resources(self) -> tuple[ViewResource, ...]:
        """The resources that are listed, in order."""
        return self.lists[2].present.entries

    @property
    def templates(self) -> tuple[ViewResource, ...]:
        """The resource templates that are listed, in order."""
        return self.lists[3].present.entries

    def capabilities(self) -> frozenset[Feature]:
        """Return the features to announce: what some server of the scope serves, or may serve once it is
        known (docs/rules.md, rule 18). A server that is away counts: it may come back, and an agent reads
        capabilities only once.
        """
        return self._features

    # --- names ---------------------------------------------------------------------------------------------

    @property
    def resolver(self) -> Resolver:
        """Return the resolver of all spellings of tools that are let through."""
        return self.tool_names.resolver

    def resolve(
        self, spelling: str
    ) -> ViewTool | BuiltinTool | AmbiguousName | DeniedName | HeldByPin | NoSuchName:
        """Return the tool that `spelling` means. A qualified name costs one dictionary lookup."""
        tool = self._by_name.get(spelling)
        if tool is not None:
            return tool
        found = self.tool_names.resolve(spelling)
        if isinstance(found, ViewTool) and found.key in self._pools_untold:
            return as_unverified(found)
        if self.held_tools:
            if isinstance(found, ViewTool) and (why := self.held_tools.get((found.server, found.tool))):
                return HeldByPin(found.server, found.tool, why)
            if isinstance(found, DeniedName) and (why := self.held_tools.get((found.server, found.name))):
                return HeldByPin(found.server, found.name, why)
        return found

    def resolve_prompt(self, spelling: str) -> ViewPrompt | AmbiguousName | DeniedName | NoSuchName:
        """Return the prompt that `spelling` means."""
        return self.prompt_names.resolve(spelling)

    def similar_names(self, method: str, spelling: str) -> tuple[str, ...]:
        """Return names that are similar to one that no tool has, or no prompt for other methods than
        `tools/call`. Takes a millisecond or more.
        """
        return (self.tool_names if method == TOOLS_CALL else self.prompt_names).similar_names(spelling)

    def possible_pools(
        self, spelling: str, family: Literal["tools", "prompts"] = "tools"
    ) -> tuple[PoolKey, ...]:
        """Return the pools without a told catalog that `spelling` can belong to: it reads as a name of the
        server, or of no server while the server's tools are shown without a prefix. This is no route. It
        says for which catalogs an unknown name should wait before it is refused, and which absent server is
        meant.
        """
        waiting = self._absent
        if waiting is None:
            waiting = self._absent = self.unknown_pools | self.hidden_pools | self.unconfirmed
        if not waiting:
            return ()
        known = self._known_pools.get(family)
        if known is None:
            table = self.tool_names if family == "tools" else self.prompt_names
            known = self._known_pools[family] = frozenset(it.key for it in table.by_name.values())
        readers = self.scope.name_prefixes.servers_of(spelling)
        if not self._places:
            self._places = _places_of(self.scope)
        found = sorted({place for server in readers or ("",) for place in self._places.get(server, ())})
        return tuple(
            entry.key
            for _, entry in found
            if entry.key in waiting and (entry.key in self.unconfirmed or entry.key not in known)
        )

    # --- URIs ----------------------------------------------------------------------------------------------

    def route(self, uri: str) -> UriRoute | UnroutableUri | DeniedName:
        """Return the server that `uri` belongs to. While `unknown_pools` is not empty, only a route by
        `listed` or `named` is final. Where the profile keeps back any resource of the server, the URI of the
        route is one that the server lists or has a template for.
        """
        return self._check_rights(uri, self.uris.route(uri))

    def route_template(self, template: str) -> UriRoute | UnroutableUri | DeniedName:
        """Return the same for a template, as in the reference of a completion."""
        return self._check_rights(template, self.uris.route_template(template))

    def _check_rights(
        self, uri: str, found: UriRoute | UnroutableUri
    ) -> UriRoute | UnroutableUri | DeniedName:
        """Check the rights for the URI that is meant, in the server's own spelling."""
        scope = self.scope
        if scope.rights.are_all:
            return found
        listed = isinstance(found, UriRoute) and found.by == "listed"
        if not listed and (owner := self.uris.denied_server(uri)) is not None:
            return DeniedName(owner, uri, scope.profile)
        if isinstance(found, UnroutableUri):
            return found
        entry = scope.entry_of(found.server)
        own = None if entry is None else self.readable_uri(entry, found.uri)
        if own is None:
            return DeniedName(found.server, found.uri, scope.profile)
        return found if own == found.uri else replace(found, uri=own)

    def readable_uri(self, entry: ScopeEntry, uri: str) -> str | None:
        """Return `uri` of this server as the server gets it; None if the profile keeps it back. Where any
        resource of the server is kept back, only what is listed and permitted can be read.
        """
        scope = self.scope
        if scope.reads_all(entry):
            return uri
        own = self.uris.listed_uris(entry.server).spelling(uri)
        return own if own is not None and scope.permits("resource", entry, own) else None

    def still_readable(self, entry: ScopeEntry, uri: str) -> bool:
        """True if a URI that was readable still is. While the server's list is not known, patterns alone
        decide.
        """
        if entry.key in self.unknown_pools:
            return self.scope.permits("resource", entry, uri)
        return self.readable_uri(entry, uri) == uri

    def agent_uri(self, key: PoolKey, uri: str) -> str:
        """Return `uri` from a server of this pool as the agents of this scope read it."""
        return self.uris.agent_uri(key, uri)

    def completion_target(
        self, ref: RawJson
    ) -> CompletionTarget | AmbiguousName | DeniedName | NoSuchName | UnroutableUri | BadReference:
        """Return the server that the `ref` of a `completion/complete` leads to (MCP 2025-11-25,
        server/utilities/completion).
        """
        match text_of(ref, "type"):
            case "ref/prompt":
                name = text_of(ref, "name")
                if name is None:
                    return BadReference("a ref/prompt has a name")
                prompt = self.resolve_prompt(name)
                if not isinstance(prompt, ViewPrompt):
                    return prompt
                own = prompt.prompt
                ref = ref if own == name else RawJson(change_members(ref, {"name": lambda _: quote(own)}))
                return CompletionTarget(prompt.key, prompt.server, ref)
            case "ref/resource":
                uri = text_of(ref, "uri")
                if uri is None:
                    return BadReference("a ref/resource has a uri")
                route = self.route_template(uri)
                if not isinstance(route, UriRoute):
                    return route
                entry = self.scope.entry_of(route.server)
                if entry is not None and not self.scope.permits_completion(entry, route.uri):
                    return DeniedName(route.server, route.uri, self.scope.profile)
                ref = (
                    ref
                    if route.uri == uri
                    else RawJson(change_members(ref, {"uri": lambda _: quote(route.uri)}))
                )
                return CompletionTarget(route.key, route.server, ref)
            case _:
                return BadReference("a ref is a ref/prompt or a ref/resource")


def _places_of(scope: Scope) -> dict[str, list[tuple[int, ScopeEntry]]]:
    """See `View._places`."""
    found: dict[str, list[tuple[int, ScopeEntry]]] = {}
    for place in enumerate(scope.servers):
        entry = place[1]
        found.setdefault(entry.server, []).append(place)
        if entry.prefix == "":
            found.setdefault("", []).append(place)
    return found
