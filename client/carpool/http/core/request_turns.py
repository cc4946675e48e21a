"""The work of all connections of one HTTP door, in turns: how much is done at once, and whose comes next.

Owns the bound on what is done in one turn of the event loop, over all connections, and the lines of those
that wait. While nobody waits, work is done as it comes, up to the bound. What comes beyond it waits: each
principal has a line, and the next to be served is the one that has had least, by cost. All clients without a
good token are one principal. A cost is an estimate, since some requests take a hundred times as long as
others of their length; so a turn is over when it has taken its time too, and a piece that was served from a
line costs at least the time that it took. Invariants: in one turn of the loop less than `TURN_COST` is done,
in less than `TURN_S` (`BUSY_TURN_S` while connections wait), and one more piece; a connection stands in a
line at most once; a principal that begins to wait is owed nothing for the time before.

Pure: costs are numbers, the loop is the callback `begin`, and the time is what `cpu_s` says. Knows nothing
of: HTTP, sockets, tokens.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

PIECE_BYTES: Final = 16 * 1024
"""The most bytes of a connection that are parsed as one piece of work. The parser may make a call for every
few bytes. A body that is longer is a piece of work of its own once it is complete.
"""
REQUEST_COST: Final = 2 * 1024
"""A request costs as much as so many bytes that are parsed or read as JSON."""
TURN_COST: Final = 384 * 1024
"""The cost of the work of one turn of the loop: some 150 short requests."""
TURN_S: Final = 0.02
"""The time of the processor that one turn of the loop may take, whatever its work was thought to cost."""
BUSY_TURN_S: Final = 0.005
"""The same while connections wait. A request whose connection has waited sees several turns before its client
has the answer: one in which it comes, one in which it is handled, and one in which the broker answers.
"""
_COST_PER_S: Final = TURN_COST / TURN_S
"""A piece that takes so much time costs so much, if it was thought to cost less."""


class TurnTaker(Protocol):
    """A connection with work that waits."""

    def take_turn(self) -> int:
        """Do one piece of the work and return its cost; 0 if there was nothing to do any more."""


class RequestTurns:
    """The turns of one door's connections."""

    def __init__(
        self,
        begin: Callable[[], object],
        most: int = TURN_COST,
        cpu_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`begin` has `run` called in the next turn of the loop. `cpu_s`: the time that the door has worked
        so far.
        """
        self._begin = begin
        self._most = most
        self._cpu_s = cpu_s
        self._until = 0.0
        """This turn of the loop is over once the door has worked so long; 0: none has begun."""
        self._left = most
        """The cost for which this turn of the loop still has room; negative after a larger piece."""
        self._has_begun = False
        """`run` will be called."""
        self._lines: dict[str, deque[TurnTaker]] = {}
        """Those that wait, by principal."""
        self._had: dict[str, int] = {}
        """The cost of the work done for each principal since a connection began to wait."""
        self._level = 0
        """This cost for the principal that was served last, as it was before."""

    def spend(self, size: int) -> bool:
        """Count a request of so many bytes, which is handled at once. Returns False if this turn has no room
        for it; then it must wait.
        """
        left = self._left
        if left <= 0 or self._cpu_s() >= self._until:
            if self._has_begun:
                return False
            self._begin_turn()
        self._left = left - size - REQUEST_COST
        return True

    def charge(self, size: int) -> None:
        """Count so many bytes more for the work that is done now: they came before it, and are read now."""
        self._left -= size

    def add(self, taker: TurnTaker, principal: str) -> None:
        """Let this connection wait for a turn of its principal. It may not be waiting already."""
        line = self._lines.get(principal)
        if line is None:
            line = self._lines[principal] = deque()
            self._had[principal] = max(self._had.get(principal, 0), self._level)
        line.append(taker)
        if not self._has_begun:
            self._begin_turn()

    def run(self) -> None:
        """Begin a turn of the loop: do what waits, as far as one turn has room for it."""
        self._left = self._most
        began = now = self._cpu_s()
        self._until = began + BUSY_TURN_S
        try:
            while self._lines and self._left > 0 and now < self._until:
                now = self._serve_next(now)
            if not self._lines:
                self._until = began + TURN_S
        finally:
            if self._left < self._most or self._lines:
                self._begin()
            else:
                self._has_begun = False
                self._until = 0.0
                self._had.clear()
                self._level = 0

    def _begin_turn(self) -> None:
        self._has_begun = True
        self._until = self._cpu_s() + TURN_S
        self._begin()

    def _serve_next(self, now: float) -> float:
        """Do the next piece. Returns the time after it."""
        principal = min(self._lines, key=self._had.__getitem__)
        line = self._lines[principal]
        taker = line.popleft()
        if not line:
            del self._lines[principal]
        self._level = self._had[principal]
        cost = taker.take_turn()
        self._left -= cost
        after = self._cpu_s()
        self._had[principal] += max(cost, int((after - now) * _COST_PER_S))
        return after

    def check(self) -> None:
        """Assert every invariant."""
        assert all(self._lines.values())
        assert self._lines.keys() <= self._had.keys()
        assert self._has_begun or not self._lines
        takers = [taker for line in self._lines.values() for taker in line]
        assert len({id(taker) for taker in takers}) == len(takers)
