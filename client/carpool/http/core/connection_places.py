"""The open connections of one HTTP door: which of them may stay, and which gives way to another.

Owns three bounds. There are at most `most` connections. Where tokens are needed, a quarter of them may be of
clients that have shown none which is still good: the oldest of those gives way. The others are shared out
among principals. A connection that was refused stays for a moment, so that its client reads why; `KEPT`
connections more than `most` may be open like that, for operators too, and then the oldest of them gives way.

Invariants: a connection is unknown or has an owner, never both; the count of a principal is the number of its
connections. Pure: connections are opaque names. Knows nothing of: sockets, processes at the other end
(`shares`), tokens.
"""

from collections import Counter
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

C = TypeVar("C", bound=Hashable)
_UNKNOWN_PART: Final = 4
"""One connection in this many may be of clients that have shown no token yet."""


KEPT: Final = 16
"""Connections beyond the bound that may be open: they are refused, or serve operators only."""


class ConnectionPlaces(Generic[C]):
    """The connections that are open."""

    def __init__(self, most: int) -> None:
        """`most`: the most connections that may be open."""
        self.most = most
        self._open: dict[C, None] = {}
        self._refused: dict[C, None] = {}
        """Connections that were refused when they came, the oldest first."""
        self._unknown: dict[C, None] = {}
        """Where tokens are needed: connections that have shown none, the oldest first."""
        self._owners: dict[C, str] = {}
        """The principals of connections that have shown a token."""
        self._count_of: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def open(self) -> list[C]:
        """Return all open connections, the oldest first."""
        return list(self._open)

    @property
    def is_full(self) -> bool:
        """True if there are more connections than there may be: the last one is to be refused. Those that
        were refused do not count.
        """
        return len(self._open) - len(self._refused) > self.most

    @property
    def has_room(self) -> bool:
        """True if one more connection would not be refused."""
        return len(self._open) - len(self._refused) < self.most

    def opened(self, connection: C, *, needs_token: bool) -> list[C]:
        """A connection has opened. Returns the connections to be closed to make room; it forgets them.
        `needs_token`: it must show one, unless its owner is known already.
        """
        self._open[connection] = None
        given: list[C] = []
        if len(self._open) > self.most + KEPT and self._refused:
            given.append(self._give_way(next(iter(self._refused))))
        if needs_token:
            self.token_needed(connection)
            if len(self._unknown) > max(1, self.most // _UNKNOWN_PART):  # who has a token shows it at once
                given.append(self._give_way(next(iter(self._unknown))))
        return given

    def token_needed(self, connection: C) -> None:
        """This connection must show a token, unless it has."""
        if connection not in self._owners:
            self._unknown[connection] = None

    def refused(self, connection: C) -> None:
        """The client of this connection is told that it may not come in."""
        self._refused[connection] = None

    def admitted(self, connection: C) -> None:
        """This connection was refused, and counts now, because there is room."""
        self._refused.pop(connection, None)

    def is_unknown(self, connection: C) -> bool:
        """True if this connection must show a token, and has not."""
        return connection in self._unknown

    def token_shown(self, connection: C, principal: str, principals: int) -> bool:
        """This connection has shown the token of a principal. False: that principal has more than its share
        now, among so many principals.
        """
        self._unknown.pop(connection, None)
        self.owner_known(connection, principal)
        shared = self.most - self.most // _UNKNOWN_PART
        return self._count_of[principal] <= max(1, shared // principals)

    def owner_known(self, connection: C, principal: str) -> None:
        """Count this connection for this principal. It may come before `opened`."""
        self._owners[connection] = principal
        self._count_of[principal] += 1

    def owner_shut_out(self, connection: C) -> None:
        """The token that this connection has shown is not good any more: it must show one again, and gives
        way as others that have shown none.
        """
        self._forget_owner(connection)
        if connection in self._open:
            self.token_needed(connection)

    def owner(self, connection: C) -> str:
        """Return the principal of which it has shown a token; empty if it has shown none."""
        return self._owners.get(connection, "")

    def closed(self, connection: C) -> None:
        """The connection is closed."""
        self._open.pop(connection, None)
        self._unknown.pop(connection, None)
        self._refused.pop(connection, None)
        self._forget_owner(connection)

    def check(self) -> None:
        """Assert every invariant."""
        assert not self._unknown.keys() & self._owners.keys()
        assert self._refused.keys() | self._unknown.keys() <= self._open.keys()
        assert self._count_of == Counter(self._owners.values())

    def _forget_owner(self, connection: C) -> None:
        if (principal := self._owners.pop(connection, None)) is not None:
            self._count_of[principal] -= 1
            if not self._count_of[principal]:
                del self._count_of[principal]

    def _give_way(self, connection: C) -> C:
        self.closed(connection)
        return connection
