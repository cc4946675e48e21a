"""The method `carpool/profiles`: how much of the servers' offers each profile permits.

Owns that page, `{"profiles": [...]}` (docs/json.md). It uses known lists only: a server without a known list
counts in `unknown`. Agents without a profile appear under an empty name if `max_tools` shortens their list. A
pattern that matches nothing in known lists is named, because it may be misspelt.

Knows nothing of: sessions, how the page is shown.
"""

from collections.abc import Mapping
from typing import Any

from carpool_broker.admin.methods import Methods
from carpool_broker.config.configuration import Configuration
from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.configuration.profiles import profile_scope
from carpool_broker.core.model.scope import Scope, ScopeEntry
from carpool_protocol.config.schema.capability import Capability, Kind
from carpool_protocol.config.schema.model import Config
from carpool_protocol.ids import ServerName
from carpool_protocol.link.messages import Catalog

OfferedItems = list[tuple[Kind, str]]


def register(methods: Methods, core: BrokerCore, configuration: Configuration) -> None:
    """Add `carpool/profiles` to the table."""
    methods.add_plain("carpool/profiles", lambda _: profile_page(core, configuration.config))


def profile_page(core: BrokerCore, config: Config) -> dict[str, Any]:
    """The page over all servers of all sessions, in any workspace."""
    entries: dict[ServerName, ScopeEntry] = {}
    known: dict[ServerName, Catalog] = {}
    for source in core.sources.sources.values():
        for entry in source.goal.scope.servers:
            twin = source.goal.twins.get(entry.key)
            keys = [entry.key, *([] if twin is None else [twin.key])]
            catalog = next((it for key in keys if (it := core.registry.known_catalog(key)) is not None), None)
            entries.setdefault(entry.server, entry)
            if catalog is not None:
                known.setdefault(entry.server, catalog)
    found = [_profile(config, name, entries, known) for name in ("", *config.profiles)]
    return {"profiles": [each for each in found if each["profile"] or each["left_out"]]}


def _profile(
    config: Config, name: str, entries: Mapping[ServerName, ScopeEntry], known: Mapping[ServerName, Catalog]
) -> dict[str, Any]:
    scope = profile_scope(config, name)
    seen = [each for each in entries.values() if scope.rights.sees_server(each.server, each.tags)]
    offered = {each.server: _offered(known[each.server]) for each in entries.values() if each.server in known}
    permitted = {each.server: _permitted(scope, each, offered.get(each.server, [])) for each in seen}
    return {
        "profile": name,
        "servers": sorted(each.server for each in seen),
        "unknown": sorted(each.server for each in seen if each.server not in known),
        "tools": _count("tool", permitted.values()),
        "of_tools": _count("tool", offered.values()),
        "prompts": _count("prompt", permitted.values()),
        "resources": _count("resource", permitted.values()),
        "left_out": _left_out(scope, seen, permitted),
        "idle": [
            it.text
            for it in (*scope.rights.allow, *scope.rights.deny)
            if _matches_nothing(it, entries, offered)
        ],
    }


def _offered(catalog: Catalog) -> OfferedItems:
    return [
        *(("tool", each.name) for each in catalog.tools),
        *(("prompt", each.name) for each in catalog.prompts),
        *(("resource", each.uri) for each in (*catalog.resources, *catalog.templates)),
    ]


def _permitted(scope: Scope, entry: ScopeEntry, offered: OfferedItems) -> OfferedItems:
    return [(kind, name) for kind, name in offered if scope.permits(kind, entry, name)]


def _count(kind: Kind, offers: Any) -> int:
    return sum(1 for each in offers for found, _ in each if found == kind)


def _left_out(scope: Scope, seen: list[ScopeEntry], permitted: Mapping[ServerName, OfferedItems]) -> int:
    """Number of tools that `max_tools` leaves out of the list."""
    tools = {each.server: _count("tool", [permitted[each.server]]) for each in seen}
    listed = sum(
        tools[each.server] if each.max_tools is None else min(each.max_tools, tools[each.server])
        for each in seen
    )
    listed = listed if scope.max_tools is None else min(scope.max_tools, listed)
    return sum(tools.values()) - listed


def _matches_nothing(
    pattern: Capability, entries: Mapping[ServerName, ScopeEntry], offered: Mapping[ServerName, OfferedItems]
) -> bool:
    """True if the pattern certainly covers nothing: every server it can concern has sent its lists.

    Patterns of resources never count, because a server may allow reading more than it lists.
    """
    about = [each for each in entries.values() if pattern.is_of(each.server, each.tags)]
    if not about:
        return pattern.server != "*" or pattern.tag is not None
    if pattern.kind in (None, "resource") or any(each.server not in offered for each in about):
        return False
    return not any(
        pattern.covers(kind, each.server, each.tags, name)
        for each in about
        for kind, name in offered[each.server]
    )
