"""Lists in pages: one version of one list, and the versions whose cursors still count.

Owns pages and cursors (rule 18). Everything here is immutable to its users; pages are encoded on first use,
once for all agents that are to see the same bytes. A version that is replaced frees its encoded pages.

Invariants: a cursor continues the very list it was given out with, or is refused; it names the beginning of a
page, so nobody can have other pages built. Versions are unique within a registry, over all families, so
a cursor of another list is no cursor of this one.

Knows nothing of: what is in a list, scopes, when a list changes.
"""

from collections.abc import Callable, Sequence
from typing import Final, Generic, Literal, NamedTuple, Protocol, TypeVar, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from carpool_protocol.ids import RawJson
from carpool_protocol.machine import slices

PAGE_ENTRIES: Final = 1000
PAGE_BYTES: Final = 4 * 1024 * 1024
MAX_KEPT_VERSIONS: Final = 8
"""The most versions of a list whose cursors count, with the present one."""
MAX_KEPT_ENTRIES: Final = 100_000
"""The most entries of all earlier versions together, but the last one is kept whatever its length is: each
version of a list that changes completely is as large as the list.
"""
MAX_KEPT_BYTES: Final = 32 * 1024 * 1024
"""The same for the bytes of their definitions."""

Family = Literal["tools", "prompts", "resources", "templates"]
FAMILIES: Final[tuple[Family, ...]] = get_args(Family)

_HEADS: Final[dict[Family, bytes]] = {
    "tools": b'{"tools":[',
    "prompts": b'{"prompts":[',
    "resources": b'{"resources":[',
    "templates": b'{"resourceTemplates":[',
}
_TAIL = b"]}"
_CURSOR_ROOM_BYTES = 64

Edit = Callable[[RawJson], RawJson]
"""How some agents are to see each definition; it may only make it smaller."""


class Listable(Protocol):
    """What can be listed."""

    @property
    def definition(self) -> RawJson:
        """The whole object as agents see it."""

    @property
    def fingerprint(self) -> object:
        """Where it is equal, agents read the same; quick to tell."""

    @property
    def max_bytes(self) -> int:
        """As many the definition has at most."""


E = TypeVar("E", bound=Listable)


def look_equal(one: Sequence[Listable], other: Sequence[Listable]) -> bool:
    """Whether agents read the same in both. A definition is made only where the quick look says no."""
    return one is other or (
        len(one) == len(other)
        and all(
            mine is its or mine.fingerprint == its.fingerprint or mine.definition == its.definition
            for mine, its in zip(one, other, strict=True)
        )
    )


