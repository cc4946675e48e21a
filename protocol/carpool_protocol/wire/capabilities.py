"""Capabilities of MCP: those that a server announces, and those that an agent needs for an ask.

Owns the mapping between the nested `capabilities` object (MCP 2025-11-25, basic/lifecycle, "Capability
Negotiation") and the flat set of `messages.Feature`. `tasks` and `experimental` have no feature: many agents
cannot share them, so carpool never announces them. Also owns the rules by which params of a sampling or
elicitation request need more than their method does (client/sampling, client/elicitation). They are read
once, where the request enters, because both cores keep params opaque.

Takes legal JSON without control bytes; no bytes raise. Knows nothing of: agents, their declarations,
versions.
"""

from collections.abc import Iterable
from typing import Any, Final, get_args

import msgspec

from carpool_protocol.ids import RawJson
from carpool_protocol.link.messages import Feature, Need
from carpool_protocol.wire.content import text_of, value_of
from carpool_protocol.wire.json_scan import has_too_many_parts

FEATURES: Final[tuple[Feature, ...]] = get_args(Feature)

OFFERS_NOTHING: Final = "declares no capability, and has not listed tools either"
"""The last error of a server that agents see nothing of, though it serves."""

ALL_FEATURES: Final[frozenset[Feature]] = frozenset(FEATURES)
"""Announced for a server whose catalog is not known yet.

The server may turn out to have any of them, and an agent greets only once. Empty lists are legal; log levels
and subscriptions are kept until a server can use them.
"""

_read = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_flags = msgspec.json.Decoder(dict[str, Any]).decode


def features_of(capabilities: RawJson) -> list[Feature]:
    """The features that a `capabilities` object announces, in the order of `Feature`.

    A family with a value that is no object counts as announced without options (some servers send `true`);
    `false` and `null` count as not announced. An unreadable object announces nothing, and so does one with
    too many parts to be read in one step.
    """
    if has_too_many_parts(capabilities):
        return []
    try:
        families = _read(capabilities)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    found: set[str] = set()
    for family, raw in families.items():
        value = bytes(raw)
        if value in {b"null", b"false"}:
            continue
        found.add(family)
        found.update(f"{family}.{flag}" for flag in _flags(value))
    return [feature for feature in FEATURES if feature in found]


def _flags(value: bytes) -> list[str]:
    try:
        return [flag for flag, is_set in _read_flags(value).items() if is_set is True]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []


def capabilities_of(features: Iterable[Feature]) -> dict[str, dict[str, bool]]:
    """The `capabilities` object that announces these features, families in the order of `Feature`."""
    wanted = set(features)
    capabilities: dict[str, dict[str, bool]] = {}
    for feature in FEATURES:
        if feature in wanted:
            family, _, flag = feature.partition(".")
            options = capabilities.setdefault(family, {})
            if flag:
                options[flag] = True
    return capabilities


_NO_TOOLS: Final = frozenset({None, b"[]", b"null"})
_NO_CHOICE: Final = frozenset({None, b"{}", b"null"})

_MODES: Final[dict[str, list[Need]]] = {"form": ["elicitation.form"], "url": ["elicitation.url"]}


def needed_capabilities(method: str, params: RawJson) -> list[Need]:
    """All capabilities that an agent must have declared for this ask; empty if no declaration suffices.

    Sampling needs `sampling.tools` if it has tools or a tool choice. Elicitation needs its mode, and is of
    forms if it names none. The specification has two modes; no agent can have declared a third.
    """
    if method == "sampling/createMessage":
        if value_of(params, "tools") in _NO_TOOLS and value_of(params, "toolChoice") in _NO_CHOICE:
            return ["sampling"]
        return ["sampling", "sampling.tools"]
    if method == "elicitation/create":
        return _MODES.get(text_of(params, "mode") or "form", [])[:]
    return []
