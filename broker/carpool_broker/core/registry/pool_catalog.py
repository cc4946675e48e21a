"""The catalog of one pool, in the form that agents see.

Owns the latest catalog of a pool and what was rewritten of it for views: views of many scopes share the
bytes, and a new catalog keeps what has not changed. Of two offers with one name (or URI) the first is
listed. Refuses to know: which names were given and why (`names`, `uris`), pages, which servers are away.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from carpool_broker.core.model.pagination import FAMILIES, Family
from carpool_broker.core.model.scope import ScopeEntry
from carpool_broker.core.registry.approvals import INSTRUCTIONS
from carpool_protocol.ids import PoolKey, RawJson, ServerName
from carpool_protocol.link.messages import Catalog, Offer, ResourceOffer, ToolOffer
from carpool_protocol.machine import slices
from carpool_protocol.wire.content import with_uri
from carpool_protocol.wire.jsonrpc import quote
from carpool_protocol.wire.params import rewrite_tool
from carpool_protocol.wire.uri_normalization import normalize

_RewriteKey = tuple[ServerName, bool, str, str]
"""How a name is shown: the server, whether a description prefix is added, the own name, the qualified name.
"""

_ADDED_BYTES: Final = len('"name":"","description":"",')
"""The bytes by which a tool without a name and a description grows, beside these two."""

_URI_KEYS: Final[dict[Family, str]] = {"resources": "uri", "templates": "uriTemplate"}


_ANNOTATION: Final = b'"x-mcp-header"'
MAX_ANNOTATED_BYTES: Final = 64 * 1024
"""A longer tool counts as one without annotations, because all clients of the HTTP door would wait for it."""


class ViewTool(Struct, frozen=True, gc=False):
    """One tool as the agents of a scope see it. It is rewritten only when a page with it is requested,
    because a list may have tens of thousands.
    """

    qualified: str
    server: ServerName
    tool: str
    """The server's own name for it."""
    key: PoolKey
    own: RawJson
    """The whole tool object, as the server wrote it."""
    description_prefix: str = ""
    """The beginning of its description."""

    @property
    def definition(self) -> RawJson:
        """The whole tool object, with the qualified name in place of the server's."""
        if self.qualified == self.tool and not self.description_prefix:
            return self.own
        return rewrite_tool(self.own, name=self.qualified, description_prefix=self.description_prefix)

    @property
    def is_annotated(self) -> bool:
        """True if HTTP clients may tell some of its arguments in headers (MCP 2026-07-28, basic/transports,
        "Custom headers from tool parameters").
        """
        return len(self.own) <= MAX_ANNOTATED_BYTES and self.own.find(_ANNOTATION) >= 0

    @property
    def fingerprint(self) -> object:
        """See `Entry`."""
        return self.qualified, self.description_prefix, self.own

    @property
    def max_bytes(self) -> int:
        """See `Entry`."""
        return len(self.own) + len(self.qualified) + len(self.description_prefix) + _ADDED_BYTES


class UnverifiedTool(ViewTool, frozen=True, gc=False):
    """A tool of a pinned server that has not told its catalog itself. It is not called before that."""


def as_unverified(tool: ViewTool) -> UnverifiedTool:
    """Return the same tool, of a server that has not told its catalog."""
    return UnverifiedTool(*msgspec.structs.astuple(tool))


class ViewPrompt(Struct, frozen=True, gc=False):
    """One prompt as the agents of a scope see it."""

    qualified: str
    server: ServerName
    prompt: str
    """The server's own name for it."""
    key: PoolKey
    definition: RawJson
    """The whole prompt object, with the qualified name in place of the server's."""

    @property
    def fingerprint(self) -> object:
        """See `Entry`."""
        return self.definition

    @property
    def max_bytes(self) -> int:
        """See `Entry`."""
        return len(self.definition)


class ViewResource(Struct, frozen=True, gc=False):
    """One resource, or one resource template, as the agents of a scope see it."""

    shown: str
    """The URI or URI template that agents see."""
    server: ServerName
    uri: str
    """The server's own spelling. It is the same one, except where it collides with another server's."""
    key: PoolKey
    definition: RawJson
    """The whole object; byte for byte the server's own, except where its URI collides."""

    @property
    def fingerprint(self) -> object:
        """See `Entry`."""
        return self.definition

    @property
    def max_bytes(self) -> int:
        """See `Entry`."""
        return len(self.definition)


