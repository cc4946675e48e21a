"""Freshness of results in the stateless era: `ttlMs` and `cacheScope`.

Owns how they are read, and their value for several pages or lists together: the shortest time, and public
only if all are public. Source: MCP 2026-07-28, server/utilities/caching.

Takes legal JSON; no bytes raise. Knows nothing of: clocks, caches of results.
"""

from typing import Final

from msgspec import Struct

from carpool_protocol.ids import RawJson
from carpool_protocol.wire.content import value_of

MAX_DIGITS: Final = 15
"""The longest number of milliseconds; a longer one becomes this many nines."""


class CacheHint(Struct, frozen=True):
    """The freshness of one result, or of several together."""

    ttl_ms: int = -1
    """-1: not given."""
    public: bool = False

    def least(self, other: "CacheHint") -> "CacheHint":
        """The hint that holds for both. A missing value does not change the other."""
        if other.ttl_ms < 0 or self.ttl_ms < 0:
            return self if other.ttl_ms < 0 else other
        return CacheHint(min(self.ttl_ms, other.ttl_ms), self.public and other.public)


NO_HINT: Final = CacheHint()


def read_cache_hint(result: RawJson) -> CacheHint:
    """The hint of one result. A value that is no number, or is negative, counts as 0."""
    ttl = value_of(result, "ttlMs")
    if ttl is None:
        return NO_HINT
    whole = ttl.partition(b".")[0]
    digits = whole if whole.isdigit() and b"e" not in ttl.lower() else b"0"
    ttl_ms = int(digits) if len(digits) <= MAX_DIGITS else 10**MAX_DIGITS - 1
    return CacheHint(ttl_ms, value_of(result, "cacheScope") == b'"public"')
