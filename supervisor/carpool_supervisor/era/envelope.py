"""The `_meta` envelope of the stateless era: adds it to requests and takes it off answers.

Owns the `_meta` keys of each request (version, client capabilities, client name, log level) and the members
of results and errors that only this era has. Agents neither see nor set them: what an agent writes under one
of these keys does not reach the server. Source: MCP 2026-07-28, basic/index ("Request metadata", "Result
types"), server/utilities/caching.

Bytes are cut, never decoded and encoded again. Knows nothing of: calls, which request a message belongs to.
"""

from typing import Final, Literal

import msgspec

from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, RawJson
from carpool_protocol.link.messages import Call, Need
from carpool_protocol.wire.content import change_members, value_of, without_members
from carpool_protocol.wire.json_scan import fields, key_text
from carpool_protocol.wire.jsonrpc import quote, request_line
from carpool_protocol.wire.params import meta_params
from carpool_protocol.wire.stateless import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    HOP_BY_HOP,
    LOG_LEVEL,
    PROTOCOL_VERSION,
    SERVER_INFO,
    TASKS,
    VERSION,
)
from carpool_supervisor.core.model.attribution import RELATED_TASK
from carpool_supervisor.era.server_requests import Declared, capabilities_of, without

_PRIVATE: Final = HOP_BY_HOP | {RELATED_TASK.casefold()}
"""Includes the related task: an agent cannot name a task of this server, because it does not know the
server's task ids.
"""
_STATE: Final = frozenset({"requeststate"})
_RESUMES: Final = _STATE | {"inputresponses"}
_INFO: Final = SERVER_INFO.encode()
_ONLY_HERE: Final = frozenset({"resultType", "ttlMs", "cacheScope", "inputRequests", "requestState"})

_INTERNAL: Final = b"-32603"
_INVALID_PARAMS: Final = b"-32602"
_NO_RESOURCE: Final = b"-32002"
_LACKS: Final = b"-32021"
_OWN_CODES: Final = frozenset({b"-32020", _LACKS, b"-32022"})
"""HeaderMismatch, MissingRequiredClientCapability, UnsupportedProtocolVersion: unknown in the handshake era.
"""

Kind = Literal["complete", "input_required", "task", "unknown", "unreadable"]


class RequestEnvelope:
    """The envelope of all requests to one instance."""

    def __init__(self, release: str, declared: Declared) -> None:
        self._info = msgspec.json.encode({"name": "carpool", "version": release})
        self._declared = declared
        self._level = ""
        self.tasks = False
        """The server knows the extension that brings tasks."""
        self._meta_cache = self._meta_members(declared.needs(), "")
        """The `_meta` members of requests that belong to no agent."""
        self._count = 0

    def set_level(self, level: str) -> None:
        """Set the lowest level of log messages to request; empty: none."""
        self._level = level
        self._meta_cache = self._meta_members(self._declared.needs(), level)

    def _meta_members(self, needs: frozenset[Need], level: str, *, tasks: bool = False) -> bytes:
        can = capabilities_of(needs)
        members = {
            PROTOCOL_VERSION: quote(VERSION),
            CLIENT_CAPABILITIES: _with_tasks(can) if tasks else can,
            CLIENT_INFO: self._info,
        }
        if level:
            members[LOG_LEVEL] = quote(level)
        return b",".join(quote(key) + b":" + value for key, value in members.items())

    def next_id(self, what: str) -> RawJson:
        """A new id for carpool's own request: a string, so never a wire id."""
        self._count += 1
        return RawJson(b'"carpool-%b-%d"' % (what.encode(), self._count))

    def request_line(
        self, request: RawJson, method: str, params: RawJson = EMPTY_OBJECT, *, tasks: bool = False
    ) -> bytes:
        """The line of carpool's own request. `tasks`: declare that tasks are understood."""
        meta = self.request_meta(ABSENT)
        if tasks:
            meta = RawJson(b"{%b}" % self._meta_members(self._declared.needs(), self._level, tasks=True))
        return request_line(request, method, meta_params(params, meta, ABSENT))

    def request_meta(self, agents: RawJson, call: Call | None = None) -> RawJson:
        """The whole `_meta` of a request, made from that of the agent (without `progressToken`). `call`: the
        agent's call.
        """
        members = self._meta_cache
        tasks = call is not None and call.tasks and self.tasks
        if call is not None and (call.can is not None or call.log_level or tasks):
            # The agent itself has declared its capabilities and, if any, its log level.
            level = call.log_level if call.can is not None else call.log_level or self._level
            members = self._meta_members(self._declared.needs(call.can), level, tasks=tasks)
        inner = b"" if not agents else without_members(agents, _PRIVATE)[1:-1].strip()
        return RawJson(b"{%b%b%b}" % (members, b"," if inner else b"", inner))


def own_params(params: RawJson, method: str = "") -> RawJson:
    """The params that begin a call, without the members that resume one. No agent may resume a call of
    another: a stdio server does not bind its request state to an agent. Input for a task needs a task of that
    agent.
    """
    return RawJson(without_members(params, _STATE if method == "tasks/update" else _RESUMES))


def read_result(result: RawJson) -> tuple[Kind, RawJson]:
    """The kind of a result; a complete one is returned in the form of the handshake era."""
    if result[:1] != b"{":
        return "complete", result
    found = fields(result)
    if found is None:
        return "unreadable", ABSENT
    result_type = found.get("resultType", b"null")
    kind = "complete" if result_type == b"null" else key_text(result_type)
    if kind == "input_required":
        return "input_required", result
    if kind == "task":
        return "task", result
    if kind != "complete":
        return "unknown", ABSENT
    meta = RawJson(found.get("_meta", b""))
    may_hold_info = meta[:1] == b"{" and (meta.find(_INFO) >= 0 or meta.find(b"\\") >= 0)
    left = without(meta, SERVER_INFO) if may_hold_info and value_of(meta, SERVER_INFO) else meta
    if left is meta and found.keys().isdisjoint(_ONLY_HERE):
        return "complete", result
    changes = {**dict.fromkeys(_ONLY_HERE), "_meta": (lambda _: left) if left else None}
    return "complete", RawJson(change_members(result, changes))


def _with_tasks(capabilities: RawJson) -> RawJson:
    """Client capabilities with the tasks extension added."""
    inner = capabilities[1:-1]
    comma = b"," if inner else b""
    return RawJson(b'{%b%b"extensions":{%b:{}}}' % (inner, comma, quote(TASKS)))


def neutral_error(method: str, error: RawJson, *, same_era: bool = False) -> RawJson:
    """An error in the codes of the handshake era, where a missing resource has a code of its own (MCP
    2025-11-25, server/resources "Error Handling"). `same_era`: the agent knows the error for a missing client
    capability.
    """
    code = value_of(error, "code")
    if code == _LACKS and same_era:
        return error
    if code in _OWN_CODES:
        return RawJson(change_members(error, {"code": lambda _: _INTERNAL, "data": None}))
    about = value_of(error, "data") if method == "resources/read" and code == _INVALID_PARAMS else None
    if about is not None and value_of(about, "uri") is not None:
        return RawJson(change_members(error, {"code": lambda _: _NO_RESOURCE}))
    return error
