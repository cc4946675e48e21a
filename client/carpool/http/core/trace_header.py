"""The W3C trace context of an HTTP request: the header `traceparent` as `_meta.traceparent` of its call.

MCP 2026-07-28 carries the context in `_meta`, which also reaches stdio servers. So a header counts where the
body says nothing, and from there on is `_meta` like any other. Invariants: nothing else of a message changes;
what takes long to cut into its members stays as it is.

Knows nothing of: traces, other headers.
"""

from typing import Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from carpool.http.core.body import UNREADABLE, ClientMessage
from carpool_protocol.wire.json_scan import fields, without_half_pairs
from carpool_protocol.wire.jsonrpc import MAX_UNUSUAL_BYTES
from carpool_protocol.wire.traceparent import parse_traceparent

TRACE_HEADER: Final = "traceparent"
_CALLS: Final = frozenset({"tools/call", "prompts/get", "resources/read", "completion/complete"})
_MOST_COMMAS: Final = 10_000
"""Params, or a `_meta`, with more commas beside the arguments stay as they are: each may end a member."""
_json: Final = msgspec.json.Encoder().encode


class _Long(Struct):
    """The member of params that may be long and have many parts."""

    arguments: Raw = Raw(b"")


_long = msgspec.json.Decoder(_Long).decode
_all = msgspec.json.Decoder(dict[str, Raw]).decode


def with_trace_header(message: ClientMessage, header: str | None) -> ClientMessage:
    """Return the message with the context of its header, or as it is."""
    if header is None or message.sort != "request" or message.method not in _CALLS:
        return message
    context = parse_traceparent(header)
    params = _members(message.params)
    if context is None or params is None:
        return message
    meta = _members(params.get("_meta", b"{}"))
    if meta is None or TRACE_HEADER in meta:
        return message
    meta = {**meta, TRACE_HEADER: b'"00-%b-%b-%b"' % tuple(part.encode() for part in context)}
    try:
        whole = _object({**params, "_meta": _object(meta)})
    except UnicodeEncodeError:  # a name with half a surrogate pair
        return message
    line = b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}' % (message.id, _json(message.method), whole)
    return replace(message, line=line, params=whole)


def _members(raw: bytes) -> dict[str, bytes] | None:
    """Return the members of an object as they are written. None: it is no object, or may have very
    many, each of which would be cut out.
    """
    try:
        commas = raw.count(b",")
        if commas > _MOST_COMMAS and commas - bytes(_long(raw).arguments).count(b",") > _MOST_COMMAS:
            return None
        return {name: bytes(value) for name, value in _all(raw).items()}
    except msgspec.ValidationError:
        return None
    except UNREADABLE:  # half of a surrogate pair
        return fields(raw, without_half_pairs(raw)) if len(raw) <= MAX_UNUSUAL_BYTES else None


def _object(members: dict[str, bytes]) -> bytes:
    return b"{%b}" % b",".join(b"%b:%b" % (_json(name), raw) for name, raw in members.items())
