"""How long a result of the stateless era is current, and for whom, as its server says.

Owns the reading of `ttlMs` and `cacheScope`, and what holds for a list of several pages and for several
lists together: the least of what they say, and public only where all of them are. Source: MCP 2026-07-28,
server/utilities/caching.

Takes legal JSON; no bytes raise. Knows nothing of: clocks, who keeps a result.
"""

from typing import Final

from msgspec import Struct

from carpool_protocol.ids import RawJson
from carpool_protocol.wire.content import value_of

MAX_DIGITS: Final = 15
"""Of a number of milliseconds; what has more is taken as this many nines."""


class CacheHint(Struct, frozen=True):
    """What was said of one result, or of several together."""

    ttl_ms: int = -1
    """-1: no word."""
    public: bool = False

    def least(self, other: "CacheHint") -> "CacheHint":
        """Of both together. One without a word says nothing about the other."""
        if other.ttl_ms < 0 or self.ttl_ms < 0:
            return self if other.ttl_ms < 0 else other
        return CacheHint(min(self.ttl_ms, other.ttl_ms), self.public and other.public)


NO_HINT: Final = CacheHint()


def read_cache_hint(result: RawJson) -> CacheHint:
    """Of one result. A number that is none, or below nothing, is 0."""
    ttl = value_of(result, "ttlMs")
    if ttl is None:
        return NO_HINT
    whole = ttl.partition(b".")[0]
    digits = whole if whole.isdigit() and b"e" not in ttl.lower() else b"0"
    ttl_ms = int(digits) if len(digits) <= MAX_DIGITS else 10**MAX_DIGITS - 1
    return CacheHint(ttl_ms, value_of(result, "cacheScope") == b'"public"')
