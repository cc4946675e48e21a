"""The conversation that passes through the bridge: what goes with each message, and what comes back instead.

Owns the HTTP headers that MCP wants beside a message, in both eras, and which requests are open. Nothing is
translated: which era is spoken is the supervisor's choice, and is read from each message. No server may say
in carpool's name what became of a call, as we do: the supervisor takes a bridge at its word. Sources: MCP
2025-06-18, basic/transports "Protocol Version Header"; MCP 2026-07-28, basic/transports "Standard headers"
and "Custom headers" (`x-mcp-header`, and that a tool whose annotations are wrong is not offered).

The SDK's transport answers a request whose stream breaks with an error of its own. Such answers are told by
their words (`_OF_THE_SDK`) and become carpool's faults.

Pure: uses the SDK's models and tables. Knows nothing of: HTTP clients, streams, time.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
    find_invalid_x_mcp_header,
    mcp_param_headers,
    x_mcp_header_map,
)
from mcp_types import PROTOCOL_VERSION_META_KEY
from mcp_types.jsonrpc import (
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)

from carpool.bridge.error_texts import (
    GIVEN_UP,
    GREETINGS,
    RequestTrouble,
    answer_line,
    connection_broken,
    not_mcp,
)
from carpool_protocol.faults.fault_answers import ERROR_META_KEY
from carpool_protocol.ids import RawJson
from carpool_protocol.wire.result_repair import OF_SERVER, claims_fate

TOOLS_LIST: Final = "tools/list"
TOOLS_CALL: Final = "tools/call"
_FIRST_WITH_HEADER: Final = "2025-06-18"
_NAMED_BY: Final[Mapping[str, str]] = {
    **NAME_BEARING_METHODS,
    **dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId"),
}
_OF_THE_SDK: Final[tuple[tuple[int, str, str], ...]] = (
    (-32000, "SSE stream ended without a response", "lost"),
    (-32000, "SSE stream ended and reconnection attempts were exhausted", "lost"),
    (-32000, "SSE stream failed: Server-sent event exceeded", "answer_too_large"),
    (-32000, "SSE stream failed: ", "bad_answer"),
    (-32700, "Failed to parse ", "bad_answer"),
    (-32600, "Unexpected content type: ", "bad_answer"),
    (-32600, "server answered a request with 202 Accepted", "bad_answer"),
)
"""Code, how the message begins, the fault that it is. Held by the live tests, not promised by the SDK."""


class BridgeSession:
    """One MCP session with one server."""

    def __init__(self, server: str, host: str) -> None:
        self._server = server
        self._host = host
        self.open: dict[RequestId, str] = {}
        """The requests of the supervisor that are not answered, and their methods."""
        self._stateless: set[RequestId] = set()
        """Those of them that are of the stateless era."""
        self._version = ""
        """The protocol version of the handshake; empty before."""
        self._ours: set[RequestId] = set()
        """Requests whose answer is on its way here and is carpool's own, not the server's."""
        self._mirrored: dict[str, Mapping[tuple[str, ...], str]] = {}
        """By tool: which of its arguments are said in which header."""

    def headers_for(self, message: JSONRPCMessage) -> dict[str, str] | None:
        """A message of the supervisor goes to the server: the headers that go with it."""
        if isinstance(message, JSONRPCRequest):
            self.open[message.id] = message.method
            version = _version_of(message.params)
            if version is not None:
                self._stateless.add(message.id)
                return self._stateless_headers(version, message)
            if message.method == "initialize":
                return None
        return {MCP_PROTOCOL_VERSION_HEADER: self._version} if self._version else None

    def line_for_supervisor(self, message: JSONRPCMessage) -> bytes:
        """A message of the server comes: the line for the supervisor, without its end; or nothing for it."""
        if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None:
            method = self.open.pop(message.id, "")
            stateless = message.id in self._stateless
            self._stateless.discard(message.id)
            if message.id in self._ours:
                self._ours.remove(message.id)
                if isinstance(message, JSONRPCError) and message.error.code == GIVEN_UP:
                    return b""
            else:
                _without_carpool_mark(message)
            if isinstance(message, JSONRPCError):
                trouble = self._of_the_sdk(message, method)
                if trouble is not None and method:
                    return answer_line(
                        RawJson(msgspec.json.encode(message.id)), method, trouble, self._server
                    )
            elif method == "initialize":
                version = message.result.get("protocolVersion")
                self._version = version if isinstance(version, str) and version >= _FIRST_WITH_HEADER else ""
            elif method == TOOLS_LIST and stateless:
                message = JSONRPCResponse(jsonrpc="2.0", id=message.id, result=self._listed(message.result))
        return message.model_dump_json(by_alias=True, exclude_unset=True).encode()

    def expect_own_answer(self, request: RequestId) -> None:
        """The next answer to this request is one of carpool's own."""
        self._ours.add(request)

    def request_answered(self, request: RequestId) -> None:
        """A request has been answered by us."""
        self.open.pop(request, None)
        self._stateless.discard(request)

    def _stateless_headers(self, version: str, message: JSONRPCRequest) -> dict[str, str]:
        headers = {MCP_PROTOCOL_VERSION_HEADER: version, MCP_METHOD_HEADER: message.method}
        params = message.params or {}
        name = params.get(_NAMED_BY.get(message.method, ""))
        if isinstance(name, str):
            headers[MCP_NAME_HEADER] = encode_header_value(name)
        arguments = params.get("arguments")
        if message.method == TOOLS_CALL and isinstance(arguments, dict) and name in self._mirrored:
            headers |= mcp_param_headers(self._mirrored[name], arguments)
        return headers

    def _listed(self, result: dict[str, Any]) -> dict[str, Any]:
        """Remember what is mirrored into headers; tools whose annotations are wrong are left out."""
        tools = result.get("tools")
        if not isinstance(tools, list):
            return result
        kept: list[Any] = []
        for tool in tools:
            schema = tool.get("inputSchema") if isinstance(tool, dict) else None
            if schema is not None and find_invalid_x_mcp_header(schema) is not None:
                continue
            kept.append(tool)
            if isinstance(schema, dict) and isinstance(tool.get("name"), str):
                self._mirrored[tool["name"]] = x_mcp_header_map(schema)
        return result if len(kept) == len(tools) else {**result, "tools": kept}

    def _of_the_sdk(self, message: JSONRPCError, method: str) -> RequestTrouble | None:
        said = message.error.message
        for code, begins, slug in _OF_THE_SDK:
            if message.error.code == code and said.startswith(begins):
                if slug == "bad_answer" and method in GREETINGS:
                    return not_mcp(self._host, page=said.startswith("Unexpected content type: text/html"))
                return connection_broken(self._host) if slug == "lost" else RequestTrouble("", slug)
        return None


def _without_carpool_mark(message: JSONRPCResponse | JSONRPCError) -> None:
    """Rename a server's own fields that look like carpool's report on the fate of a call."""
    if isinstance(message, JSONRPCResponse):
        meta = message.result.get("_meta")
        if isinstance(meta, dict) and ERROR_META_KEY in meta:
            meta[OF_SERVER] = meta.pop(ERROR_META_KEY)
        return
    data = message.error.data
    if isinstance(data, dict) and claims_fate(json.dumps(data).encode()):
        message.error.data = {OF_SERVER: data}


def _version_of(params: dict[str, Any] | None) -> str | None:
    """The protocol version that a request of the stateless era names; None: it is of the other one."""
    meta = (params or {}).get("_meta")
    version = meta.get(PROTOCOL_VERSION_META_KEY) if isinstance(meta, dict) else None
    return version if isinstance(version, str) else None
