"""Reading what a server offers: four lists, in pages, as far as it announces them.

Owns the order of the requests, the cut-off for pages that never end, the bounds in bytes of one entry and of
all four lists together, and which list is read again when it changed while it was read. What is over a bound
is left out, and the sentence that says so is kept for as long as the list is. A generator of requests without
I/O: the adapter asks `start`, hands over each answer, and writes what comes back. A long page is read in
slices; until the last of them the list is what it was. Source: MCP 2025-11-25, server/utilities/pagination
and the pages on tools, prompts and resources.

Knows nothing of: request ids, greetings, who wants the catalog.
"""

import json
from collections.abc import Iterable
from functools import reduce
from typing import Final, Literal

import msgspec
from msgspec import Struct

from carpool_protocol.ids import RawJson
from carpool_protocol.link.messages import Feature, Offer, ResourceOffer
from carpool_protocol.machine.slices import STEP_ENTRIES, SlicedWork, Steps
from carpool_protocol.wire.content import elements, value_of
from carpool_protocol.wire.list_repair import Family, repair_entry
from carpool_supervisor.era.list_hints import NO_HINT, CacheHint, read_cache_hint

MAX_OFFERS: Final = 100_000
MAX_ENTRY_BYTES: Final = 256 * 1024
MAX_CATALOG_BYTES: Final = 16 * 1024 * 1024
"""Of the entries of all four lists, as the server wrote them."""
MAX_PAGES: Final = 10_000
MAX_AGAIN: Final = 3
"""A list that changes whenever it is read is taken as it is after so many times, and read again later."""

FAMILIES: Final[tuple[Family, ...]] = ("tools", "prompts", "resources", "templates")
METHODS: Final[dict[Family, str]] = {
    "tools": "tools/list",
    "prompts": "prompts/list",
    "resources": "resources/list",
    "templates": "resources/templates/list",
}
_MEMBERS: Final[dict[Family, str]] = {
    "tools": "tools",
    "prompts": "prompts",
    "resources": "resources",
    "templates": "resourceTemplates",
}
_NAMES: Final[dict[Family, str]] = {
    "tools": "name",
    "prompts": "name",
    "resources": "uri",
    "templates": "uriTemplate",
}
CHANGED: Final[dict[str, tuple[Family, ...]]] = {
    "notifications/tools/list_changed": ("tools",),
    "notifications/prompts/list_changed": ("prompts",),
    "notifications/resources/list_changed": ("resources", "templates"),
}
"""Which lists a notification makes old."""


class PageRequest(Struct, frozen=True):
    """One page of one list is wanted."""

    family: Family
    cursor: str | None


PageResult = tuple[PageRequest | None, str]
"""What follows from a page: the next request, and what was wrong with the page (or nothing)."""


