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
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Raw

from carpool.http.core.body import UNREADABLE, ClientMessage, text_of, texts_of

VERSION_HEADER: Final = "mcp-protocol-version"
METHOD_HEADER: Final = "mcp-method"
NAME_HEADER: Final = "mcp-name"
PARAM_PREFIX: Final = "mcp-param-"

_NAMED_BY: Final = {
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
MAX_DEPTH: Final = 16

Annotated = dict[str, tuple[str, ...]]
"""Header (lower case, without the prefix) to the path of the argument that it repeats."""


@lru_cache(maxsize=256)
def accepts(accept: str | None, needed: tuple[str, ...]) -> bool:
    """True if an `Accept` header has all of these types. A missing header has none, as in the SDKs."""
    ranges = set()
    for part in (accept or "").split(","):
        kind, *params = (each.strip().lower() for each in part.split(";"))
        if "q=0" not in params:
            ranges.add(kind)
    return all(
        kind in ranges or "*/*" in ranges or kind.partition("/")[0] + "/*" in ranges for kind in needed
    )


@lru_cache(maxsize=64)
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
    raw = texts_of(message.params).get(key)
    meant = text_of(bytes(raw)) if raw is not None else None
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

    Empty where one of them is invalid (not a token, twice the same, or of a type that no header can
    tell): such a tool's headers are not checked, as clients over HTTP do not offer it at all.
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
            if not good or header.lower() in found:
                return False
            found[header.lower()] = at
        if not _collect(inner, at, found):
            return False
    return True


_TELLABLE: Final = ("string", "integer", "boolean")


def param_mismatch(headers: Mapping[str, str], annotated: Annotated, message: ClientMessage) -> str:
    """Return what is wrong with the `Mcp-Param-*` headers of a `tools/call`; empty if nothing is."""
    if not annotated:
        return ""
    raw = texts_of(message.params).get("arguments", Raw(b"{}"))
    try:
        arguments = msgspec.json.decode(raw)
    except UNREADABLE:
        return ""
    for header, path in annotated.items():
        value: Any = arguments
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        told = headers.get(PARAM_PREFIX + header)
        if value is None and told is None:
            continue
        if value is None or told is None or not _same(decoded(told), value):
            return _unlike(f"Mcp-Param-{header}", told, f"the argument {'.'.join(path)}")
    return ""


def _same(told: str | None, value: Any) -> bool:
    if told is None:
        return False
    if isinstance(value, bool):
        return told == ("true" if value else "false")
    if isinstance(value, str):
        return told == value
    if isinstance(value, int | float):
        return bool(_INTEGER.fullmatch(told)) and int(told) == value
    return False
