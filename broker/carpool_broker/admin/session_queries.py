"""What a session sees, told to itself: `carpool/tools`, `carpool/resources`, `carpool/servers` and
`carpool/resolve`.

Owns the keys of these answers. A pure function of the session's view and of what the supervisor said of its
pools. Knows nothing of: other sessions, what is waited for (`session_view`).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from carpool_broker.core.configuration.session_views import FAILING, Outlook
from carpool_broker.core.model.session import Session
from carpool_broker.core.registry.builtin_tools import OURS
from carpool_broker.core.registry.resolve import HELD, kept_back
from carpool_broker.core.registry.view import Denied, Held, OwnTool, View, ViewResource, ViewTool
from carpool_protocol.ids import RawJson, ServerName
from carpool_protocol.wire.tool_names import Ambiguous, Unknown


def servers(outlook: Outlook, session: Session, view: View) -> list[dict[str, Any]]:
    """Every server of the session by name: `{name, state, why, tags, tools}`.

    `state` is that of `carpool status`, `why` says why it cannot be used, `tools` are qualified names.
    """
    found: dict[ServerName, dict[str, Any]] = {}
    for entry in view.scope.servers:
        pool = outlook.states.get(entry.key)
        state = "cold" if pool is None else pool.state
        why = pool.reason if pool is not None and pool.state in FAILING else ""
        found[entry.server] = _server(entry.server, state, why, list(entry.tags))
    for tool in view.tools:
        found[tool.server]["tools"].append(tool.qualified)
    for name, off in outlook.sources.disabled(session.source).items():
        found[name] = _server(name, "disabled", off.why)
    for name, (lame, why) in outlook.sources.lame(session.source).items():
        found.setdefault(name, _server(name, lame, why))
    rights, shown = view.scope.rights, {entry.server for entry in view.scope.servers}
    # Of those that are in no scope the tags are not known: rights by tag alone do not show them.
    return [found[name] for name in sorted(found) if name in shown or rights.see(name, ())]


class Refusal(NamedTuple):
    """There is such a tool, and this session may not have it."""

    slug: str
    detail: str
    server: ServerName


def is_unknown(view: View, name: str) -> bool:
    """Nobody has a tool of this name, as far as is known."""
    return isinstance(view.resolve(name), Unknown)


def meaning(outlook: Outlook, session: Session, view: View, name: str) -> dict[str, Any] | Refusal:
    """What `name` means: `{server, tool, name}`, else `{candidates, ambiguous}` (else they look alike)."""
    found = view.resolve(name)
    if isinstance(found, ViewTool):
        return {"server": found.server, "tool": found.tool, "name": found.qualified}
    if isinstance(found, OwnTool):
        return {"server": OURS, "tool": found.kind, "name": found.qualified}
    if isinstance(found, Ambiguous):
        return {"candidates": list(found.candidates), "ambiguous": True}
    refused = refusal(outlook, session, name, found)
    if refused is not None:
        return refused
    return {"candidates": list(found.suggestions) if isinstance(found, Unknown) else [], "ambiguous": False}


def refusal(outlook: Outlook, session: Session, name: str, found: object) -> Refusal | None:
    """Why the session may not have what `name` was found to mean; None: nothing keeps it back."""
    if isinstance(found, Denied):
        return Refusal("not_permitted", kept_back(found.profile), found.server)
    if isinstance(found, Held):
        return Refusal("quarantined", HELD[found.why], found.server)
    absent = (
        outlook.absent(session, name) or outlook.unprefixed(session) if isinstance(found, Unknown) else None
    )
    if absent is not None:
        server, slug, why = absent
        return Refusal(slug or "unknown_tool", why, server)
    return None


def described(view: View, tool: ViewTool, own: Mapping[str, RawJson]) -> dict[str, Any]:
    """A tool, as `carpool/tools` tells it. `own`: definitions as the servers wrote them."""
    definition: dict[str, Any] | None = None
    try:
        description = msgspec.json.decode(tool.definition, type=_Described).description
        definition = msgspec.json.decode(own[tool.tool], type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        description = ""
    return {
        "name": tool.qualified,
        "server": tool.server,
        "tool": tool.tool,
        "description": description,
        "aliases": view.resolver.aliases(tool.server, tool.tool),
        "definition": definition,
        "tags": _tags(view, tool.server, definition or {}),
    }


def owned(resource: ViewResource) -> dict[str, Any]:
    """A resource or template, as `carpool/resources` tells it: MCP's object, and `server`."""
    try:
        definition = msgspec.json.decode(resource.definition, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        definition = {"uri": resource.shown, "name": resource.shown}
    return {**definition, "server": resource.server}


def _tags(view: View, server: ServerName, definition: Mapping[str, Any]) -> list[str]:
    """Those of its server, then those that the tool itself says (docs/python.md)."""
    entry = view.scope.entry_of(server)
    meta = definition.get("_meta")
    own = meta.get("carpool/tags") if isinstance(meta, dict) else None
    said = [tag for tag in own if isinstance(tag, str)] if isinstance(own, list) else []
    return [*dict.fromkeys([*(entry.tags if entry is not None else ()), *said])]


class _Described(Struct):
    description: str = ""


def _server(name: ServerName, state: str, why: str, tags: list[str] | None = None) -> dict[str, Any]:
    return {"name": name, "state": state, "why": why, "tags": tags or [], "tools": []}
