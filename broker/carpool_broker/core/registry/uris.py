"""Which server a URI belongs to within one scope, and how a URI is written for its agents.

URIs go through as servers write them. Where two servers of a scope list one URI (in any spelling of it), both
are rewritten: `carpool+SERVER+file:///x`. So is each URI without a scheme, which is none (RFC 3986) and takes
the whole list from agents on the Python SDK 1.x: `carpool+SERVER:x`. So is each template whose scheme another
server has too: nothing that is not listed is given to one of several servers by a guess. That is a legal URI
(RFC 3986 section 3.1: `+`, `-`, `.` may stand in a scheme), keeps all behind it, says the server, survives
parsers that fold schemes to lower case (so an upper-case letter of a server's name is written `.` + letter,
an underscore `..`), and is taken back by cutting it off. A server's URI that reads like a rewritten one is
rewritten too, so the spelling is ours alone.

Invariants: every listed URI is listed once and routes to the server that lists it, under the URI it listed;
a rewritten URI routes to the server it names, listed or not; `route(outward(key, uri))` leads back to (key,
uri) for a server that has a rewritten URI or shares a scheme. The order of servers decides nothing.

Knows nothing of: catalogs, who is away, JSON, rights (docs/decisions/0028).
"""

import re
from collections.abc import Callable, Iterator, Sequence, Set
from functools import partial
from typing import Final, Literal

from msgspec import Struct

from carpool_broker.core.registry.listed_uris import NOTHING_LISTED, ListedUris
from carpool_protocol.ids import PoolKey, ServerName
from carpool_protocol.machine import slices
from carpool_protocol.wire.uri_normalization import cost_units, normalize, scheme

MAX_ANCESTORS: Final = 64

_has_scheme = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:").match
_rewritten = re.compile(r"carpool\+([a-z0-9.-]+)([+:])", re.IGNORECASE).match
_escaped = re.compile(r"[A-Z_]")


class ServerUris(Struct, frozen=True):
    """What one server lists: the URIs of its resources and its templates, in the order of lists."""

    server: ServerName
    key: PoolKey
    uris: tuple[str, ...]
    templates: tuple[str, ...]
    serves: bool
    """True if it serves resources; a server can list none and read many."""
    denied: tuple[str, ...] = ()
    """URIs and templates that it lists and that are kept back. No other server answers for them."""
    normal: Callable[[str], str] = normalize
    """The normal form of each of these."""
    reads_all: bool = True
    """True if nothing of it is kept back, so that nobody asks for its `listed_uris`."""


class UriRoute(Struct, frozen=True, gc=False):
    """The server that a URI leads to."""

    key: PoolKey
    server: ServerName
    uri: str
    """The URI as the server writes it."""
    by: Literal["listed", "named", "scheme", "only"]
    """The reason: the URI is listed as it is; it names the server; no other server has its scheme; or no
    other server serves resources. Only the first two stay true whatever servers of unknown catalog list
    later.
    """


class UnroutableUri(Struct, frozen=True):
    """No server is known to have the URI, or several servers may have it."""

    candidates: tuple[ServerName, ...]
    """The servers that list it; else those that have its scheme; else all that serve resources.
    `rewritten_uri` gives the URI for one of them.
    """
    collides: bool = False
    """True if all candidates list it."""


