"""Headers of requests: `Accept` and `Content-Type`, and those of the stateless era that repeat the body.

RFC 9110, 8.3 and 12.5.1, as far as MCP's transports ask; MCP 2026-07-28, basic/transports ("Standard
headers", "Custom headers from tool parameters"): `MCP-Protocol-Version`, `Mcp-Method`, `Mcp-Name`,
`Mcp-Param-*`. Owns the reading of both, the decoding of `=?base64?…?=`, the comparison with the body, and
which arguments of a tool are told in a header. Agents repeat themselves, so what `Accept` and `Content-Type`
said is remembered.

Knows nothing of: sessions, statuses, who asks. Header names are lower case here.
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from carpool.http.core.body import UNREADABLE, ClientMessage, MemberName, member_of, read_any, text_of
from carpool.http.core.limits import MAX_HEADERS
from carpool_protocol.carrier.streams import MESSAGE_CAP_BYTES
from carpool_protocol.wire.json_scan import read_despite_half_pairs

VERSION_HEADER: Final = "mcp-protocol-version"
METHOD_HEADER: Final = "mcp-method"
NAME_HEADER: Final = "mcp-name"
PARAM_PREFIX: Final = "mcp-param-"

_NAMED_BY: Final[dict[str, MemberName]] = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
"""The methods that have `Mcp-Name`, and the parameter that it repeats."""

_SENTINEL: Final = re.compile(r"=\?base64\?(.*)\?=", re.DOTALL)
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_INTEGER: Final = re.compile(r"-?[0-9]{1,40}")
MAX_ACCEPT_CHARS: Final = 1024
"""The longest `Accept` that is read. Those of browsers and SDKs have less than 200 characters, and each comma
may begin a type, which takes a third of a microsecond to read.
"""
_REMEMBERED: Final = 16
"""How many headers of each kind are remembered, of up to `MAX_HEAD_BYTES` each. A bound on their length would
be looked at for each request.
"""
MAX_DEPTH: Final = 16
MAX_ANNOTATED: Final = MAX_HEADERS
"""Arguments of one tool that are told in headers: no request has more headers."""
_MOST_BYTES: Final = MESSAGE_CAP_BYTES
"""The most bytes of objects within arguments that are read for one call. An object within another one is
read, and counts, once for each level.
"""
_UNTELLABLE: Final = re.compile(r'["\\\x00-\x1f\ud800-\udfff]')
"""The name of an argument with one of these is not searched for."""

Annotated = dict[str, tuple[str, ...]]
"""Header (lower case, without the prefix) to the path of the argument that it repeats."""


@lru_cache(maxsize=_REMEMBERED)
def accepts(accept: str | None, needed: tuple[str, ...]) -> bool:
    """True if an `Accept` header has all of these types. A missing header has none, as in the SDKs, nor has
    one that is longer than `MAX_ACCEPT_CHARS`.
    """
    if accept is None or len(accept) > MAX_ACCEPT_CHARS:
        return False
    ranges = set()
    for part in accept.split(","):
        kind, *params = (each.strip().lower() for each in part.split(";"))
        if "q=0" not in params:
            ranges.add(kind)
    return all(
        kind in ranges or "*/*" in ranges or kind.partition("/")[0] + "/*" in ranges for kind in needed
    )


@lru_cache(maxsize=_REMEMBERED)
def is_json(content_type: str | None) -> bool:
    """True if a `Content-Type` is that of JSON, whatever its parameters."""
    return (content_type or "").partition(";")[0].strip().lower() == "application/json"


def decoded(value: str) -> str | None:
    """Return the decoded value of a header; None if it is marked as base64 and is invalid."""
    found = _SENTINEL.fullmatch(value)
    if found is None:
        return value
    try:
        return base64.b64decode(found[1], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None


def standard_mismatch(headers: Mapping[str, str], version: str, message: ClientMessage) -> str:
    """Return what is wrong with the standard headers, as a sentence; empty if nothing is."""
    told = headers.get(VERSION_HEADER)
    if told != version:
        return _unlike("MCP-Protocol-Version", told, "the version in the body's _meta")
    told = headers.get(METHOD_HEADER)
    if told != message.method:
        return _unlike("Mcp-Method", told, "the body's method")
    key = _NAMED_BY.get(message.method)
    if key is None:
        return ""
    meant = text_of(member_of(message.params, key))
    told = headers.get(NAME_HEADER)
    if told is None and meant is None:
        return ""  # the body is wrong, and the broker says how
    if told is None or decoded(told) != meant:
        return _unlike("Mcp-Name", told, f"the body's params.{key}")
    return ""


def _unlike(header: str, told: str | None, what: str) -> str:
    return (
        f"Header mismatch: {header} is missing"
        if told is None
        else f"Header mismatch: {header} is not {what}"
    )


def annotated_arguments(schema: Any) -> Annotated:
    """The `x-mcp-header` annotations of a tool's input schema, reached through `properties` only.

    Returns an empty mapping if one of them is invalid: it is no token, stands twice, has a type that no
    header can tell, is one of too many, or its argument has a quote or a control character in its name. The
    headers of such a tool are not checked, because clients over HTTP do not offer it at all.
    """
    found: Annotated = {}
    return found if _collect(schema, (), found) else {}


def _collect(schema: Any, path: tuple[str, ...], found: Annotated) -> bool:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or len(path) >= MAX_DEPTH:
        return True
    for name, inner in properties.items():
        if not isinstance(inner, dict):
            continue
        at = (*path, name)
        header = inner.get("x-mcp-header")
        if header is not None:
            good = isinstance(header, str) and _TOKEN.fullmatch(header) and inner.get("type") in _TELLABLE
            if not good or header.lower() in found or len(found) == MAX_ANNOTATED:
                return False
            if any(map(_UNTELLABLE.search, at)):
                return False
            found[header.lower()] = at
        if not _collect(inner, at, found):
            return False
    return True


_TELLABLE: Final = ("string", "integer", "boolean")


def param_mismatch(headers: Mapping[str, str], annotated: Annotated, message: ClientMessage) -> str:
    """Return what is wrong with the `Mcp-Param-*` headers of a `tools/call`; empty if nothing is. Reads only
    the arguments that headers repeat: the others may be long.
    """
    if not annotated:
        return ""
    arguments = member_of(message.params, "arguments")
    try:
        values = _values_at(arguments, list(annotated.values()))
    except UNREADABLE:
        return ""
    if values is None:
        return f"Header mismatch: the objects with what Mcp-Param headers repeat exceed {_MOST_BYTES} bytes"
    for header, path in annotated.items():
        value = values.get(path, b"null")
        told = headers.get(PARAM_PREFIX + header)
        if value == b"null" and told is None:
            continue
        if value == b"null" or told is None or not _same(decoded(told), value):
            return _unlike(f"Mcp-Param-{header}", told, f"the argument {'.'.join(path)}")
    return ""


def _values_at(raw: bytes, paths: list[tuple[str, ...]]) -> dict[tuple[str, ...], bytes] | None:
    """Return what stands at these paths of an object, as it is written. None: objects within each other have
    more than `_MOST_BYTES` together, which would be read again for each level.
    """
    objects: dict[tuple[str, ...], dict[str, bytes]] = {(): _members_named(raw, _names_at((), paths))}
    size = 0
    for path in paths:
        for depth in range(1, len(path)):
            at = path[:depth]
            if at not in objects:
                text = objects[at[:-1]][at[-1]]
                size += len(text)
                if size > _MOST_BYTES:
                    return None
                objects[at] = _members_named(text, _names_at(at, paths))
    return {path: objects[path[:-1]][path[-1]] for path in paths}


def _names_at(at: tuple[str, ...], paths: list[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the members of the object at `at` through which these paths lead."""
    depth = len(at)
    return tuple(dict.fromkeys(path[depth] for path in paths if len(path) > depth and path[:depth] == at))


