"""The W3C trace context of an HTTP request: the header `traceparent` as `_meta.traceparent` of its call.

MCP 2026-07-28 carries the context in `_meta`, which also reaches stdio servers. So a header counts where the
body says nothing, and from there on is `_meta` like any other. Invariant: nothing else of a message changes.

Knows nothing of: traces, other headers.
"""

from typing import Final

import msgspec
from msgspec.structs import replace

from carpool.http.core.body import ClientMessage
from carpool_protocol.wire.json_scan import fields
from carpool_protocol.wire.traceparent import parse_traceparent

TRACE_HEADER: Final = "traceparent"
_CALLS: Final = frozenset({"tools/call", "prompts/get", "resources/read", "completion/complete"})
_json: Final = msgspec.json.Encoder().encode


def with_trace_header(message: ClientMessage, header: str | None) -> ClientMessage:
    """Return the message with the context of its header, or as it is."""
    if header is None or message.sort != "request" or message.method not in _CALLS:
        return message
    context = parse_traceparent(header)
    params = fields(message.params)
    if context is None or params is None:
        return message
    meta = fields(params.get("_meta", b"{}"))
    if meta is None or TRACE_HEADER in meta:
        return message
    meta = {**meta, TRACE_HEADER: b'"00-%b-%b-%b"' % tuple(part.encode() for part in context)}
    try:
        whole = _object({**params, "_meta": _object(meta)})
    except UnicodeEncodeError:  # a name with half a surrogate pair
        return message
    line = b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}' % (message.id, _json(message.method), whole)
    return replace(message, line=line, params=whole)


def _object(members: dict[str, bytes]) -> bytes:
    return b"{%b}" % b",".join(b"%b:%b" % (_json(name), raw) for name, raw in members.items())