class ListPages:
    """What is known of the four lists, and what is still to be asked."""

    def __init__(self) -> None:
        self._offers: dict[Family, list[tuple[str, RawJson]]] = {family: [] for family in FAMILIES}
        self._page: SlicedWork[PageResult] | None = None
        """What is under way of a page that came."""
        self._found: dict[str, RawJson] = {}
        """Of the list that is being read. A name offered twice counts once, the first time."""
        self._found_entries = self._found_bytes = 0
        self._too_large = 0
        """Entries of that list that are over the bound of one."""
        self._is_full = False
        """An entry of that list is over the bound of the catalog."""
        self._cursors: set[str] = set()
        self._now: Family | None = None
        self._again_times = 0
        """How often the list that is being read has been begun anew."""
        self._todo: list[Family] = []
        self._late: list[Family] = []
        """Lists that were taken although they are old already."""
        self._announced: tuple[Family, ...] = ()
        self._hint = NO_HINT
        """Of the pages of the list that is being read."""
        self._hints: dict[Family, CacheHint] = {}
        self._bytes: dict[Family, int] = dict.fromkeys(FAMILIES, 0)
        self.left_out: dict[Family, str] = {}
        """Of each list that is not whole: what is left out of it and why, for people."""

    @property
    def hint(self) -> CacheHint:
        """What was said of all the lists together."""
        return reduce(CacheHint.least, self._hints.values(), NO_HINT)

    def announce(self, features: Iterable[Feature]) -> None:
        """What the server said it serves: all of that is to be read."""
        served = set(features)
        self._announced = tuple(f for f in FAMILIES if ("resources" if f == "templates" else f) in served)
        self._todo = list(self._announced)

    def lists_changed(self, families: Iterable[Family]) -> PageRequest | None:
        """These lists are old. The next request, if none is out."""
        for family in families:
            if family in self._announced and family not in self._todo:
                self._todo.append(family)
        return None if self._now is not None else self.next_list()

    def next_list(self) -> PageRequest | None:
        """The first page of the next list; None when all is read."""
        self._now = None
        self._again_times = 0
        if not self._todo:
            return None
        self._now = self._todo.pop(0)
        self._found, self._found_entries, self._found_bytes = {}, 0, 0
        self._too_large, self._is_full = 0, False
        self._cursors = set()
        self._hint = NO_HINT
        return PageRequest(self._now, None)

    def changed_meanwhile(self) -> list[Family]:
        """What was read has been told: the lists of which a part was old already."""
        late, self._late = self._late, []
        return late

    @property
    def family(self) -> Family | None:
        """The list that is being read."""
        return self._now

    def list_refused(self) -> PageRequest | None:
        """The server would not tell this list: it keeps what was known. The next request."""
        return self.next_list()

    def abandon(self) -> None:
        """Nothing more is read of this round: the lists keep what was known."""
        self._page = None
        self._todo.clear()
        self._late.clear()
        self.next_list()

    @property
    def is_busy(self) -> bool:
        """A page came that is not read to its end: `read_on`."""
        return self._page is not None

    def page_received(self, result: RawJson) -> PageResult | None:
        """A page came. What follows; None where it is longer than one slice."""
        family = self._now
        assert family is not None, "a page that nobody asked for"
        assert self._page is None, "a page in the middle of another"
        self._page = SlicedWork(self._read_entries(result, family))
        return self.read_on()

    def read_on(self) -> PageResult | None:
        """The next slice of that page. What follows; None where it was not the last."""
        page = self._page
        assert page is not None, "there is no page"
        if not page.run_slice():
            return None
        self._page = None
        return page.result

    def _read_entries(self, result: RawJson, family: Family) -> Steps[PageResult]:
        page = yield from _read(result, family)
        if page is None:
            return self.next_list(), f"answered {METHODS[family]} with no list"
        offers, cursor, hint = page
        yield from self._add(family, offers)
        yield len(offers) // 2
        self._hint = self._hint.least(hint)
        if family in self._todo:  # it changed meanwhile: what was read so far may not belong together
            if self._again_times < MAX_AGAIN:
                return self._read_again(family), ""
            self._todo.remove(family)
            self._late.append(family)
        if cursor is None or self._is_full:
            return self._list_read(family)
        endless = len(self._cursors) >= MAX_PAGES or self._found_entries > MAX_OFFERS
        if cursor in self._cursors or endless:
            return self._list_read(family, f"its pages of {family} do not end; the rest is left out")
        self._cursors.add(cursor)
        return PageRequest(family, cursor), ""

    def _add(self, family: Family, offers: Iterable[tuple[str, RawJson]]) -> Steps[None]:
        """Keep these entries, as far as the bounds let."""
        room_bytes = MAX_CATALOG_BYTES - sum(self._bytes[each] for each in FAMILIES if each != family)
        for at, (name, definition) in enumerate(offers, 1):
            if not at % STEP_ENTRIES:
                yield STEP_ENTRIES
            size_bytes = len(definition)
            if size_bytes > MAX_ENTRY_BYTES:
                self._too_large += 1
            elif self._found_bytes + size_bytes > room_bytes:
                self._is_full = True
                return
            else:
                self._found_bytes += size_bytes
                self._found_entries += 1
                self._found.setdefault(name, definition)

    def _read_again(self, family: Family) -> PageRequest | None:
        times = self._again_times + 1
        self._todo.remove(family)
        self._todo.insert(0, family)
        page = self.next_list()
        self._again_times = times
        return page

    def _list_read(self, family: Family, wrong: str = "") -> PageResult:
        self._offers[family] = list(self._found.items())
        self._bytes[family] = self._found_bytes
        self._hints[family] = self._hint
        before = self.left_out.pop(family, "")
        left_out = "; ".join(filter(None, (self._over_bounds(family), wrong)))
        if left_out:
            self.left_out[family] = left_out
        return self.next_list(), left_out if left_out != before else ""

    def _over_bounds(self, family: Family) -> str:
        """What of the list that was read is over a bound, as a sentence; empty where nothing is."""
        said = []
        if self._too_large:
            entries = "1 entry" if self._too_large == 1 else f"{self._too_large} entries"
            are = "is" if self._too_large == 1 else "are"
            said.append(
                f"{entries} of its {family} {are} left out: larger than {MAX_ENTRY_BYTES // 1024} KiB each"
            )
        if self._is_full:
            whole = f"its lists are larger than {MAX_CATALOG_BYTES // 1024**2} MiB together"
            said.append(f"{whole}: the rest of its {family} is left out after {self._found_entries}")
        return "; ".join(said)

    def named_offers(self, family: Literal["tools", "prompts"]) -> list[Offer]:
        """The offers of a list whose entries have names."""
        return [Offer(name, definition) for name, definition in self._offers[family]]

    def uri_offers(self, family: Literal["resources", "templates"]) -> list[ResourceOffer]:
        """The offers of a list whose entries have URIs."""
        return [ResourceOffer(uri, definition) for uri, definition in self._offers[family]]


