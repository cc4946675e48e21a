"""What a session may ask about its own view: `carpool/tools`, `carpool/resources`, `carpool/resolve`,
`carpool/servers`.

Owns what is waited for before such an answer (servers that have not told their tools are asked to), and which
view it is of. Agents may ask too, not operators only (`inbound.LOOKS`).

Knows nothing of: the keys of the answers (`session_queries`), how the supervisor answers operators.
"""

from typing import Any

import trio
from msgspec import Struct

from carpool_broker.admin import session_queries
from carpool_broker.admin.errors import ControlError
from carpool_broker.admin.supervisor_queries import Inquiries
from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.registry.view import View, ViewTool
from carpool_protocol.ids import PoolKey, SessionId
from carpool_protocol.link.messages import Discover
from carpool_protocol.wire.tool_names import Ambiguous


class ToolsParams(Struct):
    """Of `carpool/tools`."""

    name: str | None = None
    offline: bool = False
    """Only what is known: nothing is started or waited for."""


class ResolveParams(Struct):
    """Of `carpool/resolve`."""

    name: str


class Looking:
    """Answers what sessions ask about what they see."""

    def __init__(self, core: BrokerCore, inquiries: Inquiries) -> None:
        self._core = core
        self._inquiries = inquiries

    def servers(self, session: SessionId) -> dict[str, Any]:
        """`{"servers"}`: see `session_queries.servers`."""
        mine, view = self._core.sessions[session], self._core.view_of(session)
        return {"servers": session_queries.servers(self._core.outlook, mine, view)}

    async def tools(self, session: SessionId, params: ToolsParams) -> dict[str, Any]:
        """`{"tools"}`: all, or the one that the name means. Raises `ControlError` where it means none."""
        view = self._known_view(session, params) if params.offline else await self._settled_view(session)
        own = self._core.registry.own_tools(view.scope)
        if params.name is None:
            return {"tools": [session_queries.described(view, tool, own[tool.key]) for tool in view.tools]}
        found = view.resolve(params.name)
        if isinstance(found, ViewTool):
            return {"tools": [session_queries.described(view, found, own[found.key])]}
        refused = session_queries.refusal(
            self._core.outlook, self._core.sessions[session], params.name, found
        )
        if refused is not None:
            raise ControlError(*refused)
        if isinstance(found, Ambiguous):
            names = ", ".join(found.candidates)
            raise ControlError("unknown_tool", f"More than one server has it; say which: {names}.")
        suggestions = getattr(found, "suggestions", ())
        raise ControlError("unknown_tool", f"Did you mean {', '.join(suggestions)}?" if suggestions else "")

    async def resources(self, session: SessionId) -> dict[str, Any]:
        """`{"resources", "templates"}`: see `session_queries.owned`."""
        view = await self._settled_view(session)
        return {
            "resources": list(map(session_queries.owned, view.resources)),
            "templates": list(map(session_queries.owned, view.templates)),
        }

    async def resolve(self, session: SessionId, params: ResolveParams) -> dict[str, Any]:
        """See `session_queries.meaning`. Raises `ControlError` where the session may not have the tool."""
        view = self._core.view_of(session)
        if session_queries.is_unknown(view, params.name):  # perhaps of a server that has not told its tools
            view = await self._settled_view(session)
        found = session_queries.meaning(self._core.outlook, self._core.sessions[session], view, params.name)
        if isinstance(found, session_queries.Refusal):
            raise ControlError(*found)
        return found

    def _known_view(self, session: SessionId, params: ToolsParams) -> View:
        """What is known now; that of other agents where a name is known there only (rule 12)."""
        core = self._core
        view = core.view_of(session)
        plain = core.registry.view(core.sources.scope(core.sessions[session].source))
        found_there = params.name is not None and isinstance(plain.resolve(params.name), ViewTool)
        if found_there and not isinstance(view.resolve(params.name or ""), ViewTool):
            return plain
        return view

    async def _settled_view(self, session: SessionId) -> View:
        """What the session sees once every server has told its tools, or the patience for that is over."""
        with trio.move_on_after(self._core.requests.list_wait_s):
            asked: set[PoolKey] = set()
            while True:
                view = self._core.view_of(session)
                missing = {key for key in view.unknown if not self._core.outlook.is_settled(key)}
                if not missing:
                    break
                if self._inquiries.supervisors():  # what is sent to nobody is lost, and it is not sent twice
                    for key in sorted(missing - asked):
                        self._inquiries.send(Discover(key))
                    asked |= missing
                await trio.sleep(0.02)
        return self._core.view_of(session)
