"""The catalog of one pool, in the form that agents see.

Owns the latest catalog of a pool and what was rewritten of it for views: views of many scopes share the
bytes, and a new catalog keeps what has not changed. Of two offers with one name (or URI) the first is
listed. Refuses to know: which names were given and why (`names`, `uris`), pages, which servers are away.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from carpool_broker.core.model.pagination import FAMILIES, Family
from carpool_broker.core.model.scope import ScopeEntry
from carpool_broker.core.registry.approvals import INSTRUCTIONS
from carpool_protocol.ids import PoolKey, RawJson, ServerName
from carpool_protocol.link.messages import Catalog
from carpool_protocol.machine import slices
from carpool_protocol.wire.content import with_uri
from carpool_protocol.wire.jsonrpc import quote
from carpool_protocol.wire.params import rewrite_tool

_RewriteKey = tuple[ServerName, bool, str, str]
"""How a name is shown: the server, whether a description prefix is added, the own name, the qualified name.
"""

_ADDED_BYTES: Final = len('"name":"","description":"",')
"""The bytes by which a tool without a name and a description grows, beside these two."""

_URI_KEYS: Final[dict[Family, str]] = {"resources": "uri", "templates": "uriTemplate"}


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


class ViewPrompt(Struct, frozen=True):
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


class ViewResource(Struct, frozen=True):
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

    __slots__ = ("catalog", "offers", "shown_prompts", "shown_resources", "shown_tools")

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.offers: Mapping[Family, dict[str, RawJson]] = {family: {} for family in FAMILIES}
        """By family: the server's own name or URI to the definition."""
        for tool in catalog.tools:
            self.offers["tools"].setdefault(tool.name, tool.definition)
        for prompt in catalog.prompts:
            self.offers["prompts"].setdefault(prompt.name, prompt.definition)
        for resource in catalog.resources:
            self.offers["resources"].setdefault(resource.uri, resource.definition)
        for template in catalog.templates:
            self.offers["templates"].setdefault(template.uri, template.definition)
        self.shown_tools: dict[_RewriteKey, ViewTool] = {}
        self.shown_prompts: dict[_RewriteKey, ViewPrompt] = {}
        self.shown_resources: dict[tuple[Family, ServerName, str, str], ViewResource] = {}

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
        step = slices.STEP_ENTRIES
        for at, (way, tool) in enumerate(tuple(former.shown_tools.items()), 1):
            if not at % step:
                yield step
            if mine["tools"].get(tool.tool) == theirs["tools"][tool.tool]:
                self.shown_tools[way] = tool
        for way, prompt in former.shown_prompts.items():
            if mine["prompts"].get(prompt.prompt) == theirs["prompts"][prompt.prompt]:
                self.shown_prompts[way] = prompt
        for where, resource in former.shown_resources.items():
            if mine[where[0]].get(resource.uri) == theirs[where[0]][resource.uri]:
                self.shown_resources[where] = resource
        changed = {family for family in FAMILIES if mine[family] != theirs[family]}
        if self.serves_resources != former.serves_resources:
            changed.add("resources")
        return frozenset(changed)

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
