"""What all servers offer, and the view of it for every scope in use.

Owns: the latest catalog of each pool, which pools are hidden (rule 18), what is shown of a pool that has not
told (the list of its `tools_file`, else what it told an earlier carpool), one view per retained scope, the
version. A view is replaced, never changed; sessions and pages keep the value they hold.

Invariants (`check`): a scope has a view exactly while somebody retains it; the view is what its catalogs
say; versions are unique and grow, and a change of one list leaves the versions of the others alone; a cursor
outlives `kept_versions` - 1 changes of its list, of a long list as many as `Paging` allows.

Knows nothing of: sessions (they hold scopes), why a pool is hidden, instances, the link, how a view is made
(`view_builder`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from carpool_broker.core.model.approval import PinId
from carpool_broker.core.model.effects import AnyEffect
from carpool_broker.core.model.pagination import (
    FAMILIES,
    MAX_KEPT_ENTRIES,
    MAX_KEPT_VERSIONS,
    PAGE_BYTES,
    PAGE_ENTRIES,
    Family,
    Paging,
)
from carpool_broker.core.model.scope import Scope
from carpool_broker.core.registry import view_builder
from carpool_broker.core.registry.approvals import Approvals, HeldReason, HeldTool
from carpool_broker.core.registry.pool_catalog import PoolCatalog
from carpool_broker.core.registry.uris import UriRoute
from carpool_broker.core.registry.view import HeldByPin, UnverifiedTool, View, ViewTool
from carpool_protocol.faults.fault_answers import InvariantBroken
from carpool_protocol.ids import EMPTY_OBJECT, PoolKey
from carpool_protocol.link.messages import Catalog, ToolOffer
from carpool_protocol.machine import slices

MAX_RESTARTED_DRAFTS: Final = 8
"""After this many views that other changes have made useless, the rest is made in one step."""

ChangedLists = dict[Scope, frozenset[Family]]
"""The scopes of which some list has changed, and which lists."""


class _ScopeUse(Struct):
    """A scope in use."""

    view: View
    holders: int = 0


class _DraftView(NamedTuple):
    """A view that is being made and is not in force."""

    moves: int
    former: View
    view: View


class Registry:
    """The catalogs of all pools and the views of all scopes in use. `mark` tells cursors of this broker from
    those of earlier ones.
    """

    def __init__(
        self,
        out: Callable[[AnyEffect], None],
        *,
        mark: str = "",
        page_entries: int = PAGE_ENTRIES,
        page_bytes: int = PAGE_BYTES,
        kept_versions: int = MAX_KEPT_VERSIONS,
        kept_entries: int = MAX_KEPT_ENTRIES,
    ) -> None:
        self._paging = Paging(mark, page_entries, page_bytes, kept_versions, kept_entries)
        self._version = 0
        self._pool_catalogs: dict[PoolKey, PoolCatalog] = {}
        """The catalogs that pools have told."""
        self._cached_catalogs: dict[PoolKey, PoolCatalog] = {}
        """The catalogs that pools told an earlier carpool."""
        self._hidden_pools: set[PoolKey] = set()
        self.approvals = Approvals(out)
        self._moves = 0
        """Counts changes that make other views: a view that was begun before is made again."""
        self._scope_uses: dict[Scope, _ScopeUse] = {}
        self._scopes_of: dict[PoolKey, dict[Scope, None]] = {}

    # --- what is offered ---------------------------------------------------------------------------------

    def catalog_received(self, catalog: Catalog) -> ChangedLists:
        """A pool told its catalog. Returns the scopes whose lists changed. The same offers in another order
        change nothing. Neither does a first catalog without any offers, though the pool is then no longer in
        `unknown_pools` of the views: a request that waits for it looks at the view after every catalog.
        """
        return slices.run_all_slices(self.apply_in_slices([catalog]))

    def apply_in_slices(self, catalogs: Sequence[Catalog]) -> slices.Steps[ChangedLists]:
        """Do the same in slices, with the catalogs of several pools. Each view is made once for all of them.
        Until the last slice every view stays as it was, except for other changes meanwhile.
        """
        made: dict[PoolKey, PoolCatalog] = {}
        touched: frozenset[Family] = frozenset()
        for catalog in catalogs:
            key = catalog.key
            former = self._pool_catalogs.get(key)
            if former is not None and former.catalog == catalog:
                continue
            pool_catalog = made[key] = yield from PoolCatalog.build(catalog)
            for pin in self._pins_of(key) if self.approvals.approved else ():
                yield from self.approvals.catalog_received(pin, pool_catalog.pinned)
            shown = former or self._cached_catalogs.get(key)
            touched |= (
                view_builder.ALL_FAMILIES if shown is None else (yield from pool_catalog.reuse_from(shown))
            )
        if not made:
            return {}
        drafts = yield from self._draft_views(made, touched)
        self._pool_catalogs.update(made)
        self._moves += 1
        changed: ChangedLists = {}
        for scope, draft in drafts.items():
            self._replace_view(scope, draft.view, changed)
        return changed

    def _draft_views(
        self, made: Mapping[PoolKey, PoolCatalog], touched: frozenset[Family]
    ) -> slices.Steps[dict[Scope, _DraftView]]:
        """Make the views of all scopes with these pools, as they are with these catalogs."""
        drafts: dict[Scope, _DraftView] = {}
        spoilt = 0
        while True:
            scopes = self._scopes_with(made)
            stale = [scope for scope in scopes if not self._is_current(drafts, scope)]
            if not stale:
                return {scope: drafts[scope] for scope in scopes}
            merged, merged_at = self._pool_catalogs, -1
            for scope in stale:
                if merged_at != self._moves:
                    merged, merged_at = {**self._pool_catalogs, **made}, self._moves
                if scope not in self._scope_uses:  # nobody retains it any more
                    continue
                spoilt += scope in drafts
                begun, seen = self._moves, self._scope_uses[scope].view
                is_first = not spoilt and all(scope.offline_tools(key) is None for key in made)
                making = view_builder.make_view(
                    scope,
                    (yield from self._view_builder(scope, merged)),
                    seen,
                    touched=touched if is_first else view_builder.ALL_FAMILIES,
                    paging=self._paging,
                    next_version=self._next_version,
                )
                view = slices.run_all_slices(making) if spoilt > MAX_RESTARTED_DRAFTS else (yield from making)
                drafts[scope] = _DraftView(begun, seen, view)

    def _scopes_with(self, keys: Iterable[PoolKey]) -> list[Scope]:
        """Return the retained scopes with any of these pools."""
        return list(dict.fromkeys(scope for key in keys for scope in self._scopes_of.get(key, ())))

    def _is_current(self, drafts: Mapping[Scope, _DraftView], scope: Scope) -> bool:
        draft = drafts.get(scope)
        return (
            draft is not None and draft.moves == self._moves and draft.former is self._scope_uses[scope].view
        )

    def set_cached_catalogs(self, kept: Mapping[PoolKey, Catalog]) -> ChangedLists:
        """Set the catalogs of an earlier carpool, complete each time. Returns the same as
        `catalog_received`.
        """
        former = self._cached_catalogs
        self._moves += 1
        self._cached_catalogs = {}
        for key, catalog in kept.items():
            before = former.get(key)
            same = before is not None and before.catalog == catalog
            self._cached_catalogs[key] = before if before is not None and same else _taken_over(catalog)
        return self._rebuild_views(
            [
                key
                for key in sorted(former.keys() | self._cached_catalogs.keys())
                if former.get(key) is not self._cached_catalogs.get(key) and key not in self._pool_catalogs
            ]
        )

    def forget_pool(self, key: PoolKey) -> ChangedLists:
        """Forget a pool that is no longer wanted. Returns the same as `catalog_received`."""
        self._moves += 1
        self._hidden_pools.discard(key)
        self._pool_catalogs.pop(key, None)
        return self._rebuild_views([key])

    def hide_pool(self, key: PoolKey) -> ChangedLists:
        """Hide a pool that gave up, is stopped or disabled: its offers leave every list. Returns the same as
        `catalog_received`.
        """
        if key in self._hidden_pools:
            return {}
        self._moves += 1
        self._hidden_pools.add(key)
        return self._visibility_changed(key)

    def show_pool(self, key: PoolKey) -> ChangedLists:
        """Show a pool again that serves: its offers, as last known, return. Returns the same as
        `catalog_received`.
        """
        if key not in self._hidden_pools:
            return {}
        self._moves += 1
        self._hidden_pools.remove(key)
        return self._visibility_changed(key)

    def _visibility_changed(self, key: PoolKey) -> ChangedLists:
        """Make the views with a pool that is hidden or shown now. No name changes, unless the tools of the
        pool come from a file while it is hidden.
        """
        changed: ChangedLists = {}
        for scope in self._scopes_of.get(key, ()):
            self._rebuild_view(scope, changed, names_stand=scope.offline_tools(key) is None)
        return changed

    def told_catalog(self, key: PoolKey) -> Catalog | None:
        """Return the last catalog of the pool, hidden or not; None if it never told one."""
        pool_catalog = self._pool_catalogs.get(key)
        return None if pool_catalog is None else pool_catalog.catalog

    def known_catalog(self, key: PoolKey) -> Catalog | None:
        """Return the same, or else the catalog that it told an earlier carpool."""
        pool_catalog = self._last_catalog(key)
        return None if pool_catalog is None else pool_catalog.catalog

    def _last_catalog(self, key: PoolKey) -> PoolCatalog | None:
        """Return the catalog that the pool told last, also to an earlier carpool."""
        return self._pool_catalogs.get(key) or self._cached_catalogs.get(key)

    # --- what of it is approved ------------------------------------------------------------------------

    def _pins_of(self, key: PoolKey) -> set[PinId]:
        entries = [entry for scope in self._scopes_of.get(key, ()) for entry in scope.servers]
        return {entry.pin for entry in entries if entry.pin and entry.key == key}

    def pinned_servers(self) -> dict[PinId, list[PoolKey]]:
        """Return the pinned servers of retained scopes, and their pools."""
        found: dict[PinId, list[PoolKey]] = {}
        for key in sorted(self._scopes_of):
            for pin in sorted(self._pins_of(key)):
                found.setdefault(pin, []).append(key)
        return found

    def approve_unmet(self) -> None:
        """A source was read: approve the tools of servers that had told them before they were pinned."""
        self._moves += bool(self.approvals.approved)
        if None in self.approvals.approved.values():
            for pin, keys in self.pinned_servers().items():
                for key in keys:
                    if key in self._pool_catalogs:
                        met = self.approvals.catalog_received(pin, self._pool_catalogs[key].pinned)
                        slices.run_all_slices(met)

    def held_tools(self, pin: PinId) -> list[HeldTool]:
        """Return what is held of this pinned server, in all its pools; of tools with one name the first."""
        found: dict[str, HeldTool] = {}
        for key in self.pinned_servers().get(pin, ()):
            pool_catalog = self._last_catalog(key)
            for each in self.approvals.held_definitions(
                pin, pool_catalog.pinned if pool_catalog is not None else {}
            ):
                found.setdefault(each.tool, each)
        return [found[tool] for tool in sorted(found)]

    def approve(self, pin: PinId, wanted: Mapping[str, str]) -> ChangedLists:
        """Approve tools, see `Approvals.approve_tools`. Returns the same as `catalog_received`."""
        keys = self.pinned_servers().get(pin, [])
        self._moves += 1
        shelves = map(self._last_catalog, keys)
        self.approvals.approve_tools(
            pin, [pool_catalog.pinned for pool_catalog in shelves if pool_catalog is not None], wanted
        )
        return self._rebuild_views(keys, frozenset({"tools"}))

    # --- who looks ---------------------------------------------------------------------------------------

    def retain_scope(self, scope: Scope) -> View:
        """Retain a scope for one more session. Each `retain_scope` needs one `release_scope`."""
        seen = self._scope_uses.get(scope)
        if seen is None:
            keys = {entry.key for entry in scope.servers}
            if len({entry.server for entry in scope.servers}) < len(scope.servers):
                raise InvariantBroken("a scope names a server twice")
            seen = self._scope_uses[scope] = _ScopeUse(self._build_view(scope, None))
            for key in keys:
                self._scopes_of.setdefault(key, {})[scope] = None
        seen.holders += 1
        return seen.view

    def release_scope(self, scope: Scope) -> None:
        """Release a scope. With the last session its view goes."""
        seen = self._scope_uses.get(scope)
        if seen is None:
            raise InvariantBroken("a scope was released more often than retained")
        seen.holders -= 1
        if seen.holders:
            return
        del self._scope_uses[scope]
        for key in {entry.key for entry in scope.servers}:
            del self._scopes_of[key][scope]
            if not self._scopes_of[key]:
                del self._scopes_of[key]

    def view(self, scope: Scope) -> View:
        """Return what a retained scope sees now. This is cheap, because every call of every
        agent needs it.
        """
        seen = self._scope_uses.get(scope)
        if seen is None:
            raise InvariantBroken("a scope is looked through that nobody retains")
        return seen.view

    # --- views -------------------------------------------------------------------------------------------

    def _rebuild_views(
        self, keys: Iterable[PoolKey], touched: frozenset[Family] = view_builder.ALL_FAMILIES
    ) -> ChangedLists:
        """Make each view with any of these pools again."""
        changed: ChangedLists = {}
        for scope in self._scopes_with(keys):
            self._rebuild_view(scope, changed, touched)
        return changed

    def _rebuild_view(
        self,
        scope: Scope,
        changed: ChangedLists,
        touched: frozenset[Family] = view_builder.ALL_FAMILIES,
        *,
        names_stand: bool = False,
    ) -> None:
        former = self._scope_uses[scope].view
        self._replace_view(scope, self._build_view(scope, former, touched, names_stand=names_stand), changed)

    def _replace_view(self, scope: Scope, view: View, changed: ChangedLists) -> None:
        """Put this view in force, and note which lists changed."""
        seen = self._scope_uses[scope]
        former, seen.view = seen.view, view
        others = frozenset(f for f in FAMILIES if view.version(f) != former.version(f))
        if others:
            changed[scope] = others

    def _view_builder(
        self, scope: Scope, own: Mapping[PoolKey, PoolCatalog] | None = None
    ) -> slices.Steps[view_builder.ViewSources]:
        """Return the sources of a view. The pool's own catalog counts, unless the pool is away and a file
        lists its tools. `builtin_tools` replaces what the pools have told.
        """
        own = self._pool_catalogs if own is None else own
        if not self._cached_catalogs and all(
            entry.offline is None and not entry.pin for entry in scope.servers
        ):
            return view_builder.ViewSources(own, self._hidden_pools)
        held: dict[PoolKey, Mapping[str, HeldReason]] = {}
        shelves: dict[PoolKey, PoolCatalog] = {}
        by_file: set[PoolKey] = set()
        hearsay: set[PoolKey] = set()
        for entry in scope.servers:
            key = entry.key
            told = own.get(key)
            pool_catalog = told or self._cached_catalogs.get(key)
            if entry.pin and pool_catalog is not None:
                offers = pool_catalog.pinned
                held[key] = yield from self.approvals.held_tools(entry.pin, offers, pool_catalog.digests)
            if entry.offline is not None and (told is None or key in self._hidden_pools):
                pool_catalog = _from_tools_file(entry.key, entry.offline, pool_catalog)
                by_file.add(key)
            if pool_catalog is not None:
                shelves[key] = pool_catalog
                if told is None:
                    hearsay.add(key)
        return view_builder.ViewSources(
            shelves, self._hidden_pools, frozenset(hearsay), frozenset(by_file), held
        )

    def _build_view(
        self,
        scope: Scope,
        former: View | None,
        touched: frozenset[Family] = view_builder.ALL_FAMILIES,
        *,
        names_stand: bool = False,
    ) -> View:
        making = view_builder.make_view(
            scope,
            slices.run_all_slices(self._view_builder(scope)),
            former,
            touched=touched,
            names_stand=names_stand,
            paging=self._paging,
            next_version=self._next_version,
        )
        return slices.run_all_slices(making)

    def _next_version(self) -> int:
        self._version += 1
        return self._version

    # --- for tests and CARPOOL_CHECK ---------------------------------------------------------------------

    def check(self) -> None:
        """Assert every invariant of the module."""
        versions: set[int] = set()
        index: dict[PoolKey, dict[Scope, None]] = {}
        for scope, seen in self._scope_uses.items():
            assert seen.holders > 0, "a scope is kept that nobody retains"
            for entry in scope.servers:
                index.setdefault(entry.key, {})[scope] = None
            view = seen.view
            assert view.scope == scope
            keys = {entry.key for entry in scope.servers}
            assert view.hidden_pools == keys & self._hidden_pools
            stock = slices.run_all_slices(self._view_builder(scope))
            assert view.unknown_pools == keys - self._hidden_pools - stock.shelves.keys()
            assert view.unconfirmed == keys & stock.shelves.keys() - self._pool_catalogs.keys()
            self._check_lists(view, stock)
            for history in view.lists:
                history.check(self._paging.kept_versions)
                for listing in history.listings:
                    assert listing.version not in versions, "two lists share a version"
                    assert listing.version <= self._version
                    versions.add(listing.version)
        assert index.keys() == self._scopes_of.keys()
        assert all(index[key].keys() == self._scopes_of[key].keys() for key in index)

    def _check_lists(self, view: View, stock: view_builder.ViewSources) -> None:
        """Assert that the lists are what the catalogs say, and that each entry can be resolved."""
        making = view_builder.make_view(
            view.scope,
            stock,
            None,
            touched=view_builder.ALL_FAMILIES,
            paging=self._paging,
            next_version=lambda: 0,
        )
        afresh = slices.run_all_slices(making)
        assert view.tools == afresh.tools, "a stale list"
        assert view.lists[0].present.entries == afresh.lists[0].present.entries, "a stale list"
        assert view.builtin_tools == afresh.builtin_tools
        assert not view.builtin_tools.keys() & view.tool_names.by_name.keys(), "a name of ours is a server's"
        assert view.prompts == afresh.prompts, "a stale list"
        assert view.resources == afresh.resources, "a stale list"
        assert view.templates == afresh.templates, "a stale list"
        assert view.tool_names.by_name == afresh.tool_names.by_name
        assert view.prompt_names.by_name == afresh.prompt_names.by_name
        assert view.instructions == afresh.instructions
        assert view.dropped_tools == afresh.dropped_tools
        assert view.capabilities() == afresh.capabilities()
        assert view.held_tools == afresh.held_tools
        for tool in view.tools:
            found = view.resolve(tool.qualified)
            assert isinstance(found, ViewTool), "a listed name leads nowhere"
            assert (found.key, found.tool) == (tool.key, tool.tool), "a listed name leads elsewhere"
        for name, tool in view.tool_names.by_name.items():
            found = view.resolve(name)
            if not isinstance(found, UnverifiedTool):  # what it says itself may be what was approved
                is_held = (tool.server, tool.tool) in view.held_tools
                assert isinstance(found, HeldByPin) == is_held, "a tool is held, and is not"
        assert all(view.resolve_prompt(name) == it for name, it in view.prompt_names.by_name.items())
        for resource in view.resources:
            there = view.uris.route(resource.shown)
            assert isinstance(there, UriRoute), "a listed URI leads nowhere"
            assert (there.key, there.uri) == (resource.key, resource.uri), "a listed URI leads elsewhere"
        assert len({it.shown for it in view.resources}) == len(view.resources), "a URI is listed twice"
        assert len({it.shown for it in view.templates}) == len(view.templates), "a template is listed twice"


def _from_tools_file(key: PoolKey, tools: tuple[ToolOffer, ...], known: PoolCatalog | None) -> PoolCatalog:
    """Return the tools that the server's `tools_file` lists, beside what is known of it otherwise."""
    if known is None:
        return _taken_over(Catalog(key, list(tools), "", EMPTY_OBJECT, EMPTY_OBJECT, ""))
    return _taken_over(replace(known.catalog, tools=list(tools)))


def _taken_over(catalog: Catalog) -> PoolCatalog:
    """Take over a catalog that comes from a file, in one step."""
    return slices.run_all_slices(PoolCatalog.build(catalog))
