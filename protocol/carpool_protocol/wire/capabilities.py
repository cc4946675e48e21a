"""What a server can do, as a flat set: read from capabilities and written as such.

Owns the mapping between the nested `capabilities` object of MCP (2025-11-25, basic/lifecycle, "Capability
Negotiation") and `messages.Feature`. What cannot be shared by many agents (`tasks`, `experimental`) has no
feature, so it is never announced.

Knows nothing of: who announces what to whom.
"""

from collections.abc import Iterable
from typing import Any, Final, get_args

import msgspec

from carpool_protocol.ids import RawJson
from carpool_protocol.link.messages import Feature

FEATURES: Final[tuple[Feature, ...]] = get_args(Feature)

PERHAPS: Final[frozenset[Feature]] = frozenset(FEATURES)
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
