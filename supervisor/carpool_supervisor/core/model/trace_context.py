"""The W3C trace context of a call: made, put into its `_meta`, and recognized when a server sends it back.

The Python SDK from 2 on copies the `traceparent` of a request into the requests of its handler. So a context
of its own for each call attributes asks (`attribution`). An agent's own trace id is kept: carpool is one hop
of its trace, with a span id of its own. Format: W3C Trace Context level 1 (version 00).

Invariants: equal (life, number) give equal ids; two numbers of one life never share a span id, nor a minted
trace id; no id is all zero. Each id is the number and a keyed hash of it (88 bits in a trace id, 24 in a span
id). Without the secret of the life nobody can make the context of another agent's call, and `issued`
recognizes carpool's ids without a table.

Knows nothing of: open calls, the origin of the secret (a shell draws it once per life).
"""

import re
from hashlib import blake2b
from typing import Final, NamedTuple

from carpool_protocol.ids import RawJson
from carpool_protocol.wire.json_scan import fields, key_text
from carpool_protocol.wire.jsonrpc import quote_name
from carpool_protocol.wire.traceparent import parse_traceparent

LIFE_BYTES: Final = 16
"""The size of a life's secret."""

MAX_NUMBERS: Final = 2**40 - 1
"""The calls with ids of their own in one life: 1,000 a second for 30 years."""

_FLAGS: Final = "01"
"""Sampled: the default of a server's tracer without an incoming context."""

_unwanted = re.compile(rb"traceparent|tracestate|\\", re.IGNORECASE).search


class TraceKey(NamedTuple):
    """The key by which a call is found: 32 and 16 lower-case hexadecimal digits."""

    trace: str
    span: str


def _ids(life: bytes, number: int) -> tuple[str, str]:
    number = number % MAX_NUMBERS + 1
    check = blake2b(number.to_bytes(8, "big"), key=life, digest_size=14).hexdigest()
    digits = f"{number:010x}"
    return digits + check[:22], digits + check[22:]


def mint(life: bytes, number: int) -> str:
    """A new `traceparent` for call `number` of the life with this secret."""
    trace, span = _ids(life, number)
    return f"00-{trace}-{span}-{_FLAGS}"


def next_hop(agent_traceparent: str, life: bytes, number: int) -> tuple[str, bool]:
    """The agent's context one hop on: its trace id and flags, our span id. `(minted, False)` for an illegal
    one, whose `tracestate` must then be dropped (W3C 3.3.1.5).
    """
    theirs = parse_traceparent(agent_traceparent)
    if theirs is None:
        return mint(life, number), False
    return f"00-{theirs.trace}-{_ids(life, number)[1]}-{theirs.flags}", True


def with_traceparent(meta: RawJson, life: bytes, number: int, theirs: str = "") -> tuple[RawJson, TraceKey]:
    """The `_meta` of call `number` with its context, and the key of that context.

    `meta` is `ABSENT` or an object as `params.split_meta` returns it; all other members stay byte for byte.
    `theirs` is the agent's legal context in it, empty if it has none: the key comes from that and never from
    `meta`, of which a journal keeps the length only. If `meta` cannot be split (it was split once before, so
    it can) it is returned unchanged, and the key, which was never sent, matches nothing.
    """
    trace, span = _ids(life, number)
    text, kept = f"00-{trace}-{span}-{_FLAGS}", False
    if theirs:
        text, kept = next_hop(theirs, life, number)
        trace = text[3:35]
    ours = b'"traceparent":"%b"' % text.encode()
    inner = meta[1:-1].strip()
    if not inner:
        return RawJson(b"{%b}" % ours), TraceKey(trace, span)
    if _unwanted(meta) is None:
        return RawJson(b"{%b,%b}" % (ours, inner)), TraceKey(trace, span)
    return _respliced(meta, ours, keeps_state=kept), TraceKey(trace, span)


def _respliced(meta: RawJson, ours: bytes, *, keeps_state: bool) -> RawJson:
    found = fields(meta)
    if found is None:
        return meta
    found.pop("traceparent", None)
    if not keeps_state:
        found.pop("tracestate", None)
    members = [ours, *(quote_name(name) + b":" + raw for name, raw in found.items())]
    return RawJson(b"{%b}" % b",".join(members))


def key_of(ask_meta: RawJson) -> TraceKey | None:
    """The context in the `_meta` of a server's request; None if it has no legal one."""
    if ask_meta.find(b"traceparent") < 0 and ask_meta.find(b"\\") < 0:
        return None
    found = fields(ask_meta)
    theirs = parse_traceparent(key_text(found.get("traceparent", b"")) or "") if found else None
    return None if theirs is None else TraceKey(theirs.trace, theirs.span)


def issued(life: bytes, key: TraceKey) -> bool:
    """True if this life made the trace id or the span id of `key`, even for a call that ended long ago."""
    return issued_trace(life, key) or issued_span(life, key)


def issued_trace(life: bytes, key: TraceKey) -> bool:
    """True if this life made the trace id of `key`, so the agent of that call had none of its own."""
    number = int(key.trace[:10], 16)
    return number > 0 and key.trace == _ids(life, number - 1)[0]


def issued_span(life: bytes, key: TraceKey) -> bool:
    """True if this life made the span id of `key`, so it belongs to exactly one call."""
    number = int(key.span[:10], 16)
    return number > 0 and key.span == _ids(life, number - 1)[1]
