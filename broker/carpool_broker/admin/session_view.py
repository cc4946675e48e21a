"""Queries of a session about its own view: `carpool/tools`, `resources`, `servers` and `resolve`.

Owns the keys of the answers and the choice of the view. Before an answer, servers that have not sent their
tools are asked for them, and the query waits. Agents may send these queries as well as operators
(`inbound.LOOKS`).

Knows nothing of: other sessions, how the supervisor answers operators.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import trio
from msgspec import Struct

from carpool_broker.admin.methods import ControlError, Methods
from carpool_broker.admin.supervisor_queries import SupervisorQueries
from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.configuration.session_views import FAILING_STATES, SessionViews
from carpool_broker.core.model.pagination import Listable
from carpool_broker.core.model.session import Session
from carpool_broker.core.registry.builtin_tools import CARPOOL_SERVER
from carpool_broker.core.registry.request_target import HELD_REASONS, denied_by, similar_names_text
from carpool_broker.core.registry.view import BuiltinTool, DeniedName, HeldByPin, View, ViewResource, ViewTool
from carpool_protocol.faults.fault_answers import TOOLS_CALL
from carpool_protocol.ids import PoolKey, ServerName, SessionId
from carpool_protocol.link.messages import DiscoverCatalog
from carpool_protocol.machine.slices import SLICE_UNITS
from carpool_protocol.wire.json_scan import read_despite_half_pairs
from carpool_protocol.wire.tool_name_resolver import AmbiguousName, NoSuchName

_L = TypeVar("_L", bound=Listable)


def server_rows(
    session_views: SessionViews, session: Session, view: View, away: Container[ServerName] = ()
) -> list[dict[str, Any]]:
    """Every server of the session by name: `{name, state, why, tags, tools}`.

    `state` is that of `carpool status`, `why` says why it cannot be used, `tools` are qualified names.
    `away`: servers whose supervisor is away.
    """
    found: dict[ServerName, dict[str, Any]] = {}
    for entry in view.scope.servers:
        pool = session_views.states.get(entry.key)
        state = pool.state if pool is not None else "away" if entry.server in away else "cold"
        why = pool.reason if pool is not None and pool.state in FAILING_STATES else ""
        found[entry.server] = _server(entry.server, state, why, list(entry.tags))
    for tool in view.tools:
        found[tool.server]["tools"].append(tool.qualified)
    for name, off in session_views.sources.disabled_servers(session.source).items():
        found[name] = _server(name, "disabled", off.why)
    for name, (lame, why) in session_views.sources.unrunnable(session.source).items():
        found.setdefault(name, _server(name, lame, why))
    rights, shown = view.scope.rights, {entry.server for entry in view.scope.servers}
    # The tags of servers in no scope are not known, so rights by tag alone do not show them.
    return [found[name] for name in sorted(found) if name in shown or rights.sees_server(name, ())]


class ToolRefusal(NamedTuple):
    """A tool that exists and that this session may not use."""

    slug: str
    detail: str
    server: ServerName


def is_unknown(view: View, name: str) -> bool:
    """True if no known tool has this name."""
    return isinstance(view.resolve(name), NoSuchName)


def resolve_tool(
    session_views: SessionViews, session: Session, view: View, name: str, similar: Callable[[], Sequence[str]]
) -> dict[str, Any] | ToolRefusal:
    """The tool with this name, as `{server, tool, name}`.

    If there is none: `{candidates, ambiguous}`, with the tools of that name (ambiguous) or of similar names,
    which `similar` returns.
    """
    found = view.resolve(name)
    if isinstance(found, ViewTool):
        return {"server": found.server, "tool": found.tool, "name": found.qualified}
    if isinstance(found, BuiltinTool):
        return {"server": CARPOOL_SERVER, "tool": found.kind, "name": found.qualified}
    if isinstance(found, AmbiguousName):
        return {"candidates": list(found.candidates), "ambiguous": True}
    refused = refusal(session_views, session, name, found)
    if refused is not None:
        return refused
    return {"candidates": list(similar()) if isinstance(found, NoSuchName) else [], "ambiguous": False}


def refusal(session_views: SessionViews, session: Session, name: str, found: object) -> ToolRefusal | None:
    """Why the session may not use the thing that `name` means; None: it may."""
    if isinstance(found, DeniedName):
        return ToolRefusal("not_permitted", denied_by(found.profile), found.server)
    if isinstance(found, HeldByPin):
        return ToolRefusal("quarantined", HELD_REASONS[found.why], found.server)
    absent = (
        session_views.absent_server(session, name) or session_views.unprefixed_server(session)
        if isinstance(found, NoSuchName)
        else None
    )
    if absent is not None:
        server, slug, why = absent
        return ToolRefusal(slug or "unknown_tool", why, server)
    return None


def described(view: View, tool: ViewTool) -> dict[str, Any]:
    """A tool in the form of `carpool/tools`, with the definition as its server wrote it."""
    definition: dict[str, Any] | None = None
    try:
        description = read_despite_half_pairs(_description, tool.definition).description
        definition = read_despite_half_pairs(_object, tool.own)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        description = ""
    return {
        "name": tool.qualified,
        "server": tool.server,
        "tool": tool.tool,
        "description": description,
        "aliases": view.resolver.aliases(tool.server, tool.tool),
        "definition": definition,
        "tags": _tool_tags(view, tool.server, definition or {}),
    }


def resource_row(resource: ViewResource) -> dict[str, Any]:
    """A resource or template in the form of `carpool/resources`: MCP's object, and `server`."""
    try:
        definition = read_despite_half_pairs(_object, resource.definition)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        definition = {"uri": resource.shown, "name": resource.shown}
    return {**definition, "server": resource.server}


