"""What every message of the stateless era wears beside its own content, put on and taken off.

Owns the `_meta` keys that each request carries (version, what can be asked of us, who we are, the log level)
and which members of a result or an error only this era has. Agents are told none of that, and say none of it:
what an agent writes under one of these keys does not reach the server. Source: MCP 2026-07-28, basic/index
("Request metadata", "Result types"), server/utilities/caching.

Bytes are cut, never decoded and written again. Knows nothing of: which request it is, calls.
"""

from typing import Final, Literal

import msgspec

from carpool_protocol.content import at, value_of
from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, RawJson
from carpool_protocol.jsonrpc import quote, request_line
from carpool_protocol.params import meta_params
from carpool_protocol.scan import fields, key_text, members
from carpool_supervisor.core.attribution import RELATED_TASK
from carpool_supervisor.era.asking import Declared, without

VERSION: Final = "2026-07-28"
PREFIX: Final = "io.modelcontextprotocol/"
SERVER_INFO: Final = PREFIX + "serverInfo"

_HOP_BY_HOP: Final = frozenset(
    key.casefold()
    for key in (
        *(PREFIX + each for each in ("protocolVersion", "clientCapabilities", "clientInfo", "logLevel")),
        RELATED_TASK,  # a task that an agent names is none of this server's, as far as the agent may know
    )
)
_RESUMES: Final = frozenset({"inputresponses", "requeststate"})
_ONLY_HERE: Final = frozenset({"resultType", "ttlMs", "cacheScope", "inputRequests", "requestState"})

_INTERNAL: Final = b"-32603"
_INVALID_PARAMS: Final = b"-32602"
_NO_RESOURCE: Final = b"-32002"
_OWN_CODES: Final = frozenset({b"-32020", b"-32021", b"-32022"})
"""HeaderMismatch, MissingRequiredClientCapability, UnsupportedProtocolVersion: unknown to agents before."""

Kind = Literal["complete", "input_required", "unknown", "unreadable"]


class Envelope:
    """What one instance is told with every request."""

    def __init__(self, release: str, declared: Declared) -> None:
        info = msgspec.json.encode({"name": "carpool", "version": release})
        said = {
            "protocolVersion": quote(VERSION),
            "clientCapabilities": declared.capabilities(),
            "clientInfo": info,
        }
        self._always = b",".join(quote(PREFIX + key) + b":" + value for key, value in said.items())
        self._said = self._always
        self._count = 0

    def level(self, level: str) -> None:
        """From which level on log messages are wanted; empty: none are."""
        more = b",%b:%b" % (quote(PREFIX + "logLevel"), quote(level)) if level else b""
        self._said = self._always + more

    def next_id(self, what: str) -> RawJson:
        """An id for a request of our own: a string, so never a wire id."""
        self._count += 1
        return RawJson(b'"carpool-%b-%d"' % (what.encode(), self._count))

    def request(self, request: RawJson, method: str, params: RawJson = EMPTY_OBJECT) -> bytes:
        """The line of a request of our own."""
        return request_line(request, method, meta_params(params, self.meta(ABSENT), ABSENT))

    def meta(self, agents: RawJson) -> RawJson:
        """The whole `_meta`, from that of the agent (without `progressToken`)."""
        inner = b"" if not agents else _without(agents, _HOP_BY_HOP)[1:-1].strip()
        return RawJson(b"{%b%b%b}" % (self._said, b"," if inner else b"", inner))


def own_params(params: RawJson) -> RawJson:
    """The params as they may begin a call. No agent may resume what a server began for another: its state is
    bound to nobody where the server speaks stdio.
    """
    return RawJson(_without(params, _RESUMES))


def _without(raw: RawJson, keys: frozenset[str]) -> bytes:
    """An object without these keys (lower case), however they are spelled: some readers ignore case."""
    cuts = members(raw)
    if cuts is None:
        return EMPTY_OBJECT
    names = [(key_text(raw[cut.key : cut.key_end]) or "").casefold() for cut in cuts]
    if keys.isdisjoint(names):
        return raw
    kept = [raw[cut.key : cut.value_end] for cut, name in zip(cuts, names, strict=True) if name not in keys]
    return b"{%b}" % b",".join(kept)


def read_result(result: RawJson) -> tuple[Kind, RawJson]:
    """What kind of result it is, and a complete one as it would be in the handshake era."""
    if result[:1] != b"{":
        return "complete", result
    found = fields(result)
    if found is None:
        return "unreadable", ABSENT
    said = found.get("resultType", b"null")
    kind = "complete" if said == b"null" else key_text(said)
    if kind == "input_required":
        return "input_required", result
    if kind != "complete":
        return "unknown", ABSENT
    meta = RawJson(found.get("_meta", b""))
    left = without(meta, SERVER_INFO) if meta[:1] == b"{" and value_of(meta, SERVER_INFO) else meta
    if left is meta and found.keys().isdisjoint(_ONLY_HERE):
        return "complete", result
    changes = {**dict.fromkeys(_ONLY_HERE), "_meta": (lambda _: left) if left else None}
    return "complete", RawJson(at(result, changes))


def neutral_error(method: str, error: RawJson) -> RawJson:
    """An error as agents of the handshake era know it: a resource that is not there has a code of its own
    there (MCP 2025-11-25, server/resources "Error Handling").
    """
    code = value_of(error, "code")
    if code in _OWN_CODES:
        return RawJson(at(error, {"code": lambda _: _INTERNAL, "data": None}))
    about = value_of(error, "data") if method == "resources/read" and code == _INVALID_PARAMS else None
    if about is not None and value_of(about, "uri") is not None:
        return RawJson(at(error, {"code": lambda _: _NO_RESOURCE}))
    return error
