"""The order in which `carpool/…` requests begin: one in each pass of the event loop, sessions in turn.

Owns who waits to begin. Each of these requests may take milliseconds, and many may come at once: so calls of
agents are handled between any two of them, and one session's many do not hold up another's one.

Invariants: while anybody waits, one turn is given; a request that is cancelled gives its turn to the next.

Knows nothing of: what is asked, how many one session may have open.
"""

from collections import deque

import trio

from carpool_protocol.ids import SessionId


class ControlTurns:
    """The turns of one broker."""

    def __init__(self) -> None:
        self._lines: dict[SessionId, deque[trio.Event]] = {}
        """Those that wait, by session; the session whose turn is next stands first."""
        self._is_given = False
        """Somebody has a turn, and gives the next one."""

    async def wait(self, session: SessionId) -> None:
        """Wait for the turn of a request of this session."""
        turn = trio.Event()
        self._lines.setdefault(session, deque()).append(turn)
        if not self._is_given:
            self._give_next()
        try:
            await turn.wait()
        finally:
            if turn.is_set():
                self._give_next()  # it runs in the next pass
            else:
                self._remove(session, turn)

    def _give_next(self) -> None:
        session = next(iter(self._lines), None)
        self._is_given = session is not None
        if session is not None:
            line = self._lines.pop(session)
            line.popleft().set()
            if line:
                self._lines[session] = line  # behind the others

    def _remove(self, session: SessionId, turn: trio.Event) -> None:
        line = self._lines[session]
        line.remove(turn)
        if not line:
            del self._lines[session]
