"""What a POST's body is: requests, notifications, answers; and what a message of the broker is.

Owns the reading of JSON-RPC as far as the door must understand it: which messages a body holds, their ids and
methods, and whether they are of the stateless era. All else stays as bytes for the broker. Nothing raises.

Knows nothing of: headers, sessions, sockets.
"""

from functools import lru_cache
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from carpool_protocol.carrier.streams import MESSAGE_CAP_BYTES, on_one_line
from carpool_protocol.faults.fault_answers import Fault, fault, fault_answer
from carpool_protocol.ids import RawJson
from carpool_protocol.wire.content import reader_of_few
from carpool_protocol.wire.json_scan import fields, read_despite_half_pairs, without_half_pairs
from carpool_protocol.wire.jsonrpc import FIRST_OF_ID, MAX_ID_BYTES, MAX_UNUSUAL_BYTES
from carpool_protocol.wire.result_repair import slug_in

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
METHOD_NOT_FOUND: Final = -32601
SESSION_NOT_FOUND: Final = -32001
"""The code that the SDKs use for it (MCP 2025-11-25 gives it none)."""
HEADER_MISMATCH: Final = -32020
MISSING_CAPABILITY: Final = -32021
UNSUPPORTED_VERSION: Final = -32022

HANDSHAKE_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
STATELESS_VERSIONS: Final = ("2026-07-28",)
BATCH_VERSION: Final = "2025-03-26"
"""The only version with arrays of messages."""
PRIMING_VERSION: Final = "2025-11-25"
"""From this version on a stream begins with an event that has an id and no data (basic/transports)."""
MAX_BATCH: Final = 256

VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY: Final = "io.modelcontextprotocol/clientCapabilities"

MessageSort = Literal["request", "notification", "answer"]
MemberName = Literal["name", "uri", "taskId", "arguments", "cursor", "requestId", "code"]


class ClientMessage(Struct, frozen=True, gc=False):
    """One message of a client."""

    line: bytes
    """The message as it came."""
    sort: MessageSort
    id: bytes
    """The id of a request or an answer, as written; empty for a notification."""
    method: str
    params: bytes
    """The params as written; empty if there are none."""


class BadBody(Struct, frozen=True):
    """A body that is refused as a whole."""

    code: int
    text: str
    id: bytes = b"null"
    status: int = 400


class MetaEnvelope(Struct, frozen=True):
    """What `_meta` of a request says of the protocol. `None`: it does not say it, or is invalid."""

    version: str | None
    complete: bool
    """True if both required keys are there (MCP 2026-07-28, basic, "_meta")."""


class BrokerMessage(Struct, frozen=True, gc=False):
    """A message of the broker, as far as the door must know it."""

    answer: bool
    asks: bool
    """True if it is a request, which must be answered."""
    id: bytes
    method: str
    code: int | None
    """The code of an error answer."""


class _Incoming(Struct, gc=False):
    jsonrpc: Raw = Raw(b"")
    id: Raw = Raw(b"")
    method: Raw = Raw(b"")
    params: Raw = Raw(b"")
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


class _Meta(Struct):
    version: Raw = field(default=Raw(b""), name=VERSION_KEY)
    capabilities: Raw = field(default=Raw(b""), name=CAPABILITIES_KEY)


class _Outgoing(Struct, gc=False):
    id: Raw = Raw(b"")
    method: Raw = Raw(b"")
    error: Raw | UnsetType = UNSET


class _Ended(Struct, gc=False):
    result: Raw = Raw(b"")
    error: Raw = Raw(b"")


class _Members(Struct, gc=False):
    """The members that this module looks up in an object. The object may have many others."""

    meta: Raw = field(default=Raw(b""), name="_meta")
    name: Raw = Raw(b"")
    uri: Raw = Raw(b"")
    taskId: Raw = Raw(b"")  # noqa: N815 - the wire's name
    arguments: Raw = Raw(b"")
    cursor: Raw = Raw(b"")
    requestId: Raw = Raw(b"")  # noqa: N815 - the wire's name
    code: Raw = Raw(b"")


class _Initialized(Struct):
    protocolVersion: str = ""  # noqa: N815 - the wire's name


class _Greeting(Struct):
    result: _Initialized


