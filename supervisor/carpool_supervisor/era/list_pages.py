"""The pages of a server's four lists, as far as it announces them.

Owns the order of the requests, the limits for lists that never end and for cursors, the limits in bytes of
one entry and of all four lists together, and which list is read again because it changed meanwhile. A page
with too many commas is refused before anything of it is made. Entries over a limit are left out, and so are
output schemas that agents cannot compile; a sentence that says so is kept as long as the list. Without I/O:
the adapter calls `next_list`, passes each answer to `page_received` and writes the request that it returns. A
long page is read in slices; until the last of them the old list stays in force. Sources: MCP 2025-11-25,
server/utilities/pagination and the pages on tools, prompts and resources.

Knows nothing of: request ids, greetings, the readers of a catalog.
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
from carpool_protocol.wire.content import MAX_COMMAS, elements, mentions, value_of
from carpool_protocol.wire.list_repair import Family, lost_members, repair_entry
from carpool_supervisor.era.list_hints import NO_HINT, CacheHint, read_cache_hint

MAX_OFFERS: Final = 100_000
"""No further page is read after so many entries, with or without a name."""
MAX_ENTRY_BYTES: Final = 256 * 1024
MAX_CATALOG_BYTES: Final = 16 * 1024 * 1024
"""The limit for the entries of all four lists together, as the server wrote them."""
MAX_PAGES: Final = 10_000
MAX_CURSOR_CHARS: Final = 8 * 1024
"""A list ends at a longer cursor: it is sent back with the next request."""
_MAX_NAMED: Final = 5
MAX_AGAIN: Final = 3
"""A list that changes during each reading is accepted as it is after this many attempts, and read again
later.
"""

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
"""The lists that a notification declares changed."""


class PageRequest(Struct, frozen=True):
    """Request this page of this list."""

    family: Family
    cursor: str | None


LostMember = tuple[str, str]
"""The name of an entry, and of its member that agents cannot read; both may be cut."""

PageResult = tuple[PageRequest | None, str]
"""The next request after a page, and what was wrong with the page (empty: nothing)."""


class ListPages:
    """The four lists as far as they are known, and the lists still to read."""

    def __init__(self) -> None:
        self._offers: dict[Family, list[tuple[str, RawJson]]] = {family: [] for family in FAMILIES}
        self._page: SlicedWork[PageResult] | None = None
        """The page that is being read in slices."""
        self._found: dict[str, RawJson] = {}
        """Entries of the list that is being read. Of two entries with one name the first counts."""
        self._found_entries = self._found_bytes = 0
        self._read_count = 0
        """The number of entries on all of its pages."""
        self._too_large = 0
        """Number of its entries over the limit of one entry."""
        self._lost: list[LostMember] = []
        """What the repair of its entries has left out."""
        self._is_full = False
        """True if an entry of it was over the limit of the catalog."""
        self._cursors: set[int] = set()
        """The hashes of its cursors: the cursors themselves may be long."""
        self._now: Family | None = None
        self._again_times = 0
        """How often the reading of this list was begun anew."""
        self._todo: list[Family] = []
        self._late: list[Family] = []
        """Lists that were accepted although they have changed since."""
        self._announced: tuple[Family, ...] = ()
        self._hint = NO_HINT
        """The freshness of the pages of this list."""
        self._hints: dict[Family, CacheHint] = {}
        self._bytes: dict[Family, int] = dict.fromkeys(FAMILIES, 0)
        self.left_out: dict[Family, str] = {}
        """For each incomplete list: what is left out and why, for people."""

    @property
    def hint(self) -> CacheHint:
        """The freshness of all lists together."""
        return reduce(CacheHint.least, self._hints.values(), NO_HINT)

    def announce(self, features: Iterable[Feature], *, with_tools: bool = False) -> None:
        """Read all lists that the server has announced. `with_tools`: read its tools too, at last."""
        served = set(features)
        announced = [f for f in FAMILIES if ("resources" if f == "templates" else f) in served]
        self._announced = (*announced, "tools") if with_tools else tuple(announced)
        self._todo = list(self._announced)

    def withdraw_tools(self) -> None:
        """The server has no tools, so they are not read again."""
        self._announced = tuple(family for family in self._announced if family != "tools")

    def lists_changed(self, families: Iterable[Family]) -> PageRequest | None:
        """Read these lists again. Returns the next request if none is open."""
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
        self._read_count = 0
        self._too_large, self._is_full, self._lost = 0, False, []
        self._cursors = set()
        self._hint = NO_HINT
        return PageRequest(self._now, None)

    def changed_meanwhile(self) -> list[Family]:
        """The lists that changed while they were read. They count as reported afterwards."""
        late, self._late = self._late, []
        return late

    @property
    def family(self) -> Family | None:
        """The list that is being read."""
        return self._now

    def list_refused(self) -> PageRequest | None:
        """The server refused this list: what was known of it stays. Returns the next request."""
        return self.next_list()

    def abandon(self) -> None:
        """Stop reading; all lists keep what was known."""
        self._page = None
        self._todo.clear()
        self._late.clear()
        self.next_list()

    @property
    def is_busy(self) -> bool:
        """True while a page is only partly read; `read_on` reads its next slice."""
        return self._page is not None

    def page_received(self, result: RawJson) -> PageResult | None:
        """Read a page. Returns what follows, or None if it is longer than one slice."""
        family = self._now
        assert family is not None, "a page that nobody asked for"
        assert self._page is None, "a page in the middle of another"
        self._page = SlicedWork(self._read_entries(result, family))
        return self.read_on()

    def read_on(self) -> PageResult | None:
        """Read the next slice of that page. Returns what follows, or None if more slices are left."""
        page = self._page
        assert page is not None, "there is no page"
        if not page.run_slice():
            return None
        self._page = None
        return page.result

    def _read_entries(self, result: RawJson, family: Family) -> Steps[PageResult]:
        if result.count(b",") > MAX_COMMAS:
            return self.next_list(), f"answered {METHODS[family]} with more than {MAX_COMMAS:,} commas"
        page = yield from _read(result, family)
        if page is None:
            return self.next_list(), f"answered {METHODS[family]} without a list"
        offers, cursor, hint, lost, read_count = page
        self._read_count += read_count
        self._lost += lost
        yield from self._add(family, offers)
        yield len(offers) // 2
        self._hint = self._hint.least(hint)
        if family in self._todo:  # changed meanwhile: pages before and after the change may not fit together
            if self._again_times < MAX_AGAIN:
                return self._read_again(family), ""
            self._todo.remove(family)
            self._late.append(family)
        if cursor is None or self._is_full:
            return self._list_read(family)
        if len(cursor) > MAX_CURSOR_CHARS:
            longer = f"a cursor of its {family} is longer than {MAX_CURSOR_CHARS:,} characters"
            return self._list_read(family, f"{longer}; the rest is left out")
        endless = len(self._cursors) >= MAX_PAGES or self._read_count > MAX_OFFERS
        if (known := hash(cursor)) in self._cursors or endless:
            return self._list_read(family, f"its pages of {family} do not end; the rest is left out")
        self._cursors.add(known)
        return PageRequest(family, cursor), ""

    def _add(self, family: Family, offers: Iterable[tuple[str, RawJson]]) -> Steps[None]:
        """Keep these entries within the limits."""
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
        """The sentence on entries of this list that are over a limit; empty if none is."""
        sentences = []
        if self._too_large:
            entries = "1 entry" if self._too_large == 1 else f"{self._too_large} entries"
            are = "is" if self._too_large == 1 else "are"
            sentences.append(
                f"{entries} of its {family} {are} left out: larger than {MAX_ENTRY_BYTES // 1024} KiB each"
            )
        if schemaless := [name for name, member in self._lost if member == _OUTPUT_NAME]:
            whose = _some(schemaless, "tools")
            sentences.append(f"the output schema of {whose} is left out: agents cannot compile it")
        if others := [f"{name}.{member}" for name, member in self._lost if member != _OUTPUT_NAME]:
            sentences.append(f"of its {family}, {_some(others)} left out: agents cannot read what is there")
        if self._is_full:
            whole = f"its lists are larger than {MAX_CATALOG_BYTES // 1024**2} MiB together"
            sentences.append(f"{whole}: the rest of its {family} is left out after {self._found_entries}")
        return "; ".join(sentences)

    def named_offers(self, family: Literal["tools", "prompts"]) -> list[Offer]:
        """The offers in a list whose entries have names."""
        return [Offer(name, definition) for name, definition in self._offers[family]]

    def uri_offers(self, family: Literal["resources", "templates"]) -> list[ResourceOffer]:
        """The offers in a list whose entries have URIs."""
        return [ResourceOffer(uri, definition) for uri, definition in self._offers[family]]


def _some(names: list[str], what: str = "") -> str:
    """The first of these names, and how many more there are."""
    rest = len(names) - _MAX_NAMED
    more = f" and {rest} more {what}".rstrip() if rest > 0 else ""
    are = "" if what else " is" if len(names) == 1 else " are"
    return f"{', '.join(names[:_MAX_NAMED])}{more}{are}"


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


_OUTPUT: Final = b'"outputSchema"'
_OUTPUT_NAME: Final = "outputSchema"
_NAME_CHARS: Final = 64
"""The longest part of a name, or of a member, that is kept for people."""
_ENTRY_UNITS: Final = 4
"""The cost of reading one entry, plus one unit for this many bytes. See `SlicedWork`."""
_BYTES_OF_UNIT: Final = 512
_SCHEMA_BYTES_OF_UNIT: Final = 16
"""The same for an entry whose output schema is judged."""
_STEP_UNITS: Final = 1024
_LENIENT_UNITS: Final = 40
"""The cost of reading an entry that msgspec refuses."""

_Page = tuple[list[tuple[str, RawJson]], str | None, CacheHint, list[LostMember], int]
"""Names and entries, the next cursor, freshness, the members that are left out, and the number of all
entries.
"""


def _read(result: RawJson, family: Family) -> Steps[_Page | None]:
    """Read one page: entries, next cursor, freshness. Entries without a name are left out."""
    try:
        page = _list_result.decode(result)
        yield len(result) // _BYTES_OF_UNIT
        found = []
        lost: list[LostMember] = []
        cost_units = 0
        entries = getattr(page, _MEMBERS[family])
        for raw in entries:
            cost_units += _ENTRY_UNITS + len(raw) // _BYTES_OF_UNIT
            if cost_units >= _STEP_UNITS:
                yield cost_units
                cost_units = 0
            try:
                name = getattr(_named.decode(raw), _NAMES[family])
            except msgspec.ValidationError:
                continue
            if name:
                entry, units = _repaired(name, RawJson(bytes(raw)), family, lost)
                found.append((name, entry))
                cost_units += units
    except _UNREADABLE:
        return (yield from _read_leniently(result, family))
    if not bytes(page.ttlMs):
        return found, page.nextCursor, NO_HINT, lost, len(entries)
    # Read from what is decoded already: a second pass over a long page takes as long as the first.
    hint = b'{"ttlMs":%b,"cacheScope":%b}' % (bytes(page.ttlMs), bytes(page.cacheScope))
    return found, page.nextCursor, read_cache_hint(RawJson(hint)), lost, len(entries)


def _repaired(name: str, entry: RawJson, family: Family, lost: list[LostMember]) -> tuple[RawJson, int]:
    """Return the repaired entry, and what its output schema costs to judge. The members that it loses are
    added to `lost`.
    """
    if len(entry) > MAX_ENTRY_BYTES:
        return entry, 0  # left out anyway: nothing of it is repaired
    fit = repair_entry(entry, family)
    lost += [(_shown(name), _shown(member)) for member in lost_members(entry, fit)]
    if family != "tools" or not mentions(entry, _OUTPUT):
        return fit, 0
    return fit, len(entry) // _SCHEMA_BYTES_OF_UNIT


def _shown(name: str) -> str:
    """The begin of a name that a server has chosen, without anything that a terminal would obey."""
    return "".join(each if each.isprintable() else "?" for each in name[:_NAME_CHARS])


def _read_leniently(result: RawJson, family: Family) -> Steps[_Page | None]:
    """Read a page that msgspec refuses (lone surrogates, rule 16). It is cut, so every byte stays."""
    entries = elements(value_of(result, _MEMBERS[family]) or b"")
    if entries is None:
        return None
    found = []
    lost: list[LostMember] = []
    cost_units = 0
    for entry in entries:
        cost_units += _LENIENT_UNITS + len(entry) // _BYTES_OF_UNIT
        if cost_units >= _STEP_UNITS:
            yield cost_units
            cost_units = 0
        name = legible(_text(value_of(entry, _NAMES[family])) or "")
        if name:
            fit, units = _repaired(name, RawJson(entry), family, lost)
            found.append((name, fit))
            cost_units += units
    cursor = _text(value_of(result, "nextCursor"))
    return found, cursor, read_cache_hint(result), lost, len(entries)


def _text(raw: bytes | None) -> str | None:
    """A JSON string, lone surrogates included; None for any other value."""
    if raw is None or raw[:1] != b'"':
        return None
    try:
        text: str = json.loads(raw)
    except ValueError:
        return None
    return text


def legible(text: str) -> str:
    """The text without lone surrogates, which UTF-8 cannot carry."""
    return text.encode("utf-8", "replace").decode()
