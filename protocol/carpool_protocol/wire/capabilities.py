"""Capabilities of MCP: what a server can do, and what an agent must declare for a request of a server.

Owns the mapping between the nested `capabilities` object (MCP 2025-11-25, basic/lifecycle, "Capability
Negotiation") and the flat set of `messages.Feature`. `tasks` and `experimental` have no feature, since many
agents cannot share them, so they are never announced. Owns also the rules by which params of a sampling or
elicitation request need more than their method says (client/sampling, client/elicitation); they are read
once, where the request enters, since both cores keep params opaque.

Takes legal JSON without control bytes; no bytes raise. Knows nothing of: agents, what they declared,
versions.
"""

from collections.abc import Iterable
from typing import Any, Final, get_args

import msgspec

from carpool_protocol.ids import RawJson
from carpool_protocol.link.messages import Feature, Need
from carpool_protocol.wire.content import text_of, value_of

FEATURES: Final[tuple[Feature, ...]] = get_args(Feature)

ALL_FEATURES: Final[frozenset[Feature]] = frozenset(FEATURES)
"""What is announced for a server that has not told its catalog yet: it may turn out to serve any of it, and
an agent greets only once. Empty lists are legal; levels and subscriptions are kept until somebody can use
them.
"""

_read = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_flags = msgspec.json.Decoder(dict[str, Any]).decode


def features_of(capabilities: RawJson) -> list[Feature]:
    """The features that a `capabilities` object announces, in the order of `Feature`.

    A family whose value is no object counts as announced without options (`true` is seen in the wild);
    `false` and `null` as not announced. What cannot be read announces nothing.
    """
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
    """What an agent must have declared, all of it; empty where nothing that an agent can declare is enough.

    Sampling needs `sampling.tools` where there are tools or a choice among them. Elicitation needs its mode,
    and is of forms where it says none. There are two modes: of a third the specification says nothing, so no
    agent can have declared it and no server can have been told of it.
    """
    if method == "sampling/createMessage":
        if value_of(params, "tools") in _NO_TOOLS and value_of(params, "toolChoice") in _NO_CHOICE:
            return ["sampling"]
        return ["sampling", "sampling.tools"]
    if method == "elicitation/create":
        return _MODES.get(text_of(params, "mode") or "form", [])[:]
    return []
