"""The limit on what a node's process holds of the lines of its broker, over all sessions.

Owns which sessions wait to read again, and what they call then. A session's line is held here while it
arrives, and while it waits for room at the other node: up to 64 MiB. The limit is shared by the nodes
(`LineShares`): of a node above its share only the line that has been held longest goes on, so that it can
end. A node that takes nothing holds up its own sessions and no others.

Knows nothing of: sockets, how reading stops.
"""

from collections.abc import Callable
from typing import Final

from carpool_protocol.machine.line_shares import LineShares

HELD_BYTES: Final = 256 * 1024 * 1024
"""The limit for all sessions together, beside one line of each node."""
LONG_BYTES: Final = 256 * 1024
"""A session that holds less is never held up."""


class LineBudget:
    """The bytes that all sessions hold. A holder is any object with an identity. `node`: its agent's."""

    def __init__(self, limit_bytes: int = HELD_BYTES) -> None:
        self._shares = LineShares[object, str](limit_bytes, each_owner=True)
        self._may_read: dict[object, Callable[[], None]] = {}
        """Held holders, with what to call when they may read again."""

    @property
    def held_bytes(self) -> int:
        """The bytes that are held now, without sessions that hold little."""
        return self._shares.total_bytes

    def holds(self, node: str, holder: object, size_bytes: int) -> None:
        """This holder holds so much now."""
        if size_bytes > LONG_BYTES:
            self._shares.line_grew(holder, node, size_bytes)
        else:
            self._shares.line_ended(holder)
        if self._may_read:
            free = [each for each in self._may_read if each not in self._shares.held]
            for again in [self._may_read.pop(each) for each in free]:
                again()

    def may_read(self, holder: object, again: Callable[[], None]) -> bool:
        """True if this holder may read more. Otherwise `again` is called once it may."""
        if holder in self._shares.held:
            self._may_read[holder] = again
            return False
        self._may_read.pop(holder, None)
        return True

    def forget(self, node: str, holder: object) -> None:
        """This holder is gone."""
        self._may_read.pop(holder, None)
        self.holds(node, holder, 0)
