"""The `_meta` of every request of the stateless era: facts about the request and its agent.

Owns the required members, the refusals and their order, and the part of a `_meta` that goes on to a server:
members between the agent and carpool do not. Many agents repeat the same `_meta`, so results are cached
(bounded). Source: MCP 2026-07-28, basic/index ("Request metadata"), basic/versioning.

Invariant: no bytes raise; a refusal names the wrong key, never its value (except the version's, which the
specification wants in the error). Knows nothing of: methods, other params, ids.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import Raw, Struct

from carpool_broker.core.model.capabilities import StatelessAgent
from carpool_broker.era import server_requests
from carpool_protocol.faults.fault_answers import fault, fault_answer
from carpool_protocol.ids import ABSENT, RawJson
from carpool_protocol.wire import stateless
from carpool_protocol.wire.content import text_of, value_of
from carpool_protocol.wire.downgrade import NEWEST
from carpool_protocol.wire.json_scan import fields, key_text
from carpool_protocol.wire.jsonrpc import quote
from carpool_protocol.wire.log_levels import LEVELS
from carpool_protocol.wire.traceparent import traceparent_in

VERSION_MARK: Final = b'"%b"' % stateless.PROTOCOL_VERSION.encode()
"""A `_meta` without escapes in its keys and without these bytes names no version."""

_NAMES: Final = frozenset(
    {
        stateless.PROTOCOL_VERSION,
        stateless.CLIENT_CAPABILITIES,
        stateless.CLIENT_INFO,
        stateless.LOG_LEVEL,
    }
)
_KEPT: Final = 512
_SMALL_BYTES: Final = 2048
_LARGE_BYTES: Final = 64 * 1024
_MAX_NAME_CHARS: Final = 100


class RefusedEnvelope(Struct, frozen=True):
    """The error object for a request."""

    error: RawJson


class RequestMeta(Struct, frozen=True):
    """The facts in a request's `_meta`."""

    by: StatelessAgent
    meta: RawJson
    """The part that goes on to a server; `ABSENT` if nothing is left."""
    trace: str
    """As `traceparent.traceparent_in` returns it."""


_decode = msgspec.json.Decoder(dict[str, Raw]).decode


def refused_request(slug: str, detail: str = "") -> RefusedEnvelope:
    """A fault of carpool as an error object."""
    return RefusedEnvelope(fault_answer(fault(slug, detail=detail), "")[1])


def read_envelope(meta: bytes, *, is_required: bool) -> RequestMeta | RefusedEnvelope | None:
    """The facts in the `_meta` of a request (`b""`: none), or its refusal.

    None if it names no version and need not: then the request is of the other era.
    """
    if len(meta) <= _SMALL_BYTES:
        return _read_small(meta, is_required)
    return _read(meta, is_required)


def _read(meta: bytes, is_required: bool) -> RequestMeta | RefusedEnvelope | None:
    found = _members(meta)
    if found is None or stateless.PROTOCOL_VERSION not in found:
        if not is_required:
            return None
        return _missing("_meta" if not meta else "an object _meta" if found is None else _VERSION)
    version = key_text(bytes(found[stateless.PROTOCOL_VERSION]))
    capabilities = bytes(found.get(stateless.CLIENT_CAPABILITIES, b""))
    if version is None:
        return _missing(_VERSION)
    if capabilities[:1] != b"{":
        return _missing(_CAPABILITIES)
    if version not in stateless.SUPPORTED:
        return RefusedEnvelope(stateless.unsupported_version(version))
    info, level = found.get(stateless.CLIENT_INFO, b""), found.get(stateless.LOG_LEVEL, b"")
    asker = _cached_agent if len(meta) <= _SMALL_BYTES else _stateless_agent  # only small values are cached
    by = asker(capabilities, bytes(info), bytes(level))
    if isinstance(by, RefusedEnvelope):
        return by
    kept = [
        quote(name) + b":" + bytes(raw)
        for name, raw in found.items()
        if name not in _NAMES and name.casefold() not in stateless.HOP_BY_HOP
    ]
    if not kept:
        return RequestMeta(by, ABSENT, "")
    left = RawJson(b"{%b}" % b",".join(kept))
    return RequestMeta(by, left, traceparent_in(left))


_read_small = lru_cache(_KEPT)(_read)

_VERSION: Final = f"a string {stateless.PROTOCOL_VERSION} in _meta"
_CAPABILITIES: Final = f"an object {stateless.CLIENT_CAPABILITIES} in _meta"


def _missing(missing: str) -> RefusedEnvelope:
    return refused_request("bad_params", f"A request of MCP {stateless.VERSION} needs {missing}.")


def _members(meta: bytes) -> Mapping[str, Raw | bytes] | None:
    """Members by name, the last of doubles; None if it is no object."""
    try:
        if len(meta) <= _LARGE_BYTES:
            return _decode(meta)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass  # half a surrogate pair (rule 16), or no object
    return fields(meta)  # at most `MAX_MEMBERS`


def _stateless_agent(capabilities: bytes, info: bytes, level: bytes) -> StatelessAgent | RefusedEnvelope:
    minimum = ""
    if level and level != b"null":
        minimum = key_text(level) or "" if level[:1] == b'"' else ""
        if minimum not in LEVELS:
            return refused_request("bad_params", f"{stateless.LOG_LEVEL} is one of {', '.join(LEVELS)}.")
    extensions = value_of(capabilities, "extensions") or b""
    return StatelessAgent(
        capabilities=server_requests.declared_capabilities(NEWEST, capabilities),
        agent=(text_of(info, "name") or "")[:_MAX_NAME_CHARS],
        level=minimum,
        tasks=(value_of(extensions, stateless.TASKS) or b"")[:1] == b"{",
    )


_cached_agent = lru_cache(_KEPT)(_stateless_agent)
