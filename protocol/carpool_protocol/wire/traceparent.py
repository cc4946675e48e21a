"""The W3C trace context in a `_meta`: what a legal `traceparent` is, and the one that somebody says.

Owns the format. Source: W3C Trace Context level 1 (version 00). Its key in `_meta` has no prefix; SDKs
use it in both eras.

Invariant: what `traceparent_in` gives has 55 characters of hexadecimal digits and hyphens, whatever was
said: it may be kept in a journal. Knows nothing of: which contexts are ours, what they decide.
"""

import re
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from carpool_protocol.wire.content import text_of

LEAST_BYTES: Final = len('{"traceparent":""}') + 55
"""No shorter `_meta` holds a legal context. To compare lengths takes a sixth of the time of a search."""

_written = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?").fullmatch
_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16


class _Meta(Struct):
    """The fast path of `traceparent_in`."""

    traceparent: str = ""


_read_meta = msgspec.json.Decoder(_Meta).decode


class TraceParent(NamedTuple):
    """A legal `traceparent`, apart."""

    trace: str
    span: str
    flags: str


def parse_traceparent(text: str) -> TraceParent | None:
    """A `traceparent` as W3C defines it; None for an illegal one. Of later versions, the part that 00
    knows.
    """
    found = _written(text)
    if found is None:
        return None
    version, trace, span, flags = found.groups()
    if version == "ff" or (version == "00" and len(text) != 55) or trace == _NO_TRACE or span == _NO_SPAN:
        return None
    return TraceParent(trace, span, flags)


def traceparent_in(meta: bytes) -> str:
    """The context that a `_meta` carries, in the words of version 00; empty where there is none that is
    legal. `meta` is an object as `params.split_meta` writes it: no escape hides a name in it.
    """
    if len(meta) < LEAST_BYTES or meta.find(b'"traceparent"') < 0:  # `in` takes twice as long
        return ""
    try:
        said = _read_meta(meta).traceparent
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # no string, or rule 16's lines
        said = text_of(meta, "traceparent") or ""
    found = parse_traceparent(said)
    return "" if found is None else f"00-{found.trace}-{found.span}-{found.flags}"
