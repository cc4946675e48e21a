"""What all servers offer, and the view of it for every scope in use.

Owns: the latest catalog of each pool, which pools are hidden (rule 18), one view per retained scope, the
version. A view is replaced, never changed; sessions and pages keep the value they hold. Names are given
over all tools that a scope lets through, hidden servers included, so that nothing changes its name
because a server went away.

Invariants (`check`): a scope has a view exactly while somebody retains it; the view is what its catalogs
say; versions are unique and grow; a cursor outlives `kept_versions` - 1 changes of its scope's list.

Knows nothing of: sessions (they hold scopes), why a pool is hidden, instances, the link.
"""

from carpool_protocol.params import rewrite_tool
from msgspec import Struct

from carpool_broker.core.scope import Scope, ScopeEntry
from carpool_broker.core.view import PAGE_BYTES, PAGE_ENTRIES, Listing, View, ViewTool, prefixes_of
from carpool_protocol.faults import InvariantBroken
from carpool_protocol.ids import PoolKey, RawJson, ServerName
from carpool_protocol.messages import Catalog
from carpool_protocol.names import Tool, qualify_all

KEPT_VERSIONS = 8


class _Shelf:
    """One pool's catalog, and its tools as they were rewritten for views: views of many scopes share them."""

    __slots__ = ("catalog", "offers", "rewritten")

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.offers: dict[str, RawJson] = {}
        for offer in catalog.tools:  # of two tools with one name, the first is the one that is listed
            self.offers.setdefault(offer.name, offer.definition)
        self.rewritten: dict[tuple[ServerName, bool, str, str], ViewTool] = {}

    def inherit(self, former: "_Shelf") -> None:
        """Keep what was rewritten from definitions that are still the same."""
        for way, tool in former.rewritten.items():
            if self.offers.get(tool.tool) == former.offers[tool.tool]:
                self.rewritten[way] = tool

    def tool(self, entry: ScopeEntry, name: str, qualified: str) -> ViewTool:
        """The tool `name` as a scope with this entry sees it."""
        way = (entry.server, entry.description_prefix, name, qualified)
        found = self.rewritten.get(way)
        if found is None:
            definition = self.offers[name]
            description_prefix = f"[{entry.server}] " if entry.description_prefix else ""
            if qualified != name or description_prefix:
                definition = rewrite_tool(definition, name=qualified, description_prefix=description_prefix)
            found = ViewTool(qualified, entry.server, name, entry.key, definition)
            self.rewritten[way] = found
        return found


