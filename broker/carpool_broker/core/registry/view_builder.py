"""How the view of a scope is made of what its servers told.

Owns: the order of lists (by server, then by own name or URI, both by code point: the same for every agent,
whatever order the configuration or the server uses, and after every restart); what a scope lets through;
what is announced; how instructions are merged. Names and URIs are given over all that a scope lets through,
hidden servers included, so that nothing changes its name because a server went away.

Invariant: where nothing changed, the new view holds the very parts of the former one.

Knows nothing of: who holds a view, who is told that it changed, how catalogs come in.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from typing import Final, Protocol, TypeVar

from msgspec import Struct

from carpool_broker.core.model.pagination import (
    FAMILIES,
    Family,
    Listable,
    ListVersions,
    Paging,
    look_equal,
    page_starts,
)
from carpool_broker.core.model.scope import Scope, ScopeEntry
from carpool_broker.core.registry.approvals import INSTRUCTIONS, HeldReason
from carpool_broker.core.registry.builtin_tools import BuiltinTool, builtin_tools
from carpool_broker.core.registry.merged_instructions import merge_instructions
from carpool_broker.core.registry.names import NameTable
from carpool_broker.core.registry.pool_catalog import PoolCatalog, ViewPrompt, ViewResource, ViewTool
from carpool_broker.core.registry.uris import ServerUris, UriTable
from carpool_broker.core.registry.view import NO_BUILTIN_TOOLS, View
from carpool_protocol.ids import PoolKey, ServerName
from carpool_protocol.link.messages import Feature
from carpool_protocol.machine import slices
from carpool_protocol.wire.capabilities import ALL_FEATURES
from carpool_protocol.wire.tool_name_resolver import Tool

_URI_FAMILIES: Final[tuple[Family, ...]] = ("resources", "templates")
ALL_FAMILIES: Final = frozenset(FAMILIES)

_LIST_CHANGED: Final[dict[Feature, Feature]] = {
    "tools": "tools.listChanged",
    "prompts": "prompts.listChanged",
    "resources": "resources.listChanged",
}
_OFFERED_AS: Final[dict[Family, Feature]] = {
    "tools": "tools",
    "prompts": "prompts",
    "resources": "resources",
    "templates": "resources",
}


class _PoolItem(Listable, Protocol):
    """An item of a view, which knows the server that it is from."""

    @property
    def key(self) -> PoolKey:
        """The pool that serves it."""


E = TypeVar("E", bound=Listable)
K = TypeVar("K", bound=_PoolItem)


class ViewSources(Struct, frozen=True):
    """What the servers of a scope offer, from whatever source that is known."""

    shelves: Mapping[PoolKey, PoolCatalog]
    hidden: Collection[PoolKey] = frozenset()
    """The pools that are away."""
    hearsay: frozenset[PoolKey] = frozenset()
    """The pools whose offers are not from the servers themselves."""
    by_file: frozenset[PoolKey] = frozenset()
    """The pools whose tools come from a `tools_file`. They are listed also while the pool is away."""
    held: Mapping[PoolKey, Mapping[str, HeldReason]] = {}
    """The tools that are not approved, by their own names."""


KnownCatalogs = list[tuple[ScopeEntry, PoolCatalog]]
"""The servers of a scope that told their catalogs, hidden or not, in the order of lists."""


def make_view(
    scope: Scope,
    stock: ViewSources,
    former: View | None,
    *,
    touched: frozenset[Family],
    paging: Paging,
    next_version: Callable[[], int],
) -> slices.Steps[View]:
    """Make the view of `scope`, in slices because it may have very many tools. `touched` has the families in
    which anything can differ from `former`.
    """
    shelves = stock.shelves
    hidden = stock.hidden
    known = known_catalogs(scope, shelves)

    def versioned(
        family: Family,
        before: ListVersions[E] | None,
        entries: tuple[E, ...],
        starts: tuple[int, ...] | None = None,
    ) -> ListVersions[E]:
        if before is None:
            return ListVersions.begin(family, paging, entries, next_version(), starts)
        return before.with_same_entries(entries, starts) or before.with_new_version(
            entries, next_version(), starts
        )

    def listed(family: Family, before: ListVersions[K] | None, offered: Iterable[K]) -> ListVersions[K]:
        return versioned(family, before, tuple(it for it in offered if it.key not in hidden))

    held: Mapping[Tool, HeldReason] = held_tools(known, scope, stock)
    if former is not None and former.held_tools == held:
        held = former.held_tools
    if former is None or "tools" in touched:
        tool_names = yield from tool_table(scope, known, held)
        own: Mapping[str, BuiltinTool] = builtin_tools(
            tool_names.by_name, search=scope.search, resources=scope.resource_tools
        )
        yield len(tool_names.by_name) // 2
        there = [
            it
            for it in tool_names.by_name.values()
            if (it.key not in hidden or it.key in stock.by_file) and (it.server, it.tool) not in held
        ]
        tools = tuple(there if scope.search else limit_tools(scope, there))
        left_out = len(there) - len(tools)
        if former is not None and former.tools == tools:
            tools = former.tools
        # Where tools are found and not listed, the list is the same whatever servers come and go.
        shown: tuple[ViewTool | BuiltinTool, ...] = (*own.values(), *(() if scope.search else tools))
        yield len(shown) // 2
        starts = yield from page_starts("tools", shown, paging)
        tool_list = versioned("tools", None if former is None else former.lists[0], shown, starts)
        yield len(shown) // 2
    else:
        tool_names, tools, own, tool_list = (
            former.tool_names,
            former.tools,
            former.builtin_tools,
            former.lists[0],
        )
        left_out = former.dropped_tools
    if former is None or "prompts" in touched:
        prompt_names = yield from prompt_table(scope, known)
        prompts = listed(
            "prompts", None if former is None else former.lists[1], prompt_names.by_name.values()
        )
    else:
        prompt_names, prompts = former.prompt_names, former.lists[1]
    if former is None or touched & {"resources", "templates"}:
        uris = uri_table(scope, shelves)
        resources = listed(
            "resources", None if former is None else former.lists[2], list_resources(scope, known, uris)
        )
        templates = listed(
            "templates", None if former is None else former.lists[3], list_templates(scope, known, uris)
        )
    else:
        uris, resources, templates = former.uris, former.lists[2], former.lists[3]
    keys = frozenset(entry.key for entry in scope.servers)
    return View(
        scope,
        lists=(tool_list, prompts, resources, templates),
        tools=tools,
        own=own or NO_BUILTIN_TOOLS,
        tool_names=tool_names,
        prompt_names=prompt_names,
        uris=uris,
        unknown=keys.difference(hidden, shelves),
        away=keys.intersection(hidden),
        hearsay=keys & stock.hearsay,
        held=held,
        untold=frozenset(it.key for it in scope.servers if it.pin and it.key in stock.hearsay),
        instructions=scope_instructions(scope, known, hidden, held),
        features=scope_features(scope, stock),
        left_out=left_out,
    )


def known_catalogs(scope: Scope, shelves: Mapping[PoolKey, PoolCatalog]) -> KnownCatalogs:
    """See `KnownCatalogs`."""
    entries = sorted(scope.servers, key=lambda entry: entry.server)
    return [(it, shelves[it.key]) for it in entries if it.key in shelves]


def held_tools(known_catalogs: KnownCatalogs, scope: Scope, stock: ViewSources) -> dict[Tool, HeldReason]:
    """Return the tools that the scope would let through and that are not approved; also instructions."""
    if not stock.held:
        return {}
    return {
        (entry.server, name): why
        for entry, _ in known_catalogs
        if entry.pin
        for name, why in stock.held.get(entry.key, {}).items()
        if name == INSTRUCTIONS or scope.permits("tool", entry, name)
    }


def tool_table(
    scope: Scope, known_catalogs: KnownCatalogs, held: Mapping[Tool, HeldReason]
) -> slices.Steps[NameTable[ViewTool]]:
    """Return the names of all tools that the scope lets through. A held tool keeps its name if it was
    approved once, so that no other tool gets that name. A new tool gets a name when it is approved.
    """
    allowed: list[Tool] = []
    denied: list[Tool] = []
    for entry, pool_catalog in known_catalogs:
        if not held and entry.allows_all and scope.rights.are_all:  # nobody waits for a look at each
            allowed += [(entry.server, name) for name in sorted(pool_catalog.offers["tools"])]
            yield len(pool_catalog.offers["tools"]) // 2
            continue
        for at, name in enumerate(sorted(pool_catalog.offers["tools"]), 1):
            if not at % slices.STEP_ENTRIES:
                yield 4 * slices.STEP_ENTRIES
            tool = (entry.server, name)
            through = scope.permits("tool", entry, name) and held.get(tool, "changed") == "changed"
            (allowed if through else denied).append(tool)
    by_server = {entry.server: (entry, pool_catalog) for entry, pool_catalog in known_catalogs}

    def make(tool: Tool, qualified: str) -> ViewTool:
        entry, pool_catalog = by_server[tool[0]]
        return pool_catalog.view_tool(entry, tool[1], qualified)

    return (yield from NameTable.build(scope, allowed, denied, make, tools=True))


def limit_tools(scope: Scope, tools: Iterable[ViewTool]) -> Iterable[ViewTool]:
    """Return the tools that `max_tools` of each server and of the scope leaves: the first ones
    of the list.
    """
    most = {entry.server: entry.max_tools for entry in scope.servers if entry.max_tools is not None}
    if not most:
        return tools if scope.max_tools is None else islice(tools, scope.max_tools)
    seen: Counter[ServerName] = Counter()
    kept: list[ViewTool] = []
    for tool in tools:
        seen[tool.server] += 1
        if seen[tool.server] <= most.get(tool.server, seen[tool.server]):
            kept.append(tool)
    return kept[: scope.max_tools]


def prompt_table(scope: Scope, known_catalogs: KnownCatalogs) -> slices.Steps[NameTable[ViewPrompt]]:
    """Return the names of all prompts that are let through. They are formed as those of tools, in a name
    space of their own.
    """
    allowed: list[Tool] = []
    denied: list[Tool] = []
    for entry, pool_catalog in known_catalogs:
        for name in sorted(pool_catalog.offers["prompts"]):
            (allowed if scope.permits("prompt", entry, name) else denied).append((entry.server, name))
    by_server = {entry.server: (entry, pool_catalog) for entry, pool_catalog in known_catalogs}

    def make(prompt: Tool, qualified: str) -> ViewPrompt:
        entry, pool_catalog = by_server[prompt[0]]
        return pool_catalog.view_prompt(entry, prompt[1], qualified)

    return (yield from NameTable.build(scope, allowed, denied, make, tools=False))


def uri_table(scope: Scope, shelves: Mapping[PoolKey, PoolCatalog]) -> UriTable:
    """Return the table of URIs that the scope lets through."""
    return UriTable(
        [
            ServerUris(
                entry.server,
                entry.key,
                _permitted_uris(scope, entry, pool_catalog, "resources"),
                _permitted_uris(scope, entry, pool_catalog, "templates"),
                serves=pool_catalog is not None
                and pool_catalog.serves_resources
                and scope.may_permit("resource", entry),
                denied=tuple(
                    uri
                    for it in _URI_FAMILIES
                    for uri in _permitted_uris(scope, entry, pool_catalog, it, denied=True)
                ),
            )
            for entry in sorted(scope.servers, key=lambda entry: entry.server)
            for pool_catalog in (shelves.get(entry.key),)
        ]
    )


def list_resources(scope: Scope, known_catalogs: KnownCatalogs, uris: UriTable) -> list[ViewResource]:
    """Return all resources that the scope lets through, as agents see them."""
    shown = uris.agent_uris
    return [
        pool_catalog.view_resource("resources", it, uri, shown.get((it.server, uri), uri))
        for it, pool_catalog in known_catalogs
        for uri in _permitted_uris(scope, it, pool_catalog, "resources")
    ]


def list_templates(scope: Scope, known_catalogs: KnownCatalogs, uris: UriTable) -> list[ViewResource]:
    """Return all resource templates that the scope lets through, as agents see them."""
    shown = uris.agent_templates
    return [
        pool_catalog.view_resource("templates", it, template, shown.get((it.server, template), template))
        for it, pool_catalog in known_catalogs
        for template in _permitted_uris(scope, it, pool_catalog, "templates")
    ]


def _permitted_uris(
    scope: Scope, entry: ScopeEntry, pool_catalog: PoolCatalog | None, family: Family, *, denied: bool = False
) -> tuple[str, ...]:
    """Return what the server lists and the scope lets through or keeps back, in the order of lists."""
    if pool_catalog is None or (denied and scope.rights.are_all):
        return ()
    offered = sorted(pool_catalog.offers[family])
    if scope.rights.are_all:
        return tuple(offered)
    return tuple(uri for uri in offered if scope.permits("resource", entry, uri) is not denied)


def scope_features(scope: Scope, stock: ViewSources) -> frozenset[Feature]:
    """Return the features to announce to agents of a scope, see `View.capabilities`. Lists change whenever a
    server comes or goes, so `listChanged` goes with every family. A scope without servers announces lists
    too, because a server may be configured at any time.
    """
    found: set[Feature] = set() if scope.servers else set(ALL_FEATURES)
    if scope.search or scope.resource_tools:
        found.add("tools")
    for entry in scope.servers:
        pool_catalog = stock.shelves.get(entry.key)
        if pool_catalog is None or entry.key in stock.by_file:
            found |= ALL_FEATURES
        if pool_catalog is not None:
            found.update(pool_catalog.catalog.features)
            found.update(_OFFERED_AS[family] for family in FAMILIES if pool_catalog.offers[family])
    found.update(changed for family, changed in _LIST_CHANGED.items() if family in found)
    return frozenset(found)


def scope_instructions(
    scope: Scope, known_catalogs: KnownCatalogs, hidden: Collection[PoolKey], held: Collection[Tool] = ()
) -> str:
    """Return the merged instructions of the servers that are not hidden, without those that are not
    approved.
    """
    told = {
        entry.server: pool_catalog.catalog.instructions
        for entry, pool_catalog in known_catalogs
        if entry.key not in hidden
        and (entry.server, INSTRUCTIONS) not in held
        and pool_catalog.catalog.instructions.strip()
    }
    if len(scope.servers) == 1:  # one server exposed as itself is passed on word for word
        return "".join(told.values())
    return merge_instructions(told)


def changed_families(one: View, other: View) -> frozenset[Family]:
    """Return the families whose lists differ for agents between the two views."""
    return frozenset(each for each in FAMILIES if not look_equal(one.entries(each), other.entries(each)))