class ListComparison:
    """Comparisons of lists within one event. Agents that hold one list share one comparison."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], tuple[bool, Sequence[Listable], Sequence[Listable]]] = {}
        """By the identities of both lists, which are kept alive here."""

    def look_equal(self, one: Sequence[Listable], other: Sequence[Listable]) -> bool:
        """Return whether agents read the same in both. Each pair is compared once."""
        pair = (id(one), id(other))
        found = self._found.get(pair)
        if found is None:
            found = self._found[pair] = (look_equal(one, other), one, other)
        return found[0]


class ListPage(Struct, frozen=True):
    """One page of a list."""

    body: RawJson
    """The result object: `{"tools": [...], "nextCursor": ...}`."""
    next_cursor: str | None


class BadCursor(Struct, frozen=True):
    """Not a cursor of this list, or of a version that is no longer kept (-32602, fault `bad_cursor`)."""


class Paging(Struct, frozen=True):
    """How lists are cut, and how long cursors count."""

    mark: str = ""
    """Tells this broker's cursors from earlier ones'."""
    page_entries: int = PAGE_ENTRIES
    page_bytes: int = PAGE_BYTES
    kept_versions: int = MAX_KEPT_VERSIONS
    kept_entries: int = MAX_KEPT_ENTRIES
    kept_bytes: int = MAX_KEPT_BYTES


class PageCuts(NamedTuple):
    """How a list is cut into pages."""

    starts: tuple[int, ...]
    """The place of the first entry of each page."""
    size_bytes: int
    """As many the definitions of the whole list have at most."""


class ListVersion(Generic[E]):
    """One version of one list of a scope."""

    __slots__ = (
        "_first",
        "_head",
        "_mark",
        "_pages",
        "_starts",
        "entries",
        "ordinal",
        "size_bytes",
        "version",
    )

    def __init__(
        self,
        family: Family,
        entries: tuple[E, ...],
        *,
        version: int,
        ordinal: int,
        paging: Paging,
        cuts: PageCuts | None = None,
    ) -> None:
        """`ordinal` counts the versions of one list of one scope; `cuts`: how it is cut, where that is
        known.
        """
        self.entries = entries
        self.version = version
        self.ordinal = ordinal
        self._head = _HEADS[family]
        self._mark = paging.mark
        cuts = cuts or slices.run_all_slices(cut_pages(family, entries, paging))
        self._starts, self.size_bytes = cuts
        self._pages: dict[tuple[str, Edit | None], ListPage] = {}
        self._first: dict[Edit | None, ListPage] = {}

    @property
    def is_paged(self) -> bool:
        """Whether any cursor into this list can be out."""
        return len(self._starts) > 1

    def first(self, edit: Edit | None) -> ListPage:
        """The page that every reader begins with."""
        page = self._first.get(edit)
        if page is None:
            page = self._first[edit] = self._encode(0, edit)
        return page

    def page(self, cursor: str, edit: Edit | None) -> ListPage | None:
        """The page that `cursor` begins; None for a cursor that this list never gave out."""
        page = self._pages.get((cursor, edit))
        if page is None:
            for number, start in enumerate(self._starts):
                if start and cursor == self._cursor(start):
                    page = self._pages[cursor, edit] = self._encode(number, edit)
        return page

    def forget_pages(self) -> None:
        """Free the encoded pages; one that is still asked for is encoded again."""
        self._pages.clear()
        self._first.clear()

    def _cursor(self, start: int) -> str:
        return f"{self._mark}{self.version}.{start}"

    def _encode(self, number: int, edit: Edit | None) -> ListPage:
        start = self._starts[number]
        is_last = number + 1 == len(self._starts)
        end = len(self.entries) if is_last else self._starts[number + 1]
        definitions = [entry.definition for entry in self.entries[start:end]]
        if edit is not None:
            definitions = [edit(definition) for definition in definitions]
        body = self._head + b",".join(definitions)
        if is_last:
            return ListPage(RawJson(body + _TAIL), None)
        cursor = self._cursor(end)
        return ListPage(RawJson(body + b'],"nextCursor":' + msgspec.json.encode(cursor) + b"}"), cursor)


def cut_pages(family: Family, entries: Sequence[Listable], paging: Paging) -> slices.Steps[PageCuts]:
    """Cut a list into as few pages as the limits allow; an entry larger than a page has one to itself."""
    starts = [0]
    room_bytes = paging.page_bytes - len(_HEADS[family]) - _CURSOR_ROOM_BYTES
    used_bytes = size_bytes = 0
    step = slices.STEP_ENTRIES
    for index, entry in enumerate(entries):
        if not (index + 1) % step:
            yield step
        entry_bytes = entry.max_bytes + 1
        is_full = index - starts[-1] >= paging.page_entries or used_bytes + entry_bytes > room_bytes
        if index > starts[-1] and is_full:
            starts.append(index)
            size_bytes += used_bytes
            used_bytes = 0
        used_bytes += entry_bytes
    return PageCuts(tuple(starts), size_bytes + used_bytes)


class ListVersions(Generic[E]):
    """One list of a scope: the present version, and the earlier ones whose cursors still count."""

    __slots__ = ("_paging", "family", "listings", "present")

    def __init__(self, family: Family, paging: Paging, listings: Sequence[ListVersion[E]]) -> None:
        """`listings`: newest first. See `begin` and `with_new_version`."""
        self.family: Family = family
        self.present = listings[0]
        self.listings = tuple(listings)
        self._paging = paging

    @classmethod
    def begin(
        cls,
        family: Family,
        paging: Paging,
        entries: tuple[E, ...],
        version: int,
        cuts: PageCuts | None = None,
    ) -> "ListVersions[E]":
        """The first version of a list."""
        first = ListVersion(family, entries, version=version, ordinal=1, paging=paging, cuts=cuts)
        return cls(family, paging, [first])

    def with_new_version(
        self, entries: tuple[E, ...], version: int, cuts: PageCuts | None = None
    ) -> "ListVersions[E]":
        """The list with a new present version; keeps recent earlier ones that have a second page, of long
        lists fewer.
        """
        ordinal = self.present.ordinal + 1
        present = ListVersion(
            self.family, entries, version=version, ordinal=ordinal, paging=self._paging, cuts=cuts
        )
        self.present.forget_pages()
        kept: list[ListVersion[E]] = []
        left_entries, left_bytes = self._paging.kept_entries, self._paging.kept_bytes
        for listing in self.listings:
            if not listing.is_paged or ordinal - listing.ordinal >= self._paging.kept_versions:
                continue
            left_entries -= len(listing.entries)
            left_bytes -= listing.size_bytes
            if kept and (left_entries < 0 or left_bytes < 0):
                break
            kept.append(listing)
        return ListVersions(self.family, self._paging, [present, *kept])

    def with_same_entries(
        self, entries: tuple[E, ...], cuts: PageCuts | None = None
    ) -> "ListVersions[E] | None":
        """The same versions with `entries` behind the present one; None if agents would read another list."""
        if self.present.entries == entries:
            return self
        if not look_equal(self.present.entries, entries):
            return None
        same = self.present
        present = ListVersion(
            self.family,
            entries,
            version=same.version,
            ordinal=same.ordinal,
            paging=self._paging,
            cuts=cuts,
        )
        return ListVersions(self.family, self._paging, [present, *self.listings[1:]])

    def selected(self, entries: tuple[E, ...], mark: str, page_bytes: int) -> "ListVersions[E]":
        """A list of some of the present entries, in pages of so many bytes. `mark` begins its cursors."""
        paging = replace(self._paging, mark=mark + self._paging.mark, page_bytes=page_bytes)
        return ListVersions.begin(self.family, paging, entries, self.present.version)

    def page(self, cursor: str | None, edit: Edit | None = None) -> ListPage | BadCursor:
        """One page of the present version, or of the earlier one that `cursor` belongs to."""
        if cursor is None:
            return self.present.first(edit)
        for listing in self.listings:
            page = listing.page(cursor, edit)
            if page is not None:
                return page
        return BadCursor()

    def check(self, kept_versions: int) -> None:
        """Assert the order of versions, and that none is kept for nothing."""
        assert self.present is self.listings[0]
        assert len(self.listings) <= kept_versions
        earlier = self.listings[1:]
        assert len(earlier) < 2 or sum(len(each.entries) for each in earlier) <= self._paging.kept_entries
        assert len(earlier) < 2 or sum(each.size_bytes for each in earlier) <= self._paging.kept_bytes
        for newer, older in zip(self.listings, self.listings[1:], strict=False):
            assert newer.version > older.version
            assert newer.ordinal > older.ordinal
            assert older.is_paged, "an earlier version is kept that no cursor points into"
        assert all(self.present.ordinal - listing.ordinal < kept_versions for listing in self.listings)