class _Seen(Struct):
    """A scope in use."""

    view: View
    holders: int = 0


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
        self._mark = mark
        self._page_entries = page_entries
        self._page_bytes = page_bytes
        self._kept_versions = kept_versions
        self._version = 0
        self._shelves: dict[PoolKey, _Shelf] = {}
        self._hidden: set[PoolKey] = set()
        self._scopes: dict[Scope, _Seen] = {}
        self._scopes_of: dict[PoolKey, dict[Scope, None]] = {}

    # --- what is offered ---------------------------------------------------------------------------------

    def learn(self, catalog: Catalog) -> list[Scope]:
        """A pool told what it offers. Returns the scopes whose list changed.

        The same tools in another order change nothing. Neither does a first catalog without tools,
        though the pool is no longer `unknown` in the views then: whoever waits for it looks at the view
        after every catalog.
        """
        former = self._shelves.get(catalog.key)
        if former is not None and former.catalog == catalog:
            return []
        shelf = self._shelves[catalog.key] = _Shelf(catalog)
        if former is not None:
            shelf.inherit(former)
        return self._look_again(catalog.key)

    def forget(self, key: PoolKey) -> list[Scope]:
        """The pool is no longer wanted: nothing of it is remembered. Returns as `learn`."""
        self._hidden.discard(key)
        self._shelves.pop(key, None)
        return self._look_again(key)

    def hide(self, key: PoolKey) -> list[Scope]:
        """The pool gave up, is stopped or disabled: its tools leave every list. Returns as `learn`."""
        if key in self._hidden:
            return []
        self._hidden.add(key)
        return self._look_again(key)

    def show(self, key: PoolKey) -> list[Scope]:
        """The pool is fit again: its tools, as last known, return. Returns as `learn`."""
        if key not in self._hidden:
            return []
        self._hidden.remove(key)
        return self._look_again(key)

    def catalog(self, key: PoolKey) -> Catalog | None:
        """What the pool last told, hidden or not; None when it never did."""
        shelf = self._shelves.get(key)
        return None if shelf is None else shelf.catalog

    def is_hidden(self, key: PoolKey) -> bool:
        """Whether the pool's tools are left out of every list."""
        return key in self._hidden

    # --- who looks ---------------------------------------------------------------------------------------

    def retain(self, scope: Scope) -> View:
        """One more session sees through this scope. Each `retain` needs one `release`."""
        seen = self._scopes.get(scope)
        if seen is None:
            keys = {entry.key for entry in scope.servers}
            if len({entry.server for entry in scope.servers}) < len(scope.servers):
                raise InvariantBroken("a scope names a server twice")
            seen = self._scopes[scope] = _Seen(self._see(scope, None))
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

    def _look_again(self, key: PoolKey) -> list[Scope]:
        changed: list[Scope] = []
        for scope in self._scopes_of.get(key, ()):
            seen = self._scopes[scope]
            former, seen.view = seen.view, self._see(scope, seen.view)
            if seen.view.version != former.version:
                changed.append(scope)
        return changed

    def _see(self, scope: Scope, former: View | None) -> View:
        known, denied = self._known(scope)
        listed = tuple(tool for tool in known if tool.key not in self._hidden)
        if former is not None and former.tools == listed:
            listing, *earlier = former.listings
        else:
            earlier = [] if former is None else self._still_counting(former)
            listing = self._list(listed, 1 if former is None else former.listings[0].ordinal + 1)
        keys = frozenset(entry.key for entry in scope.servers)
        return View(
            scope,
            listing,
            earlier=tuple(earlier),
            known=known,
            denied=denied,
            unknown=keys - self._hidden - self._shelves.keys(),
            away=keys & self._hidden,
            instructions=self._instructions(scope),
        )

    def _known(self, scope: Scope) -> tuple[list[ViewTool], list[Tool]]:
        """The tools a scope lets through, listed or hidden, in the order of lists; and those it does not."""
        entries = {entry.server: entry for entry in scope.servers}
        allowed: list[Tool] = []
        denied: list[Tool] = []
        for server in sorted(entries):
            shelf = self._shelves.get(entries[server].key)
            for name in sorted(shelf.offers) if shelf is not None else ():
                (allowed if entries[server].allows(name) else denied).append((server, name))
        names = qualify_all(allowed, prefixes_of(scope), scope.separator)
        known = [
            self._shelves[entries[server].key].tool(entries[server], name, qualified)
            for (server, name), qualified in names.items()
        ]
        return known, denied

    def _list(self, tools: tuple[ViewTool, ...], ordinal: int) -> Listing:
        self._version += 1
        return Listing(
            tools,
            version=self._version,
            ordinal=ordinal,
            mark=self._mark,
            entries=self._page_entries,
            size_bytes=self._page_bytes,
        )

    def _still_counting(self, former: View) -> list[Listing]:
        """The lists of `former` that its successor still pages: recent ones that have a second page."""
        ordinal = former.listings[0].ordinal + 1
        return [
            listing
            for listing in former.listings
            if listing.is_paged and ordinal - listing.ordinal < self._kept_versions
        ]

    def _instructions(self, scope: Scope) -> str:
        told: dict[str, str] = {}
        for entry in sorted(scope.servers, key=lambda entry: entry.server):
            shelf = self._shelves.get(entry.key)
            if shelf is not None and entry.key not in self._hidden and shelf.catalog.instructions.strip():
                told[entry.server] = shelf.catalog.instructions
        if len(scope.servers) == 1:  # one server exposed as itself is passed on word for word
            return "".join(told.values())
        return "\n\n".join(f"# {server}\n\n{text.strip()}" for server, text in told.items())

    # --- for tests and CARPOOL_CHECK ---------------------------------------------------------------------

    def check(self) -> None:
        """Assert every invariant of the module."""
        versions: set[int] = set()
        index: dict[PoolKey, dict[Scope, None]] = {}
        for scope, seen in self._scopes.items():
            assert seen.holders > 0, "a scope is kept that nobody retains"
            for entry in scope.servers:
                index.setdefault(entry.key, {})[scope] = None
            known, _ = self._known(scope)
            view = seen.view
            assert view.scope == scope
            assert view.tools == tuple(tool for tool in known if tool.key not in self._hidden), "a stale view"
            assert len({tool.qualified for tool in known}) == len(known), "two tools share a name"
            assert all(view.resolve(tool.qualified) == tool for tool in known), (
                "a tool is not found by its name"
            )
            keys = {entry.key for entry in scope.servers}
            assert view.away == keys & self._hidden
            assert view.unknown == keys - self._hidden - self._shelves.keys()
            assert len(view.listings) <= self._kept_versions
            for newer, older in zip(view.listings, view.listings[1:], strict=False):
                assert newer.version > older.version
                assert newer.ordinal > older.ordinal
                assert older.is_paged, "an earlier list is kept that no cursor points into"
            for listing in view.listings:
                assert view.listings[0].ordinal - listing.ordinal < self._kept_versions
                assert listing.version not in versions, "two lists share a version"
                assert listing.version <= self._version
                versions.add(listing.version)
        assert index.keys() == self._scopes_of.keys()
        assert all(index[key].keys() == self._scopes_of[key].keys() for key in index)