_incoming = msgspec.json.Decoder(_Incoming).decode
_incomings = reader_of_few(MAX_BATCH)
_meta = msgspec.json.Decoder(_Meta).decode
_text = msgspec.json.Decoder(str).decode
_outgoing = msgspec.json.Decoder(_Outgoing).decode
_ended = msgspec.json.Decoder(_Ended).decode
_greeting = msgspec.json.Decoder(_Greeting).decode
_members = msgspec.json.Decoder(_Members).decode
_MEMBER_NAMES: Final = [(each.name, each.encode_name) for each in msgspec.structs.fields(_Members)]
UNREADABLE: Final = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)

_NO_JSON: Final = "Parse error: the body is not valid JSON"
_UNUSUAL: Final = (
    "Parse error: the body is not valid JSON, or it has half of a surrogate pair and more than "
    f"{MAX_UNUSUAL_BYTES} bytes"
)
_FIRST_OF_ID: Final = frozenset(b"%c" % first for first in FIRST_OF_ID)
_NONE: Final = MetaEnvelope(None, complete=False)
_KEPT: Final = 512
_SMALL_BYTES: Final = 2048


def read_body(body: bytes) -> list[ClientMessage] | ClientMessage | BadBody:
    """Return the messages in the body of a POST, or why it is refused. Never raises."""
    if len(body) > MESSAGE_CAP_BYTES:
        return BadBody(INVALID_REQUEST, f"a message has at most {MESSAGE_CAP_BYTES} bytes", status=413)
    body = on_one_line(body)
    if not body.isascii():
        try:  # `msgspec` does not look where it skips, and an id that is echoed must be text
            body.decode()
        except UnicodeDecodeError:
            return BadBody(PARSE_ERROR, "Parse error: the body is not valid UTF-8")
    bare = body.lstrip(b" \t\r\n")
    if not bare.startswith(b"["):
        return _read(body)
    try:
        parts = _incomings(body)
    except msgspec.ValidationError:
        parts = []  # too many
    except UNREADABLE:
        return BadBody(PARSE_ERROR, _NO_JSON)
    if not parts:
        return BadBody(INVALID_REQUEST, f"Invalid Request: an array of messages holds 1 to {MAX_BATCH}")
    found = []
    for part in parts:
        message = _read(bytes(part))
        if isinstance(message, BadBody):
            return message
        found.append(message)
    return found


def _read(raw: bytes) -> ClientMessage | BadBody:
    try:
        found = _incoming(raw)
    except msgspec.ValidationError:
        return BadBody(INVALID_REQUEST, "Invalid Request: the body is no JSON-RPC message")
    except UNREADABLE:
        unusual = _unusual(raw)
        if unusual is None:
            return BadBody(PARSE_ERROR, _UNUSUAL if len(raw) > MAX_UNUSUAL_BYTES else _NO_JSON)
        found = _Incoming(**{key: Raw(unusual[key]) for key in _Incoming.__struct_fields__ if key in unusual})
    ident = bytes(found.id)
    # MCP, basic, "Requests": a string or a number, never null.
    good_id = ident[:1] in _FIRST_OF_ID
    name = ident if good_id else b"null"
    if len(ident) > MAX_ID_BYTES:
        return BadBody(INVALID_REQUEST, f"Invalid Request: the id has more than {MAX_ID_BYTES} bytes", name)
    if bytes(found.jsonrpc) != b'"2.0"':
        return BadBody(INVALID_REQUEST, 'Invalid Request: "jsonrpc" must be "2.0"', name)
    if found.method:
        method = text_of(bytes(found.method))
        if method is None or (ident and not good_id):
            return BadBody(
                INVALID_REQUEST, "Invalid Request: method and id must be text (id: or a number)", name
            )
        return ClientMessage(raw, "request" if ident else "notification", ident, method, bytes(found.params))
    if good_id and (found.result is not UNSET or found.error is not UNSET):
        return ClientMessage(raw, "answer", ident, "", b"")
    return BadBody(
        INVALID_REQUEST, "Invalid Request: neither a request, nor a notification, nor an answer", name
    )


def meta_envelope_of(message: ClientMessage) -> MetaEnvelope:
    """Return what the message says of the stateless era. Never raises."""
    params = message.params
    if b"_meta" not in params and b"\\" not in params:
        return _NONE  # the key is not there, and no escape hides it
    raw = bytes(_members_of(params).meta)
    return _read_small_meta(raw) if len(raw) <= _SMALL_BYTES else _read_meta(raw)


def _read_meta(raw: bytes) -> MetaEnvelope:
    try:
        meta = _meta(raw)
    except UNREADABLE:
        return _NONE
    version = text_of(bytes(meta.version)) if meta.version else None
    return MetaEnvelope(version, complete=version is not None and bytes(meta.capabilities)[:1] == b"{")


