"""How the view of a scope is made of what its servers told.

Owns: the order of lists (by server, then by own name or URI, both by code point: the same for every agent,
whatever order the configuration or the server uses, and after every restart); what a scope lets through;
what is announced; how instructions are merged. Names and URIs are given over all that a scope lets through,
hidden servers included, so that nothing changes its name because a server went away.

Invariant: where nothing changed, the new view holds the very parts of the former one.

Knows nothing of: who holds a view, who is told that it changed, how catalogs come in.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

from msgspec import Struct

from carpool_broker.core.model.pagination import (
    FAMILIES,
    Family,
    Listable,
    ListVersions,
    PageCuts,
    Paging,
    cut_pages,
    look_equal,
)
from carpool_broker.core.model.scope import Scope, ScopeEntry
from carpool_broker.core.registry.approvals import INSTRUCTIONS, HeldReason
from carpool_broker.core.registry.builtin_tools import BuiltinTool, builtin_tools
from carpool_broker.core.registry.merged_instructions import merge_instructions
from carpool_broker.core.registry.names import NameTable
from carpool_broker.core.registry.pool_catalog import PoolCatalog, ViewPrompt, ViewResource, ViewTool
from carpool_broker.core.registry.uris import ServerUris, UriTable
from carpool_broker.core.registry.view import NO_BUILTIN_TOOLS, View
from carpool_protocol.ids import PoolKey, RawJson, ServerName
from carpool_protocol.link.messages import Feature
from carpool_protocol.machine import slices
from carpool_protocol.wire.capabilities import ALL_FEATURES
from carpool_protocol.wire.tool_name_resolver import Tool
from carpool_protocol.wire.uri_normalization import cost_units, normalize

_URI_FAMILIES: Final[tuple[Family, ...]] = ("resources", "templates")
_RIGHT_UNITS: Final = 4
"""The cost to tell if a scope permits one offer. That of a URI depends on it, see `permitted_uris`."""
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
    names_stand: bool = False,
    paging: Paging,
    next_version: Callable[[], int],
) -> slices.Steps[View]:
    """Make the view of `scope`, in slices because it may have very many tools. `touched` has the families in
    which anything can differ from `former`. `names_stand`: the names and URIs of `former` still hold.
    """
    shelves = stock.shelves
    hidden = stock.hidden
    known = known_catalogs(scope, shelves)

    def versioned(
        family: Family,
        before: ListVersions[E] | None,
        entries: tuple[E, ...],
        cuts: PageCuts | None = None,
    ) -> ListVersions[E]:
        if before is None:
            return ListVersions.begin(family, paging, entries, next_version(), cuts)
        return before.with_same_entries(entries, cuts) or before.with_new_version(
            entries, next_version(), cuts
        )

    def listed(
        family: Family, before: ListVersions[K] | None, offered: Sequence[K]
    ) -> slices.Steps[ListVersions[K]]:
        there: list[K] = []
        for some in slices.batched(offered):
            there += [it for it in some if it.key not in hidden]
            yield len(some) // 8
        entries = tuple(there)
        cuts = yield from cut_pages(family, entries, paging)
        yield len(entries) // 8
        return versioned(family, before, entries, cuts)

    held: Mapping[Tool, HeldReason] = yield from held_tools(known, scope, stock)
    if former is not None and former.held_tools == held:
        held = former.held_tools
    standing = former if names_stand else None
    if former is None or "tools" in touched:
        own: Mapping[str, BuiltinTool]
        if standing is None:
            tool_names = yield from tool_table(scope, known, held)
            own = builtin_tools(tool_names.by_name, search=scope.search, resources=scope.resource_tools)
        else:
            tool_names, own = standing.tool_names, standing.builtin_tools
        yield len(tool_names.by_name) // 2
        there: list[ViewTool] = []
        for some in slices.batched(tuple(tool_names.by_name.values())):
            there += [
                it
                for it in some
                if (it.key not in hidden or it.key in stock.by_file) and (it.server, it.tool) not in held
            ]
            yield len(some) // 4
        tools = tuple(there if scope.search else (yield from limit_tools(scope, there)))
        left_out = len(there) - len(tools)
        if former is not None and former.tools == tools:
            tools = former.tools
        # Where tools are found and not listed, the list is the same whatever servers come and go.
        shown: tuple[ViewTool | BuiltinTool, ...] = (*own.values(), *(() if scope.search else tools))
        yield len(shown) // 2
        cuts = yield from cut_pages("tools", shown, paging)
        tool_list = versioned("tools", None if former is None else former.lists[0], shown, cuts)
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
        prompt_names = (yield from prompt_table(scope, known)) if standing is None else standing.prompt_names
        prompts = yield from listed(
            "prompts", None if former is None else former.lists[1], tuple(prompt_names.by_name.values())
        )
    else:
        prompt_names, prompts = former.prompt_names, former.lists[1]
    if former is None or touched & {"resources", "templates"}:
        permitted = yield from permitted_uris(scope, shelves)
        uris = (yield from uri_table(scope, shelves, permitted)) if standing is None else standing.uris
        shown_resources = yield from list_resources(known, permitted, uris)
        resources = yield from listed(
            "resources", None if former is None else former.lists[2], shown_resources
        )
        shown_templates = yield from list_templates(known, permitted, uris)
        templates = yield from listed(
            "templates", None if former is None else former.lists[3], shown_templates
        )
    else:
        uris, resources, templates = former.uris, former.lists[2], former.lists[3]
    keys = frozenset(entry.key for entry in scope.servers)
    untold = frozenset(it.key for it in scope.servers if it.pin and it.key in stock.hearsay)
    callable_tools = yield from find_callable_tools(tool_names, held, untold)
    return View(
        scope,
        lists=(tool_list, prompts, resources, templates),
        tools=tools,
        callable_tools=callable_tools,
        own=own or NO_BUILTIN_TOOLS,
        tool_names=tool_names,
        prompt_names=prompt_names,
        uris=uris,
        unknown=keys.difference(hidden, shelves),
        away=keys.intersection(hidden),
        hearsay=keys & stock.hearsay,
        held=held,
        untold=untold,
        instructions=scope_instructions(scope, known, hidden, held),
        features=scope_features(scope, stock),
        left_out=left_out,
    )


def known_catalogs(scope: Scope, shelves: Mapping[PoolKey, PoolCatalog]) -> KnownCatalogs:
    """See `KnownCatalogs`."""
    entries = sorted(scope.servers, key=lambda entry: entry.server)
    return [(it, shelves[it.key]) for it in entries if it.key in shelves]


def held_tools(
    known_catalogs: KnownCatalogs, scope: Scope, stock: ViewSources
) -> slices.Steps[dict[Tool, HeldReason]]:
    """Return the tools that the scope would let through and that are not approved; also instructions."""
    found: dict[Tool, HeldReason] = {}
    for entry, _ in known_catalogs:
        held = stock.held.get(entry.key) if entry.pin else None
        for some in slices.batched(tuple(held.items()) if held else ()):
            for name, why in some:
                if name == INSTRUCTIONS or scope.permits("tool", entry, name):
                    found[entry.server, name] = why
            yield _RIGHT_UNITS * len(some)
    return found


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
        for some in slices.batched(sorted(pool_catalog.offers["tools"])):
            for name in some:
                tool = (entry.server, name)
                through = scope.permits("tool", entry, name) and held.get(tool, "changed") == "changed"
                (allowed if through else denied).append(tool)
            yield _RIGHT_UNITS * len(some)
    by_server = {entry.server: (entry, pool_catalog) for entry, pool_catalog in known_catalogs}

    def make(tool: Tool, qualified: str) -> ViewTool:
        entry, pool_catalog = by_server[tool[0]]
        return pool_catalog.view_tool(entry, tool[1], qualified)

    return (yield from NameTable.build(scope, allowed, denied, make, tools=True))


def find_callable_tools(
    tool_names: NameTable[ViewTool], held: Mapping[Tool, HeldReason], untold: frozenset[PoolKey]
) -> slices.Steps[Mapping[str, ViewTool]]:
    """Return the tools that may be called by their qualified names: all but those that are held, and those of
    pinned servers that have not told their catalogs.
    """
    if not held and not untold:
        return tool_names.by_name
    found: dict[str, ViewTool] = {}
    for some in slices.batched(tuple(tool_names.by_name.items())):
        found.update(
            (name, tool)
            for name, tool in some
            if (tool.server, tool.tool) not in held and tool.key not in untold
        )
        yield len(some) // 2
    return found


def limit_tools(scope: Scope, tools: Sequence[ViewTool]) -> slices.Steps[Sequence[ViewTool]]:
    """Return the tools that `max_tools` of each server and of the scope leaves: the first ones
    of the list.
    """
    most = {entry.server: entry.max_tools for entry in scope.servers if entry.max_tools is not None}
    if not most:
        return tools[: scope.max_tools]
    seen: Counter[ServerName] = Counter()
    kept: list[ViewTool] = []
    for some in slices.batched(tools):
        for tool in some:
            seen[tool.server] += 1
            if seen[tool.server] <= most.get(tool.server, seen[tool.server]):
                kept.append(tool)
        yield len(some) // 2
    return kept[: scope.max_tools]


def prompt_table(scope: Scope, known_catalogs: KnownCatalogs) -> slices.Steps[NameTable[ViewPrompt]]:
    """Return the names of all prompts that are let through. They are formed as those of tools, in a name
    space of their own.
    """
    allowed: list[Tool] = []
    denied: list[Tool] = []
    for entry, pool_catalog in known_catalogs:
        for some in slices.batched(sorted(pool_catalog.offers["prompts"])):
            for name in some:
                (allowed if scope.permits("prompt", entry, name) else denied).append((entry.server, name))
            yield _RIGHT_UNITS * len(some)
    by_server = {entry.server: (entry, pool_catalog) for entry, pool_catalog in known_catalogs}

    def make(prompt: Tool, qualified: str) -> ViewPrompt:
        entry, pool_catalog = by_server[prompt[0]]
        return pool_catalog.view_prompt(entry, prompt[1], qualified)

    def units(prompt: ViewPrompt) -> int:
        return _rewrite_units(prompt.definition)

    return (yield from NameTable.build(scope, allowed, denied, make, tools=False, units=units))


def _rewrite_units(definition: RawJson) -> int:
    """The cost of putting another name or URI into a definition."""
    return 8 + len(definition) // 40


class PermittedUris(NamedTuple):
    """URIs or templates that one server lists, in the order of lists."""

    allowed: tuple[str, ...]
    denied: tuple[str, ...]
    """Those that the scope keeps back."""


_Permitted = Mapping[tuple[ServerName, Family], PermittedUris]


def permitted_uris(scope: Scope, shelves: Mapping[PoolKey, PoolCatalog]) -> slices.Steps[_Permitted]:
    """Return what each server lists and the scope lets through or keeps back."""
    found: dict[tuple[ServerName, Family], PermittedUris] = {}
    rules = len(scope.rights.allow) + len(scope.rights.deny)

    def permit(entry: ScopeEntry, allowed: list[str], denied: list[str], uri: str) -> int:
        (allowed if scope.permits("resource", entry, uri) else denied).append(uri)
        return _RIGHT_UNITS * (cost_units(uri) + rules)

    for entry in scope.servers:
        pool_catalog = shelves.get(entry.key)
        reads_all = pool_catalog is None or scope.reads_all(entry)
        for family in _URI_FAMILIES:
            offered = () if pool_catalog is None else tuple(sorted(pool_catalog.offers[family]))
            yield len(offered) // 4
            if reads_all:
                found[entry.server, family] = PermittedUris(offered, ())
                continue
            allowed: list[str] = []
            denied: list[str] = []
            yield from slices.handle_each(offered, partial(permit, entry, allowed, denied))
            found[entry.server, family] = PermittedUris(tuple(allowed), tuple(denied))
    return found


def uri_table(
    scope: Scope, shelves: Mapping[PoolKey, PoolCatalog], permitted: _Permitted
) -> slices.Steps[UriTable]:
    """Return the table of URIs that the scope lets through."""
    listed: list[ServerUris] = []
    for entry in sorted(scope.servers, key=lambda entry: entry.server):
        pool_catalog = shelves.get(entry.key)
        resources, templates = (permitted[entry.server, family] for family in _URI_FAMILIES)
        serves = pool_catalog is not None and pool_catalog.serves_resources
        listed.append(
            ServerUris(
                entry.server,
                entry.key,
                resources.allowed,
                templates.allowed,
                serves=serves and scope.may_permit("resource", entry),
                denied=(*resources.denied, *templates.denied),
                normal=normalize if pool_catalog is None else pool_catalog.normal_uri,
                reads_all=scope.reads_all(entry),
            )
        )
    return (yield from UriTable.build(listed))


def list_resources(
    known_catalogs: KnownCatalogs, permitted: _Permitted, uris: UriTable
) -> slices.Steps[list[ViewResource]]:
    """Return all resources that the scope lets through, as agents see them."""
    return _as_shown("resources", known_catalogs, permitted, uris.agent_uris)


def list_templates(
    known_catalogs: KnownCatalogs, permitted: _Permitted, uris: UriTable
) -> slices.Steps[list[ViewResource]]:
    """Return all resource templates that the scope lets through, as agents see them."""
    return _as_shown("templates", known_catalogs, permitted, uris.agent_templates)


def _as_shown(
    family: Family,
    known_catalogs: KnownCatalogs,
    permitted: _Permitted,
    rewritten: Mapping[tuple[ServerName, str], str],
) -> slices.Steps[list[ViewResource]]:
    found: list[ViewResource] = []

    def show(entry: ScopeEntry, pool_catalog: PoolCatalog, uri: str) -> int:
        shown = rewritten.get((entry.server, uri), uri)
        resource = pool_catalog.view_resource(family, entry, uri, shown)
        found.append(resource)
        return 2 if shown is uri else _rewrite_units(resource.definition)

    for it, pool_catalog in known_catalogs:
        uris = permitted[it.server, family].allowed
        yield from slices.handle_each(uris, partial(show, it, pool_catalog))
    return found


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