class _ListResult(Struct):
    tools: list[msgspec.Raw] = []
    prompts: list[msgspec.Raw] = []
    resources: list[msgspec.Raw] = []
    resourceTemplates: list[msgspec.Raw] = []  # noqa: N815 - the wire's name
    nextCursor: str | None = None  # noqa: N815 - the wire's name
    ttlMs: msgspec.Raw = msgspec.Raw()  # noqa: N815 - the wire's name
    cacheScope: msgspec.Raw = msgspec.Raw(b"null")  # noqa: N815 - the wire's name


class _Named(Struct):
    name: str = ""
    uri: str = ""
    uriTemplate: str = ""  # noqa: N815 - the wire's name


_list_result = msgspec.json.Decoder(_ListResult)
_named = msgspec.json.Decoder(_Named)
_UNREADABLE: Final = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


_ENTRY_UNITS: Final = 4
"""What reading one entry costs, and one more for so many bytes. See `SlicedWork`."""
_BYTES_OF_UNIT: Final = 512
_STEP_UNITS: Final = 1024
_LENIENT_UNITS: Final = 40
"""What reading one costs that msgspec refuses."""

_Page = tuple[list[tuple[str, RawJson]], str | None, CacheHint]


def _read(result: RawJson, family: Family) -> Steps[_Page | None]:
    """One page: entries, next cursor, how long it holds. An entry without a name is left out."""
    try:
        page = _list_result.decode(result)
        yield len(result) // _BYTES_OF_UNIT
        found = []
        cost_units = 0
        for raw in getattr(page, _MEMBERS[family]):
            cost_units += _ENTRY_UNITS + len(raw) // _BYTES_OF_UNIT
            if cost_units >= _STEP_UNITS:
                yield cost_units
                cost_units = 0
            try:
                name = getattr(_named.decode(raw), _NAMES[family])
            except msgspec.ValidationError:
                continue
            if name:
                entry = RawJson(bytes(raw))
                is_large = len(entry) > MAX_ENTRY_BYTES  # it is left out, so nothing of it is mended
                found.append((name, entry if is_large else repair_entry(entry, family)))
    except _UNREADABLE:
        return (yield from _read_leniently(result, family))
    if not bytes(page.ttlMs):
        return found, page.nextCursor, NO_HINT
    # Read out of what is decoded anyway: a second look at all of a long page takes as long as the first.
    said = b'{"ttlMs":%b,"cacheScope":%b}' % (bytes(page.ttlMs), bytes(page.cacheScope))
    return found, page.nextCursor, read_cache_hint(RawJson(said))


def _read_leniently(result: RawJson, family: Family) -> Steps[_Page | None]:
    """For pages that msgspec refuses (lone surrogates, rule 16): cut, so that every byte stays."""
    entries = elements(value_of(result, _MEMBERS[family]) or b"")
    if entries is None:
        return None
    found = []
    cost_units = 0
    for entry in entries:
        cost_units += _LENIENT_UNITS + len(entry) // _BYTES_OF_UNIT
        if cost_units >= _STEP_UNITS:
            yield cost_units
            cost_units = 0
        name = _text(value_of(entry, _NAMES[family]))
        if name:
            found.append((legible(name), RawJson(entry)))
    cursor = _text(value_of(result, "nextCursor"))
    return found, cursor, read_cache_hint(result)


def _text(raw: bytes | None) -> str | None:
    """A JSON string, half surrogate pairs and all; None for anything else."""
    if raw is None or raw[:1] != b'"':
        return None
    try:
        text: str = json.loads(raw)
    except ValueError:
        return None
    return text


def legible(text: str) -> str:
    """Without lone surrogates, which no UTF-8 can carry."""
    return text.encode("utf-8", "replace").decode()
