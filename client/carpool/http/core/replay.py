"""Events that were sent to handshake-era clients, for those who come back with `Last-Event-ID`.

MCP 2025-11-25, basic/transports, "Resumability": an event's id names its stream and its place there (`X-n`),
and what is repeated is that stream's own. Owns the kept events and their bounds: per session so many events
and bytes, and so many bytes in all, which the principals share. What does not fit is forgotten, of the same
principal and oldest first; then a client learns that it is too late.

Knows nothing of: time, sockets, what events say.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from typing import Final

from carpool.http.core.shared_budgets import BudgetShare, SharedBudget

MAX_EVENTS: Final = 256
MAX_SESSION_BYTES: Final = 1024 * 1024
MAX_BYTES: Final = 64 * 1024 * 1024


class _Session:
    """The kept events of one session."""

    __slots__ = ("events", "owner", "size")

    def __init__(self, owner: "_Owner") -> None:
        self.owner = owner
        self.events: deque[tuple[int, int, bytes]] = deque()
        """Exchange, number and text of each, the oldest first."""
        self.size = 0


class _Owner:
    """A principal with kept events."""

    __slots__ = ("sessions", "share")

    def __init__(self, share: BudgetShare) -> None:
        self.share = share
        self.sessions: OrderedDict[int, None] = OrderedDict()
        """The one that has had no event for longest first."""


class EventReplay:
    """Kept events by session (`S`), each of an exchange (`X`; 0 is the session's own stream)."""

    def __init__(
        self, events: int = MAX_EVENTS, session_bytes: int = MAX_SESSION_BYTES, bytes_: int = MAX_BYTES
    ) -> None:
        self._max_events, self._max_session = events, session_bytes
        self._budget = SharedBudget(bytes_)
        self._sessions: dict[int, _Session] = {}
        self._owners: dict[str, _Owner] = {}
        """Of each principal that ever had events kept."""

    def add(self, principal: str, session: int, exchange: int, number: int, event: bytes) -> None:
        """Keep event `number` of an exchange."""
        owner = self._owners.get(principal)
        if owner is None:
            owner = self._owners[principal] = _Owner(self._budget.share_of(principal))
        kept = self._sessions.get(session)
        if kept is None:
            kept = self._sessions[session] = _Session(owner)
        owner.sessions[session] = None
        owner.sessions.move_to_end(session)
        size = len(event)
        while kept.events and (len(kept.events) >= self._max_events or kept.size + size > self._max_session):
            _drop_oldest(kept)
        if size <= self._max_session and self._make_room(owner, session, size):
            kept.events.append((exchange, number, event))
            kept.size += size
        elif not kept.events:
            self.session_closed(session)

    def _make_room(self, owner: _Owner, session: int, size: int) -> bool:
        """Count so many bytes more, and forget older events of this principal for that. Returns False if
        there is no room even so.
        """
        while not owner.share.reserve(size):
            oldest = next(iter(owner.sessions))
            if oldest != session:
                self.session_closed(oldest)
            elif self._sessions[session].events:
                _drop_oldest(self._sessions[session])
            else:
                return False
        return True

    def after(self, session: int, exchange: int, number: int, last: int) -> list[tuple[int, bytes]] | None:
        """Return the events of the exchange after `number`, up to `last`; None if some of them are
        forgotten.
        """
        found = [(n, event) for x, n, event in self._events_of(session) if x == exchange and n > number]
        return found if len(found) == last - number else None

    def exchange_closed(self, session: int, exchange: int) -> None:
        """Forget one exchange."""
        kept = self._sessions.get(session)
        if kept is None:
            return
        kept.events = deque(each for each in kept.events if each[0] != exchange)
        size = sum(len(event) for _, _, event in kept.events)
        kept.owner.share.release(kept.size - size)
        kept.size = size
        if not kept.events:
            self.session_closed(session)

    def session_closed(self, session: int) -> None:
        """Forget all events of a session."""
        kept = self._sessions.pop(session, None)
        if kept is not None:
            del kept.owner.sessions[session]
            kept.owner.share.release(kept.size)

    def check(self) -> None:
        """Assert every invariant."""
        for session, kept in self._sessions.items():
            assert session in kept.owner.sessions
            assert 0 < len(kept.events) <= self._max_events
            assert kept.size == sum(len(event) for _, _, event in kept.events) <= self._max_session
        used: Counter[str] = Counter()
        for principal, owner in self._owners.items():
            used[principal] = sum(self._sessions[session].size for session in owner.sessions)
        self._budget.check(used)
        assert self._budget.used <= self._budget.size

    def _events_of(self, session: int) -> Iterable[tuple[int, int, bytes]]:
        kept = self._sessions.get(session)
        return () if kept is None else kept.events


def _drop_oldest(kept: _Session) -> None:
    size = len(kept.events.popleft()[2])
    kept.size -= size
    kept.owner.share.release(size)
