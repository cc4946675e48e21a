"""What all servers offer, and the view of it for every scope in use.

Owns: the latest catalog of each pool, which pools are hidden (rule 18), what is shown of a pool that has not
told (the list of its `tools_file`, else what it told an earlier carpool), one view per retained scope, the
version. A view is replaced, never changed; sessions and pages keep the value they hold.

Invariants (`check`): a scope has a view exactly while somebody retains it; the view is what its catalogs
say; versions are unique and grow, and a change of one list leaves the versions of the others alone; a cursor
outlives `kept_versions` - 1 changes of its list.

Knows nothing of: sessions (they hold scopes), why a pool is hidden, instances, the link, how a view is made
(`view_builder`).
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from carpool_broker.core.model.approval import PinId
from carpool_broker.core.model.pagination import (
    FAMILIES,
    KEPT_VERSIONS,
    PAGE_BYTES,
    PAGE_ENTRIES,
    Family,
    Paging,
)
from carpool_broker.core.model.scope import Scope
from carpool_broker.core.registry import view_builder
from carpool_broker.core.registry.approvals import HeldTool, Pins, Why
from carpool_broker.core.registry.pool_catalog import Shelf
from carpool_broker.core.registry.uris import Route
from carpool_broker.core.registry.view import Held, UnverifiedTool, View, ViewTool
from carpool_protocol.faults.faults import InvariantBroken
from carpool_protocol.ids import EMPTY_OBJECT, PoolKey, RawJson
from carpool_protocol.link.messages import Catalog, ToolOffer
from carpool_protocol.machine import slices

MAX_SPOILT: Final = 8
"""After so many views that other changes have spoilt the rest is made in one step."""

Changes = dict[Scope, frozenset[Family]]
"""The scopes of which some list is another one now, and which lists."""


class _Seen(Struct):
    """A scope in use."""

    view: View
    holders: int = 0


class _Drafted(NamedTuple):
    """A view that is made and not in force."""

    moves: int
    former: View
    view: View


class Registry:
    """See the module. `mark` tells cursors of this life of the broker from those of earlier ones."""

    def __init__(
        self,
        *,
        mark: str = "",
        page_entries: int = PAGE_ENTRIES,
        page_bytes: int = PAGE_BYTES,
        kept_versions: int = KEPT_VERSIONS,
    ) -> None:
        self._paging = Paging(mark, page_entries, page_bytes, kept_versions)
        self._version = 0
        self._shelves: dict[PoolKey, Shelf] = {}
        """Told by the pools themselves."""
        self._kept: dict[PoolKey, Shelf] = {}
        """Told to an earlier carpool."""
        self._hidden: set[PoolKey] = set()
        self.pins = Pins()
        self._moves = 0
        """Counts what makes other views: one that was begun before is made again."""
        self._scopes: dict[Scope, _Seen] = {}
        self._scopes_of: dict[PoolKey, dict[Scope, None]] = {}

    # --- what is offered ---------------------------------------------------------------------------------

    def learn(self, catalog: Catalog) -> Changes:
        """A pool told what it offers. Returns the scopes whose lists changed.

        The same offers in another order change nothing. Neither does a first catalog without any,
        though the pool is no longer `unknown` in the views then: whoever waits for it looks at the view
        after every catalog.
        """
        return slices.whole(self.learning(catalog))

    def learning(self, catalog: Catalog) -> slices.Steps[Changes]:
        """The same in slices. Until the last one every view is what it was; what else changes meanwhile is in
        the views that are in force then.
        """
        key = catalog.key
        former = self._shelves.get(key)
        if former is not None and former.catalog == catalog:
            return {}
        yield len(catalog.tools) // 2
        shelf = Shelf(catalog)
        for pin in self._pins_of(key) if self.pins.known else ():
            self.pins.met(pin, shelf.pinned)
        shown = former or self._kept.get(key)
        yield len(catalog.tools) // 2
        touched = view_builder.ALL if shown is None else (yield from shelf.inherit(shown))
        drafts = yield from self._drafts(key, shelf, touched)
        self._shelves[key] = shelf
        self._moves += 1
        changed: Changes = {}
        for scope, draft in drafts.items():
            self._show(scope, draft.view, changed)
        return changed

    def _drafts(
        self, key: PoolKey, shelf: Shelf, touched: frozenset[Family]
    ) -> slices.Steps[dict[Scope, _Drafted]]:
        """The views of all scopes with this pool as they are with this shelf."""
        drafts: dict[Scope, _Drafted] = {}
        spoilt = 0
        while True:
            scope = next(
                (it for it in self._scopes_of.get(key, ()) if not self._is_current(drafts, it)), None
            )
            if scope is None:
                return {it: drafts[it] for it in self._scopes_of.get(key, ())}
            if scope in drafts:
                spoilt += 1
            begun, seen = self._moves, self._scopes[scope].view
            is_first = not spoilt and scope.offline_of(key) is None
            making = view_builder.make_view(
                scope,
                self._stock(scope, {**self._shelves, key: shelf}),
                seen,
                touched=touched if is_first else view_builder.ALL,
                paging=self._paging,
                next_version=self._next_version,
            )
            view = slices.whole(making) if spoilt > MAX_SPOILT else (yield from making)
            drafts[scope] = _Drafted(begun, seen, view)

    def _is_current(self, drafts: Mapping[Scope, _Drafted], scope: Scope) -> bool:
        draft = drafts.get(scope)
        return draft is not None and draft.moves == self._moves and draft.former is self._scopes[scope].view

    def keep(self, kept: Mapping[PoolKey, Catalog]) -> Changes:
        """These are the catalogs of an earlier carpool, complete each time. Returns as `learn`."""
        former = self._kept
        self._moves += 1
        self._kept = {}
        for key, catalog in kept.items():
            before = former.get(key)
            same = before is not None and before.catalog == catalog
            self._kept[key] = before if before is not None and same else Shelf(catalog)
        changes: Changes = {}
        for key in former.keys() | self._kept.keys():
            if former.get(key) is not self._kept.get(key) and key not in self._shelves:
                for scope, families in self._look_again(key, view_builder.ALL).items():
                    changes[scope] = changes.get(scope, frozenset()) | families
        return changes

    def forget(self, key: PoolKey) -> Changes:
        """The pool is no longer wanted: nothing of it is remembered. Returns as `learn`."""
        self._moves += 1
        self._hidden.discard(key)
        self._shelves.pop(key, None)
        return self._look_again(key, view_builder.ALL)

    def hide(self, key: PoolKey) -> Changes:
        """The pool gave up, is stopped or disabled: its offers leave every list. Returns as `learn`."""
        if key in self._hidden:
            return {}
        self._moves += 1
        self._hidden.add(key)
        return self._look_again(key, view_builder.ALL)

    def show(self, key: PoolKey) -> Changes:
        """The pool is fit again: its offers, as last known, return. Returns as `learn`."""
        if key not in self._hidden:
            return {}
        self._moves += 1
        self._hidden.remove(key)
        return self._look_again(key, view_builder.ALL)

    def catalog(self, key: PoolKey) -> Catalog | None:
        """What the pool last told, hidden or not; None when it never did."""
        shelf = self._shelves.get(key)
        return None if shelf is None else shelf.catalog

    def known(self, key: PoolKey) -> Catalog | None:
        """The same, or else what it told an earlier carpool."""
        shelf = self._last(key)
        return None if shelf is None else shelf.catalog

    def _last(self, key: PoolKey) -> Shelf | None:
        """What the pool told last, be it an earlier carpool."""
        return self._shelves.get(key) or self._kept.get(key)

    def own_tools(self, scope: Scope) -> Mapping[PoolKey, Mapping[str, RawJson]]:
        """Of every pool in a retained scope: the tools that are let through, by their own names and
        unchanged.
        """
        shelves = self._stock(scope).shelves
        return {
            it.key: {
                name: definition
                for name, definition in shelves[it.key].offers["tools"].items()
                if scope.permits("tool", it, name)
            }
            for it in scope.servers
            if it.key in shelves
        }

    # --- what of it is approved ------------------------------------------------------------------------

    def _pins_of(self, key: PoolKey) -> set[PinId]:
        entries = [entry for scope in self._scopes_of.get(key, ()) for entry in scope.servers]
        return {entry.pin for entry in entries if entry.pin and entry.key == key}

    def pinned(self) -> dict[PinId, list[PoolKey]]:
        """The pinned servers of retained scopes, and their pools."""
        found: dict[PinId, list[PoolKey]] = {}
        for key in sorted(self._scopes_of):
            for pin in sorted(self._pins_of(key)):
                found.setdefault(pin, []).append(key)
        return found

    def meet(self) -> None:
        """A source was read: servers that have told their tools before they were pinned are met now."""
        self._moves += bool(self.pins.known)
        if None in self.pins.known.values():
            for pin, keys in self.pinned().items():
                for key in keys:
                    if key in self._shelves:
                        self.pins.met(pin, self._shelves[key].pinned)

    def held_of(self, pin: PinId) -> list[HeldTool]:
        """What is held of this pinned server, in all its pools; of tools of one name the first."""
        found: dict[str, HeldTool] = {}
        for key in self.pinned().get(pin, ()):
            shelf = self._last(key)
            for each in self.pins.described(pin, shelf.pinned if shelf is not None else {}):
                found.setdefault(each.tool, each)
        return [found[tool] for tool in sorted(found)]

    def approve(self, pin: PinId, wanted: Mapping[str, str]) -> Changes:
        """See `Pins.approve`. Returns as `learn`."""
        keys = self.pinned().get(pin, [])
        self._moves += 1
        changes: Changes = {}
        shelves = map(self._last, keys)
        self.pins.approve(pin, [shelf.pinned for shelf in shelves if shelf is not None], wanted)
        for key in keys:
            for scope, families in self._look_again(key, frozenset({"tools"})).items():
                changes[scope] = changes.get(scope, frozenset()) | families
        return changes

    # --- who looks ---------------------------------------------------------------------------------------

    def retain(self, scope: Scope) -> View:
        """One more session sees through this scope. Each `retain` needs one `release`."""
        seen = self._scopes.get(scope)
        if seen is None:
            keys = {entry.key for entry in scope.servers}
            if len({entry.server for entry in scope.servers}) < len(scope.servers):
                raise InvariantBroken("a scope names a server twice")
            seen = self._scopes[scope] = _Seen(self._see(scope, None, view_builder.ALL))
            for key in keys:
                self._scopes_of.setdefault(key, {})[scope] = None
        seen.holders += 1
        return seen.view

    def release(self, scope: Scope) -> None:
        """A session that retained this scope is done with it. The last one takes the view along."""
        seen = self._scopes.get(scope)
        if seen is None:
            raise InvariantBroken("a scope was released more often than retained")
        seen.holders -= 1
        if seen.holders:
            return
        del self._scopes[scope]
        for key in {entry.key for entry in scope.servers}:
            del self._scopes_of[key][scope]
            if not self._scopes_of[key]:
                del self._scopes_of[key]

    def view(self, scope: Scope) -> View:
        """What a retained scope sees now. Cheap: every call of every agent asks."""
        seen = self._scopes.get(scope)
        if seen is None:
            raise InvariantBroken("a scope is looked through that nobody retains")
        return seen.view

    # --- views -------------------------------------------------------------------------------------------

    def _look_again(self, key: PoolKey, touched: frozenset[Family]) -> Changes:
        changed: Changes = {}
        for scope in self._scopes_of.get(key, ()):
            self._show(scope, self._see(scope, self._scopes[scope].view, touched), changed)
        return changed

    def _show(self, scope: Scope, view: View, changed: Changes) -> None:
        """This view is in force now. Puts down which lists are others."""
        seen = self._scopes[scope]
        former, seen.view = seen.view, view
        others = frozenset(f for f in FAMILIES if view.version(f) != former.version(f))
        if others:
            changed[scope] = others

    def _stock(self, scope: Scope, own: Mapping[PoolKey, Shelf] | None = None) -> view_builder.Stock:
        """A pool's own word counts, unless it is away and a file speaks for its tools. `own`: these instead
        of what the pools have told.
        """
        own = self._shelves if own is None else own
        if not self._kept and all(entry.offline is None and not entry.pin for entry in scope.servers):
            return view_builder.Stock(own, self._hidden)
        held: dict[PoolKey, Mapping[str, Why]] = {}
        shelves: dict[PoolKey, Shelf] = {}
        by_file: set[PoolKey] = set()
        hearsay: set[PoolKey] = set()
        for entry in scope.servers:
            key = entry.key
            told = own.get(key)
            shelf = told or self._kept.get(key)
            if entry.pin and shelf is not None and (why := self.pins.held(entry.pin, shelf.pinned)):
                held[key] = why
            if entry.offline is not None and (told is None or key in self._hidden):
                shelf = _by_file(entry.key, entry.offline, shelf)
                by_file.add(key)
            if shelf is not None:
                shelves[key] = shelf
                if told is None:
                    hearsay.add(key)
        return view_builder.Stock(shelves, self._hidden, frozenset(hearsay), frozenset(by_file), held)

    def _see(self, scope: Scope, former: View | None, touched: frozenset[Family]) -> View:
        making = view_builder.make_view(
            scope,
            self._stock(scope),
            former,
            touched=touched,
            paging=self._paging,
            next_version=self._next_version,
        )
        return slices.whole(making)

    def _next_version(self) -> int:
        self._version += 1
        return self._version

    # --- for tests and CARPOOL_CHECK ---------------------------------------------------------------------

    def check(self) -> None:
        """Assert every invariant of the module."""
        versions: set[int] = set()
        index: dict[PoolKey, dict[Scope, None]] = {}
        for scope, seen in self._scopes.items():
            assert seen.holders > 0, "a scope is kept that nobody retains"
            for entry in scope.servers:
                index.setdefault(entry.key, {})[scope] = None
            view = seen.view
            assert view.scope == scope
            keys = {entry.key for entry in scope.servers}
            assert view.away == keys & self._hidden
            stock = self._stock(scope)
            assert view.unknown == keys - self._hidden - stock.shelves.keys()
            assert view.hearsay == keys & stock.shelves.keys() - self._shelves.keys()
            self._check_lists(view, stock)
            for history in view.lists:
                history.check(self._paging.kept_versions)
                for listing in history.listings:
                    assert listing.version not in versions, "two lists share a version"
                    assert listing.version <= self._version
                    versions.add(listing.version)
        assert index.keys() == self._scopes_of.keys()
        assert all(index[key].keys() == self._scopes_of[key].keys() for key in index)

    def _check_lists(self, view: View, stock: view_builder.Stock) -> None:
        """The lists are what the catalogs say, and whatever is in them is found."""
        making = view_builder.make_view(
            view.scope,
            stock,
            None,
            touched=view_builder.ALL,
            paging=self._paging,
            next_version=lambda: 0,
        )
        afresh = slices.whole(making)
        assert view.tools == afresh.tools, "a stale list"
        assert view.lists[0].present.entries == afresh.lists[0].present.entries, "a stale list"
        assert view.own == afresh.own
        assert not view.own.keys() & view.tool_names.by_name.keys(), "a name of ours is a server's"
        assert view.prompts == afresh.prompts, "a stale list"
        assert view.resources == afresh.resources, "a stale list"
        assert view.templates == afresh.templates, "a stale list"
        assert view.tool_names.by_name == afresh.tool_names.by_name
        assert view.prompt_names.by_name == afresh.prompt_names.by_name
        assert view.instructions == afresh.instructions
        assert view.left_out == afresh.left_out
        assert view.capabilities() == afresh.capabilities()
        assert view.held == afresh.held
        for tool in view.tools:
            found = view.resolve(tool.qualified)
            assert isinstance(found, ViewTool), "a listed name leads nowhere"
            assert (found.key, found.tool) == (tool.key, tool.tool), "a listed name leads elsewhere"
        for name, tool in view.tool_names.by_name.items():
            found = view.resolve(name)
            if not isinstance(found, UnverifiedTool):  # what it says itself may be what was approved
                is_held = (tool.server, tool.tool) in view.held
                assert isinstance(found, Held) == is_held, "a tool is held, and is not"
        assert all(view.resolve_prompt(name) == it for name, it in view.prompt_names.by_name.items())
        for resource in view.resources:
            there = view.uris.route(resource.shown)
            assert isinstance(there, Route), "a listed URI leads nowhere"
            assert (there.key, there.uri) == (resource.key, resource.uri), "a listed URI leads elsewhere"
        assert len({it.shown for it in view.resources}) == len(view.resources), "a URI is listed twice"
        assert len({it.shown for it in view.templates}) == len(view.templates), "a template is listed twice"


def _by_file(key: PoolKey, tools: tuple[ToolOffer, ...], known: Shelf | None) -> Shelf:
    """What the server's `tools_file` lists, beside what is known of it otherwise."""
    if known is None:
        return Shelf(Catalog(key, list(tools), "", EMPTY_OBJECT, EMPTY_OBJECT, ""))
    return Shelf(replace(known.catalog, tools=list(tools)))
