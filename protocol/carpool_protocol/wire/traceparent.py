"""The W3C trace context in a `_meta`: checks and reads a `traceparent`.

Owns the format. Source: W3C Trace Context level 1 (version 00). Its key in `_meta` has no prefix; SDKs use it
in both eras.

Invariant: the result of `traceparent_in` has 55 characters of hexadecimal digits and hyphens for any input,
so it may be kept in a journal. Knows nothing of: the origin of a context, its use.
"""

import re
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from carpool_protocol.wire.content import text_of

LEAST_BYTES: Final = len('{"traceparent":""}') + 55
"""No shorter `_meta` holds a legal context. Comparing lengths takes a sixth of the time of a search."""

_written = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?").fullmatch
_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16


class _Meta(Struct):
    """The fast path of `traceparent_in`."""

    traceparent: str = ""


_read_meta = msgspec.json.Decoder(_Meta).decode


class TraceParent(NamedTuple):
    """The parts of a legal `traceparent`."""

    trace: str
    span: str
    flags: str


def parse_traceparent(text: str) -> TraceParent | None:
    """The parts of a `traceparent` as W3C defines it; None for an illegal one.

    Of a later version, the part that version 00 knows.
    """
    found = _written(text)
    if found is None:
        return None
    version, trace, span, flags = found.groups()
    if version == "ff" or (version == "00" and len(text) != 55) or trace == _NO_TRACE or span == _NO_SPAN:
        return None
    return TraceParent(trace, span, flags)


def traceparent_in(meta: bytes) -> str:
    """The context in a `_meta`, written as version 00; empty if there is no legal one.

    `meta` is an object as `params.split_meta` writes it: no escape hides a name in it.
    """
    if len(meta) < LEAST_BYTES or meta.find(b'"traceparent"') < 0:  # `in` takes twice as long
        return ""
    try:
        text = _read_meta(meta).traceparent
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # not a string, or a line of rule 16
        text = text_of(meta, "traceparent") or ""
    found = parse_traceparent(text)
    return "" if found is None else f"00-{found.trace}-{found.span}-{found.flags}"
