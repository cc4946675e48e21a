"""Resources that were read a moment ago and are current still, says their server.

Owns the answers to `resources/read` that came with a `ttlMs`, until that is over: who may be given one (a
private one its own session only), for how much longer it is current, and what makes it old before its time,
also before it has come. The least recently used go first. Source: MCP 2026-07-28, server/utilities/caching.

Invariants (`check`): never more than `max_bytes` and `max_entries`; nothing is given out at or after the
moment at which it is old; a private answer is given to the session that it was given to, and to no other.
Knows nothing of: calls, retries (nobody keeps an answer here that an agent's input went into, or that was
asked for with more than the URI), JSON.
"""

from collections import deque
from itertools import islice
from typing import Final

from msgspec import Struct

from carpool_protocol.ids import PoolKey, SessionId
from carpool_protocol.link.messages import Payload
from carpool_protocol.wire.uri_normalization import MAX_CHARS

MAX_BYTES: Final = 16 * 1024 * 1024
MAX_ENTRIES: Final = 1024
MAX_TTL_MS: Final = 24 * 3600 * 1000
"""The longest time that a result counts as current, whatever a server says."""

MAX_CHANGES: Final = 256
"""The number of changes that are remembered. A result that was requested before more of them counts as old
when it comes.
"""

_PUBLIC: Final = SessionId("")
_CacheKey = tuple[PoolKey, str, SessionId]


class CachedRead(Struct, frozen=True):
    """A result that is current."""

    body: Payload
    ttl_ms: int
    """The milliseconds for which it stays current: at least 1."""
    public: bool


class _CacheEntry(Struct, frozen=True):
    body: Payload
    until: float
    """The time until which it is current, in monotonic seconds."""


class ResourceCache:
    """The results of `resources/read` that can be given again."""

    def __init__(self, max_bytes: int = MAX_BYTES, max_entries: int = MAX_ENTRIES) -> None:
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._entries: dict[_CacheKey, _CacheEntry] = {}
        """The results, the least recently used first."""
        self._size_bytes = 0
        self._changes: deque[tuple[PoolKey, str | None]] = deque(maxlen=MAX_CHANGES)
        """The changes, the latest last; without a URI: all of a pool."""
        self.change_count = 0
        """The number of changes so far. A result that is requested now is overtaken by later changes."""

    def __len__(self) -> int:
        return len(self._entries)

    def store(
        self,
        key: PoolKey,
        uri: str,
        session: SessionId,
        body: Payload,
        now: float,
        *,
        ttl_ms: int,
        public: bool,
        since: int,
    ) -> None:
        """Store the result that the server of this pool gave for this URI (in the server's own spelling) to
        this session, in place of an earlier one. `since` is the `change_count` at the time of the request; a
        negative one is unknown. A result for an overlong URI is not kept: no change of it would be heard of,
        and `max_bytes` does not count URIs.
        """
        if len(uri) > MAX_CHARS:
            return
        self._evict((key, uri, session))
        self._evict((key, uri, _PUBLIC))
        if ttl_ms <= 0 or len(body) > self._max_bytes or self._has_changed_since(key, uri, since):
            return
        place = (key, uri, _PUBLIC if public else session)
        self._entries[place] = _CacheEntry(body, now + min(ttl_ms, MAX_TTL_MS) / 1000)
        self._size_bytes += len(body)
        while self._size_bytes > self._max_bytes or len(self._entries) > self._max_entries:
            self._evict(next(iter(self._entries)))

    def _has_changed_since(self, key: PoolKey, uri: str, since: int) -> bool:
        more = self.change_count - since
        if since < 0 or more > len(self._changes):
            return True
        after = islice(reversed(self._changes), more)
        return any(each == key and (what is None or _overlap(uri, what)) for each, what in after)

    def _count_change(self, key: PoolKey, uri: str | None) -> None:
        self._changes.append((key, uri))
        self.change_count += 1

    def find(self, key: PoolKey, uri: str, session: SessionId, now: float) -> CachedRead | None:
        """Return the result that this session can be given now, or None."""
        for whose in (session, _PUBLIC):
            place = (key, uri, whose)
            kept = self._entries.pop(place, None)
            if kept is None:
                continue
            left_ms = int((kept.until - now) * 1000)
            if left_ms < 1:
                self._size_bytes -= len(kept.body)
                continue
            self._entries[place] = kept
            return CachedRead(kept.body, left_ms, whose == _PUBLIC)
        return None

    def resource_changed(self, key: PoolKey, uri: str) -> None:
        """The server reports that this resource, or a part of it, has changed. Resources above and below it
        by name count as changed, too.
        """
        self._count_change(key, uri)
        for place in [place for place in self._entries if place[0] == key and _overlap(place[1], uri)]:
            self._evict(place)

    def forget_pool(self, key: PoolKey) -> None:
        """The catalog or the state of the pool has changed: nothing of it is current."""
        self._count_change(key, None)
        for place in [place for place in self._entries if place[0] == key]:
            self._evict(place)

    def session_closed(self, session: SessionId) -> None:
        """The session has closed."""
        for place in [place for place in self._entries if place[2] == session]:
            self._evict(place)

    def _evict(self, place: _CacheKey) -> None:
        kept = self._entries.pop(place, None)
        if kept is not None:
            self._size_bytes -= len(kept.body)

    def check(self) -> None:
        """Assert every invariant."""
        assert self._size_bytes == sum(len(kept.body) for kept in self._entries.values())
        assert self._size_bytes <= self._max_bytes
        assert len(self._entries) <= self._max_entries


def _overlap(one: str, other: str) -> bool:
    one, other = one.rstrip("/"), other.rstrip("/")
    short, long = (one, other) if len(one) <= len(other) else (other, one)
    return long == short or (long.startswith(short) and long[len(short)] in "/?#")
