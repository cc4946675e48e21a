"""Events of one HTTP request, written in turns as fast as its client reads.

For streams with several long messages, such as the answers of an array: written at once, the second one would
count as left unread, and the HTTP door would cut a client that reads well. Owns the events that wait for
their turn, and the end of the stream after the last of them. Invariants: events keep their order; none is
written while the client has left earlier ones unread; what waits counts in the share of its principal.

Knows nothing of: the content of events, what follows when there is no room for one.
"""

from collections import deque
from typing import Final

from carpool.http.core.effects import ContinueEvents, Effect, EndEvents, WriteEvents
from carpool.http.core.shared_budgets import BudgetShare

TURN_BYTES: Final = 64 * 1024
"""A turn ends with the event that reaches this size. Then the shell tells whether the client has read it."""


class EventTurns:
    """The events of HTTP request `x`. Effects are appended to `out`."""

    def __init__(self, x: int, principal: str, share: BudgetShare, out: list[Effect]) -> None:
        """`share`: that of the principal."""
        self._x = x
        self.principal = principal
        self._share = share
        self._out = out
        self._events: deque[bytes] = deque()
        self.size = 0
        """The bytes of the events that wait."""
        self._written = 0
        """The bytes of this turn."""
        self._is_blocked = False
        """The client leaves something unread."""
        self._is_ended = False

    def __bool__(self) -> bool:
        """True while something waits."""
        return bool(self._events)

    @property
    def is_held(self) -> bool:
        """True if nothing may be written now: the client has not read, or the turn is over."""
        return self._is_blocked or self._written >= TURN_BYTES

    def write(self, data: bytes, *, must: bool = False) -> bool:
        """Write an event when it is its turn. Returns False if there is no room for it to wait. `must`: it
        waits in any case.
        """
        if not self._events and not self.is_held:
            self._emit(data)
            return True
        if must:
            self._share.count(len(data))
        elif not self._share.reserve(len(data)):
            return False
        self._events.append(data)
        self.size += len(data)
        return True

    def end(self) -> bool:
        """End the stream after the last event. Returns True if that was written."""
        self._is_ended = True
        if not self._events:
            self._out.append(EndEvents(self._x))
        return not self._events

    def client_blocked(self) -> None:
        """The client leaves something unread."""
        self._is_blocked = True

    def client_has_room(self) -> bool:
        """The client has read what was written. Returns True if the stream has ended."""
        self._is_blocked = False
        return self.continue_turn()

    def continue_turn(self) -> bool:
        """Begin the next turn, if the client has room. Returns True if the stream has ended."""
        if self._is_blocked:
            return False
        self._written = 0
        while self._events and not self.is_held:
            data = self._events.popleft()
            self._released(len(data))
            self._emit(data)
        return self._is_ended and self.end()

    def drop(self) -> None:
        """Forget what waits: the client is gone."""
        self._events.clear()
        self._released(self.size)

    def shut_out(self) -> bool:
        """Forget what waits: the client may not read it any more. Returns True if the stream has ended."""
        self.drop()
        return self._is_ended and self.end()

    def _released(self, size: int) -> None:
        self.size -= size
        self._share.release(size)

    def _emit(self, data: bytes) -> None:
        self._out.append(WriteEvents(self._x, data))
        self._written += len(data)
        if self.is_held:
            self._out.append(ContinueEvents(self._x))