def _tool_tags(view: View, server: ServerName, definition: Mapping[str, Any]) -> list[str]:
    """Tags of the server, followed by tags of the tool itself (docs/python.md)."""
    entry = view.scope.entry_of(server)
    meta = definition.get("_meta")
    own = meta.get("carpool/tags") if isinstance(meta, dict) else None
    tool_tags = [tag for tag in own if isinstance(tag, str)] if isinstance(own, list) else []
    return [*dict.fromkeys([*(entry.tags if entry is not None else ()), *tool_tags])]


_ROW_UNITS: Final = 100
"""The cost of one row, plus one unit for this many bytes. See `SlicedWork`."""
_BYTES_OF_UNIT: Final = 32


async def _in_slices(row_of: Callable[[_L], dict[str, Any]], entries: Sequence[_L]) -> list[msgspec.Raw]:
    """One row for each entry. Everything else goes on meanwhile: a list may have tens of thousands."""
    rows: list[msgspec.Raw] = []
    units = 0
    for entry in entries:
        rows.append(msgspec.Raw(msgspec.json.encode(row_of(entry))))
        units += _ROW_UNITS + entry.max_bytes // _BYTES_OF_UNIT
        if units >= SLICE_UNITS:
            await trio.lowlevel.checkpoint()
            units = 0
    return rows


class _Described(Struct):
    description: str = ""


_description = msgspec.json.Decoder(_Described).decode
_object = msgspec.json.Decoder(dict[str, Any]).decode


def _server(name: ServerName, state: str, why: str, tags: list[str] | None = None) -> dict[str, Any]:
    return {"name": name, "state": state, "why": why, "tags": tags or [], "tools": []}


class ToolsParams(Struct):
    """Params of `carpool/tools`."""

    name: str | None = None
    offline: bool = False
    """True: only what is known; nothing is started or waited for."""


class ResolveParams(Struct):
    """Params of `carpool/resolve`."""

    name: str