def _members_named(raw: bytes, names: tuple[str, ...]) -> dict[str, bytes]:
    """Return these members of an object as they are written, `null` for each that is not there."""
    try:
        found = read_despite_half_pairs(_reader_of(names), raw or b"{}")
    except msgspec.ValidationError:  # it is no object
        return dict.fromkeys(names, b"null")
    return dict(zip(names, map(bytes, msgspec.structs.astuple(found)), strict=True))


@lru_cache(maxsize=64)
def _reader_of(names: tuple[str, ...]) -> Callable[[bytes], Struct]:
    """Return a reader of these members of an object, which passes over all others in C."""
    members = [
        (f"member{at}", Raw, msgspec.field(default=Raw(b"null"), name=name)) for at, name in enumerate(names)
    ]
    return msgspec.json.Decoder(msgspec.defstruct("ReadMembers", members)).decode


def _same(told: str | None, raw: bytes) -> bool:
    """Return whether a header tells the value that is written like this."""
    if told is None or raw[:1] in {b"{", b"["}:
        return False
    if raw[:1] == b'"':
        return told == text_of(raw)
    if raw in {b"true", b"false"}:
        return told == raw.decode()
    try:
        return bool(_INTEGER.fullmatch(told)) and bool(int(told) == read_any(raw))
    except UNREADABLE:  # a number that is longer than any that is read
        return False