_read_small_meta = lru_cache(_KEPT)(_read_meta)
"""Agents send the same `_meta` with each request."""


def member_of(raw: bytes, name: MemberName) -> bytes:
    """Return a member of a JSON object as it is written; empty if there is none."""
    return bytes(getattr(_members_of(raw), name))


@lru_cache(maxsize=1)
def _members_of(raw: bytes) -> _Members:
    """Read an object once, whose members are then looked up one after another: it may have megabytes."""
    try:
        return _members(raw)
    except UNREADABLE:
        found = _unusual(raw) or {}
        return _Members(**{own: Raw(found.get(name, b"")) for own, name in _MEMBER_NAMES})


def _unusual(raw: bytes) -> dict[str, bytes] | None:
    """The members of an object with half of a surrogate pair in it, which is legal JSON (rule 16).

    JavaScript writes that for a cut emoji, and `msgspec` refuses it even where it skips. None: junk, or more
    than `MAX_UNUSUAL_BYTES`, which would hold up all other clients.
    """
    if len(raw) > MAX_UNUSUAL_BYTES:
        return None
    readable = without_half_pairs(raw)
    try:
        _incoming(readable)
    except UNREADABLE:
        return None
    return fields(raw, readable)


def text_of(raw: bytes) -> str | None:
    """Return a JSON string; None for anything else."""
    try:
        return _text(raw)
    except UNREADABLE:
        return None


def read_broker_message(line: bytes) -> BrokerMessage:
    """Read a message of the broker. One that cannot be read counts as a notification."""
    try:
        found = _outgoing(line)
    except UNREADABLE:  # half of a surrogate pair, in what a server wrote
        members = fields(line) or {}
        error = Raw(members["error"]) if "error" in members else UNSET
        found = _Outgoing(Raw(members.get("id", b"")), Raw(members.get("method", b"")), error)
        if not found.id and not found.method:
            return BrokerMessage(answer=False, asks=False, id=b"", method="", code=None)
    ident, method = bytes(found.id), (text_of(bytes(found.method)) or "") if found.method else ""
    code = None
    if found.error is not UNSET:
        code = _code_of(bytes(found.error))
    return BrokerMessage(not method, bool(method and ident), ident, method, code)


def _code_of(error: bytes) -> int:
    """Return the code of an error; 0 if it is no integer, because servers put anything there."""
    try:
        return int(member_of(error, "code"))
    except ValueError:
        return 0


def read_any(line: bytes) -> Any:
    """Read JSON of the broker, with U+FFFD for half of a surrogate pair. Raises as `UNREADABLE` says."""
    return read_despite_half_pairs(msgspec.json.decode, line)


def is_unsent(line: bytes) -> bool:
    """True if this answer of carpool's says that no server had the request, because carpool ends."""
    if line.find(b'"closing"') < 0:
        return False
    try:
        found = _ended(line)
    except UNREADABLE:
        return False
    body = RawJson(bytes(found.error or found.result))
    return slug_in(body, is_error=bool(found.error)) == "closing"


def unsent_answer(message: ClientMessage) -> bytes:
    """Return the answer to a request that no server gets, because carpool ends: as the broker words it."""
    return _fault_line(fault("closing"), message.id, message.method)


def too_large_answer(ident: bytes, request: bytes) -> bytes:
    """Return the answer to a request of an array where the server's answer has no room beside the others.
    `request`: as its client wrote it; empty if that is not known.
    """
    found = read_body(request)
    method = found.method if isinstance(found, ClientMessage) else ""
    detail = "There was no room for it beside the unread answers to other requests of arrays."
    return _fault_line(fault("answer_too_large", detail=detail), ident, method)


def _fault_line(said: Fault, ident: bytes, method: str) -> bytes:
    is_error, body = fault_answer(said, method)
    member = b"error" if is_error else b"result"
    return b'{"jsonrpc":"2.0","id":%b,"%b":%b}' % (ident, member, body)


def version_of(line: bytes) -> str:
    """Return the protocol version in an answer to `initialize`; empty if there is none."""
    try:
        return read_despite_half_pairs(_greeting, line).result.protocolVersion
    except UNREADABLE:
        return ""


def error_line(ident: bytes, code: int, text: str) -> bytes:
    """Return a JSON-RPC error answer, without line end."""
    quoted = msgspec.json.encode(text)
    return b'{"jsonrpc":"2.0","id":%b,"error":{"code":%d,"message":%b}}' % (ident or b"null", code, quoted)