class SessionQueries:
    """Answers the queries of sessions about their own view."""

    def __init__(self, core: BrokerCore, inquiries: SupervisorQueries) -> None:
        self._core = core
        self._supervisor_queries = inquiries

    def register(self, methods: Methods) -> None:
        """Add these queries to the table."""
        methods.add("carpool/tools", ToolsParams, self.tools)
        methods.add("carpool/resolve", ResolveParams, self.resolve)
        methods.add_plain("carpool/resources", self.resources)
        methods.add_plain("carpool/servers", self.servers)

    def servers(self, session: SessionId) -> dict[str, Any]:
        """`{"servers"}`, as `server_rows` returns them."""
        own_session, view = self._core.sessions[session], self._core.view_of(session)
        links, linked = self._core.links, self._supervisor_queries.supervisors()
        names = (entry.server for entry in view.scope.servers)
        away = {name for name in names if links.owner_of_server(name) not in linked}
        return {"servers": server_rows(self._core.session_views, own_session, view, away)}

    async def tools(self, session: SessionId, params: ToolsParams) -> dict[str, Any]:
        """`{"tools"}`: all, or the one with the given name. Raises `ControlError` if there is none."""
        view = self._known_view(session, params) if params.offline else await self._complete_view(session)
        if params.name is None:
            return {"tools": await _in_slices(lambda tool: described(view, tool), view.tools)}
        found = view.resolve(params.name)
        if isinstance(found, ViewTool):
            return {"tools": [described(view, found)]}
        refused = refusal(self._core.session_views, self._core.sessions[session], params.name, found)
        if refused is not None:
            raise ControlError(*refused)
        if isinstance(found, AmbiguousName):
            names = ", ".join(found.candidates)
            raise ControlError("unknown_tool", f"More than one server has it; say which: {names}.")
        similar = self._similar_names(session, view, params.name) if isinstance(found, NoSuchName) else ()
        raise ControlError("unknown_tool", similar_names_text(similar))

    async def resources(self, session: SessionId) -> dict[str, Any]:
        """`{"resources", "templates"}`, as `resource_row` returns them."""
        view = await self._complete_view(session)
        return {
            "resources": await _in_slices(resource_row, view.resources),
            "templates": await _in_slices(resource_row, view.templates),
        }

    async def resolve(self, session: SessionId, params: ResolveParams) -> dict[str, Any]:
        """The result of `resolve_tool`. Raises `ControlError` if the session may not use the tool."""
        view = self._core.view_of(session)
        if is_unknown(view, params.name):  # it may belong to a server that has not sent its tools
            view = await self._complete_view(session)
        similar = partial(self._similar_names, session, view, params.name)
        own_session = self._core.sessions[session]
        found = resolve_tool(self._core.session_views, own_session, view, params.name, similar)
        if isinstance(found, ToolRefusal):
            raise ControlError(*found)
        return found

    def _similar_names(self, session: SessionId, view: View, name: str) -> Sequence[str]:
        """Names of tools that are similar to this one; none if many were searched in this second."""
        now = self._core.call_table.now
        if not self._core.requests.guess_budget.take(self._core.sessions[session], now):
            return ()
        return view.similar_names(TOOLS_CALL, name)

    def _known_view(self, session: SessionId, params: ToolsParams) -> View:
        """The present view. The view of plain agents if only that one knows the name (rule 12)."""
        core = self._core
        view = core.view_of(session)
        plain = core.registry.view(core.sources.scope(core.sessions[session].source))
        found_there = params.name is not None and isinstance(plain.resolve(params.name), ViewTool)
        if found_there and not isinstance(view.resolve(params.name or ""), ViewTool):
            return plain
        return view

    async def _complete_view(self, session: SessionId) -> View:
        """The session's view once every server has sent its tools, or the time for that is over."""
        with trio.move_on_after(self._core.requests.list_wait_s):
            asked: set[PoolKey] = set()
            while True:
                view = self._core.view_of(session)
                missing = {key for key in view.unknown_pools if not self._core.session_views.is_settled(key)}
                if not missing:
                    break
                # A request without a linked supervisor is lost, and none is sent twice.
                due = {key for key in missing - asked if self._core.links.is_served(key)}
                for key in sorted(due):
                    self._supervisor_queries.send(DiscoverCatalog(key))
                asked |= due
                await trio.sleep(0.02)
        return self._core.view_of(session)
