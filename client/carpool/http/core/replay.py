"""Events that were sent to handshake-era clients, for those who come back with `Last-Event-ID`.

MCP 2025-11-25, basic/transports, "Resumability": an event's id names its stream and its place there (`X-n`),
and what is repeated is that stream's own. Owns the kept events and their bounds: per session so many events
and bytes, and so many bytes in all. What does not fit is forgotten, oldest first; then a client learns that
it is too late.

Knows nothing of: time, sockets, what events say.
"""

from collections import OrderedDict, deque
from typing import Final

MAX_EVENTS: Final = 256
MAX_SESSION_BYTES: Final = 1024 * 1024
MAX_BYTES: Final = 64 * 1024 * 1024


class EventReplay:
    """Kept events by session (`S`), each of an exchange (`X`; 0 is the session's own stream)."""

    def __init__(
        self, events: int = MAX_EVENTS, session_bytes: int = MAX_SESSION_BYTES, bytes_: int = MAX_BYTES
    ) -> None:
        self._max_events, self._max_session, self._max = events, session_bytes, bytes_
        self._sessions: OrderedDict[int, deque[tuple[int, int, bytes]]] = OrderedDict()
        self._sizes: dict[int, int] = {}
        self.size = 0

    def add(self, session: int, exchange: int, number: int, event: bytes) -> None:
        """Keep event `number` of an exchange."""
        kept = self._sessions.setdefault(session, deque())
        self._sessions.move_to_end(session)
        kept.append((exchange, number, event))
        self._sizes[session] = self._sizes.get(session, 0) + len(event)
        self.size += len(event)
        while kept and (len(kept) > self._max_events or self._sizes[session] > self._max_session):
            self._drop_oldest(session, kept)
        while self.size > self._max:
            self.session_closed(next(iter(self._sessions)))

    def after(self, session: int, exchange: int, number: int, last: int) -> list[tuple[int, bytes]] | None:
        """Return the events of the exchange after `number`, up to `last`; None if some of them are
        forgotten.
        """
        found = [
            (n, event) for x, n, event in self._sessions.get(session, ()) if x == exchange and n > number
        ]
        return found if len(found) == last - number else None

    def exchange_closed(self, session: int, exchange: int) -> None:
        """Forget one exchange."""
        kept = self._sessions.get(session)
        if not kept:
            return
        left = deque(each for each in kept if each[0] != exchange)
        size = sum(len(event) for _, _, event in left)
        self.size += size - self._sizes[session]
        if left:
            self._sessions[session], self._sizes[session] = left, size
        else:
            del self._sessions[session], self._sizes[session]

    def session_closed(self, session: int) -> None:
        """Forget all events of a session."""
        self._sessions.pop(session, None)
        self.size -= self._sizes.pop(session, 0)

    def check(self) -> None:
        """Assert every invariant."""
        sizes = {s: sum(len(event) for _, _, event in kept) for s, kept in self._sessions.items()}
        assert sizes == self._sizes
        assert self.size == sum(sizes.values()) <= self._max
        assert all(size <= self._max_session for size in sizes.values())

    def _drop_oldest(self, session: int, kept: deque[tuple[int, int, bytes]]) -> None:
        size = len(kept.popleft()[2])
        self._sizes[session] -= size
        self.size -= size