class UriTable:
    """The URIs of one scope. Immutable to its users. A listed URI costs one dictionary entry, two more where
    several servers have its scheme.
    """

    __slots__ = (
        "_by_scheme",
        "_by_server",
        "_denied",
        "_indexes",
        "_listing",
        "_named",
        "_rewriting",
        "_serving",
        "_templates",
        "_uris",
        "agent_templates",
        "agent_uris",
    )

    def __init__(self, listed: Sequence[ServerUris]) -> None:
        """A table without URIs. See `build`."""
        self._named = {encode_server(it.server): it for it in listed}
        self._by_server = {it.server: it for it in listed}
        self._indexes: dict[ServerName, ListedUris] = {}
        self._serving = tuple(it for it in listed if it.serves)
        self._denied: dict[str, ServerName] = {}
        self._by_scheme: dict[str, list[ServerUris]] = {}
        """By scheme: the servers that list a URI or a template of it."""
        self._listing: dict[str, list[ServerUris]] = {}
        """By normal form, for URIs whose scheme several servers have: the servers that list the URI."""
        self._uris: dict[str, UriRoute] = {}
        self._templates: dict[str, UriRoute] = {}
        """The routes of templates, by the spelling that agents see."""
        self.agent_uris: dict[tuple[ServerName, str], str] = {}
        self.agent_templates: dict[tuple[ServerName, str], str] = {}
        """The rewritten templates: (server, its own spelling) to the spelling that agents see."""
        self._rewriting: dict[PoolKey, ServerName] = {}

    @classmethod
    def build(cls, listed: Sequence[ServerUris]) -> "slices.Steps[UriTable]":
        """Build the table. `listed` has all servers of a scope by name, also those that are away or have
        told nothing yet.
        """
        table = cls(listed)

        def add_denied(it: ServerUris, uri: str) -> int:
            table._denied[it.normal(uri)] = it.server
            return cost_units(uri)

        for it in reversed(listed):
            yield from slices.handle_each(it.denied, partial(add_denied, it))
        shared = yield from table._find_listing(listed)
        for it in listed:
            yield from table._add_uris(it, shared)
        sharing = {it.server for name in shared for it in table._by_scheme[name]}
        for pairs in slices.batched((*table.agent_uris, *table.agent_templates)):
            sharing.update(server for server, _ in pairs)
            yield len(pairs) // 8
        table._rewriting = {it.key: it.server for it in reversed(listed) if it.server in sharing}
        for it in listed:
            if not it.reads_all:
                table._indexes[it.server] = yield from ListedUris.build(it.uris, it.templates, it.normal)
        return table

    def _find_listing(self, listed: Sequence[ServerUris]) -> slices.Steps[Set[str]]:
        """Fill `_by_scheme` and `_listing`. Returns the schemes that several servers have."""
        for it in listed:
            schemes: dict[str, None] = {}
            for some in slices.batched(it.uris):
                schemes.update(dict.fromkeys(map(scheme, some)))
                yield len(some) // 2
            for some in slices.batched(it.templates):
                schemes.update((found, None) for each in some if (found := scheme(each)))
                yield len(some) // 2
            for each in schemes:
                self._by_scheme.setdefault(each, []).append(it)
        shared = {name for name, several in self._by_scheme.items() if len(several) > 1}

        def add_listing(it: ServerUris, uri: str) -> int:
            if scheme(uri) not in shared:
                return 1
            listing = self._listing.setdefault(it.normal(uri), [])
            if not listing or listing[-1] is not it:
                listing.append(it)
            return 1 + cost_units(uri)

        for it in listed if shared else ():
            yield from slices.handle_each(it.uris, partial(add_listing, it))
        return shared

    def _add_uris(self, it: ServerUris, shared: Set[str]) -> slices.Steps[None]:
        for some in slices.batched(it.uris):
            for uri in some:
                shown = uri
                collides = scheme(uri) in shared and len(self._listing[it.normal(uri)]) > 1
                if collides or self._reads_rewritten(uri) or not _has_scheme(uri):
                    shown = self.agent_uris[it.server, uri] = rewritten_uri(it.server, uri)
                self._uris[shown] = UriRoute(it.key, it.server, uri, "listed")
            yield 3 * len(some)
        for some in slices.batched(it.templates):
            for template in some:
                shown = template
                found = scheme(template)
                sharing = self._by_scheme[found] if found else self._serving
                if len(sharing) > 1 or self._reads_rewritten(template):
                    shown = self.agent_templates[it.server, template] = rewritten_uri(it.server, template)
                self._templates[shown] = UriRoute(it.key, it.server, template, "listed")
            yield 3 * len(some)

    def _reads_rewritten(self, uri: str) -> bool:
        found = _rewritten(uri)
        return found is not None and found[1].lower() in self._named

    # --- in ------------------------------------------------------------------------------------------------

    def route(self, uri: str) -> UriRoute | UnroutableUri:
        """Return the server that `uri`, as an agent writes it, belongs to."""
        found = self._uris.get(uri)
        return found if found is not None else self._route_unlisted(uri)

    def denied_server(self, uri: str) -> ServerName | None:
        """Return the server that lists this URI or template and keeps it back, if no other
        server lists it.
        """
        is_listed = uri in self._uris or uri in self._templates
        return None if is_listed or not self._denied else self._denied.get(normalize(uri))

    def listed_uris(self, server: ServerName) -> ListedUris:
        """Return what this server lists; empty if it is not seen or has told nothing yet."""
        found = self._indexes.get(server)
        if found is None:
            it = self._by_server.get(server)
            found = NOTHING_LISTED
            if it is not None:
                found = slices.run_all_slices(ListedUris.build(it.uris, it.templates, it.normal))
            self._indexes[server] = found
        return found

    def route_template(self, template: str) -> UriRoute | UnroutableUri:
        """Return the same for a template, as in the reference of a completion."""
        found = self._templates.get(template)
        return found if found is not None else self.route(template)

    def _route_unlisted(self, uri: str) -> UriRoute | UnroutableUri:
        named = _rewritten(uri)
        if named is not None and (it := self._named.get(named[1].lower())) is not None:
            return UriRoute(it.key, it.server, uri[named.end() :], "named")
        normal = normalize(uri)
        having = self._by_scheme.get(scheme(normal), [])
        if len(having) == 1:
            return UriRoute(having[0].key, having[0].server, uri, "scheme")
        if not having and len(self._serving) == 1:
            return UriRoute(self._serving[0].key, self._serving[0].server, uri, "only")
        listing = self._listing.get(normal, [])
        if len(listing) > 1:
            return UnroutableUri(tuple(it.server for it in listing), collides=True)
        return UnroutableUri(tuple(it.server for it in having or self._serving))

    # --- out -----------------------------------------------------------------------------------------------

    @property
    def rewritten_pools(self) -> Set[PoolKey]:
        """The pools whose URIs must pass through `agent_uri`."""
        return self._rewriting.keys()

    def agent_uri(self, key: PoolKey, uri: str) -> str:
        """Return `uri` (or a template) from the server of this pool as agents write it."""
        server = self._rewriting.get(key)
        if server is None:
            return uri
        shown = self.agent_uris.get((server, uri)) or self.agent_templates.get((server, uri))
        if shown is not None:
            return shown
        back = self.route_template(uri)
        leads_back = isinstance(back, UriRoute) and back.server == server and back.uri == uri
        return uri if leads_back else rewritten_uri(server, uri)


def encode_server(server: str) -> str:
    """Return a server's name as it stands in a scheme. No two names are alike there, also after a change of
    case.
    """
    return _escaped.sub(lambda found: "." + ("." if found[0] == "_" else found[0].lower()), server)


def rewritten_uri(server: str, uri: str) -> str:
    """Return `uri` (or a template) of this server so that it names the server."""
    return f"carpool+{encode_server(server)}{'+' if _has_scheme(uri) else ':'}{uri}"


def parent_uris(uri: str) -> Iterator[str]:
    """Return the URIs that `uri` can be a sub-resource of: its beginnings up to a path boundary, the longest
    first. `file:

    /a/b` gives `file:

    /a/`, `file:

    /a`, `file:

    /`, `file:

    `, `file:/`; not `file:`, which has no path.
    """
    end = len(uri)
    for _ in range(MAX_ANCESTORS):
        end = max(uri.rfind("/", 0, end), uri.rfind("?", 0, end), uri.rfind("#", 0, end))
        if end <= 0:
            return
        if uri[end] == "/" and end + 1 < len(uri):
            yield uri[: end + 1]
        if uri[end - 1] not in ":/":
            yield uri[:end]