class PoolCatalog:
    """The catalog of one pool, and its rewritten offers."""

    __slots__ = ("catalog", "digests", "normals", "offers", "shown_prompts", "shown_resources", "shown_tools")

    def __init__(self, catalog: Catalog) -> None:
        """The catalog without its offers. See `build`."""
        self.catalog = catalog
        self.offers: Mapping[Family, dict[str, RawJson]] = {family: {} for family in FAMILIES}
        """By family: the server's own name or URI to the definition."""
        self.normals: dict[str, str] = {}
        """The normal forms of URIs and templates that differ from them. Each is made when it is first asked
        for.
        """
        self.digests: dict[str, str] = {}
        """The digests that pins compare, by name in `pinned`. Each is made when it is first asked for."""
        self.shown_tools: dict[_RewriteKey, ViewTool] = {}
        self.shown_prompts: dict[_RewriteKey, ViewPrompt] = {}
        self.shown_resources: dict[tuple[Family, ServerName, str, str], ViewResource] = {}

    @classmethod
    def build(cls, catalog: Catalog) -> "slices.Steps[PoolCatalog]":
        """Take a catalog over."""
        made = cls(catalog)
        yield from made._add("tools", catalog.tools)
        yield from made._add("prompts", catalog.prompts)
        yield from made._add("resources", catalog.resources)
        yield from made._add("templates", catalog.templates)
        return made

    def _add(self, family: Family, listed: Sequence[Offer | ToolOffer | ResourceOffer]) -> slices.Steps[None]:
        offers = self.offers[family]
        for some in slices.batched(listed):
            for it in some:
                offers.setdefault(it.uri if isinstance(it, ResourceOffer) else it.name, it.definition)
            yield len(some) // 2

    def normal_uri(self, uri: str) -> str:
        """Return the normal form of a URI or template of this list. It is made once for all scopes."""
        found = self.normals.get(uri)
        if found is None:
            found = normalize(uri)
            if found is not uri:
                self.normals[uri] = found
        return found

    @property
    def pinned(self) -> Mapping[str, RawJson]:
        """The offers that are approved or held if the server is pinned: tools, and instructions."""
        said = self.catalog.instructions
        if not said.strip():
            return self.offers["tools"]
        return {**self.offers["tools"], INSTRUCTIONS: quote(said)}

    def reuse_from(self, former: "PoolCatalog") -> slices.Steps[frozenset[Family]]:
        """Take over what was rewritten from definitions that are still the same. Returns the families that
        changed.
        """
        mine, theirs = self.offers, former.offers
        for tools in slices.batched(tuple(former.shown_tools.items())):
            for way, tool in tools:
                if mine["tools"].get(tool.tool) == theirs["tools"][tool.tool]:
                    self.shown_tools[way] = tool
            yield len(tools)
        for prompts in slices.batched(tuple(former.shown_prompts.items())):
            for way, prompt in prompts:
                if mine["prompts"].get(prompt.prompt) == theirs["prompts"][prompt.prompt]:
                    self.shown_prompts[way] = prompt
            yield len(prompts)
        for resources in slices.batched(tuple(former.shown_resources.items())):
            for where, resource in resources:
                if mine[where[0]].get(resource.uri) == theirs[where[0]][resource.uri]:
                    self.shown_resources[where] = resource
            yield len(resources)
        yield from self._keep_forms(former)
        changed = {family for family in FAMILIES if mine[family] != theirs[family]}
        if self.serves_resources != former.serves_resources:
            changed.add("resources")
        return frozenset(changed)

    def _keep_forms(self, former: "PoolCatalog") -> slices.Steps[None]:
        mine, theirs = self.offers["tools"], former.offers["tools"]
        for digests in slices.batched(tuple(former.digests.items())):
            for name, digest in digests:
                if name in mine and mine[name] == theirs.get(name):
                    self.digests[name] = digest
            yield len(digests)
        for normals in slices.batched(tuple(former.normals.items())):
            for uri, normal in normals:
                if uri in self.offers["resources"] or uri in self.offers["templates"]:
                    self.normals[uri] = normal
            yield len(normals)

    @property
    def serves_resources(self) -> bool:
        """True if reading from this server makes sense, even if it lists nothing."""
        return bool(
            "resources" in self.catalog.features or self.offers["resources"] or self.offers["templates"]
        )

    def view_tool(self, entry: ScopeEntry, name: str, qualified: str) -> ViewTool:
        """Return the tool `name` as a scope with this entry sees it."""
        way = (entry.server, entry.description_prefix, name, qualified)
        found = self.shown_tools.get(way)
        if found is None:
            prefix = f"[{entry.server}] " if entry.description_prefix else ""
            own = self.offers["tools"][name]
            found = self.shown_tools[way] = ViewTool(qualified, entry.server, name, entry.key, own, prefix)
        return found

    def view_prompt(self, entry: ScopeEntry, name: str, qualified: str) -> ViewPrompt:
        """Return the prompt `name` as a scope with this entry sees it."""
        way = (entry.server, entry.description_prefix, name, qualified)
        found = self.shown_prompts.get(way)
        if found is None:
            definition = _renamed(self.offers["prompts"][name], entry, name, qualified)
            found = self.shown_prompts[way] = ViewPrompt(qualified, entry.server, name, entry.key, definition)
        return found

    def view_resource(self, family: Family, entry: ScopeEntry, uri: str, shown: str) -> ViewResource:
        """Return the resource or template `uri` as a scope with this entry sees it, under the URI `shown`."""
        where = (family, entry.server, uri, shown)
        found = self.shown_resources.get(where)
        if found is None:
            definition = self.offers[family][uri]
            if shown != uri:
                definition = with_uri(definition, _URI_KEYS[family], shown)
            found = self.shown_resources[where] = ViewResource(
                shown, entry.server, uri, entry.key, definition
            )
        return found


def _renamed(definition: RawJson, entry: ScopeEntry, name: str, qualified: str) -> RawJson:
    description_prefix = f"[{entry.server}] " if entry.description_prefix else ""
    if qualified == name and not description_prefix:
        return definition
    return rewrite_tool(definition, name=qualified, description_prefix=description_prefix)
