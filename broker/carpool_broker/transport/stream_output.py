"""Output of a multiplexed connection that the HTTP door has not read yet, counted by stream.

Owns the ends of the waiting lines in the output of one multiplexed connection, the waiting bytes of each
stream, and when they are reported: at each `REPORT_BYTES` more, and whenever the door has read some. So the
limit of unread bytes holds for each stream, and not for the connection (docs/decisions/0014). Only lines that
were written while the connection was blocked count. A line counts with all its bytes until the last one is
read.

Invariants (`check`): the sums are those of the waiting lines. Knows nothing of: sockets, frames, what follows
from a report.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from carpool_protocol.ids import SessionId

REPORT_BYTES: Final = 64 * 1024


class StreamOutput:
    """The waiting output of one multiplexed connection."""

    def __init__(self, report: Callable[[SessionId, int], None]) -> None:
        """`report`: gets the number of bytes that wait for a stream."""
        self._report = report
        self._lines: deque[tuple[int, SessionId, int]] = deque()
        """Waiting lines: their end in the output of the connection, their session and size."""
        self._waiting: dict[SessionId, int] = {}
        self._reported: dict[SessionId, int] = {}

    def line_written(self, session: SessionId, size_bytes: int, end: int) -> None:
        """A line waits that ends `end` bytes after the start of the connection's output."""
        self._lines.append((end, session, size_bytes))
        waiting = self._waiting[session] = self._waiting.get(session, 0) + size_bytes
        reported = self._reported.get(session, 0)
        if not reported or waiting - reported >= REPORT_BYTES:
            self._reported[session] = waiting
            self._report(session, waiting)

    def output_taken(self, end: int) -> None:
        """The door has taken this much of the connection's output."""
        lines, waiting = self._lines, self._waiting
        taken: set[SessionId] = set()
        while lines and lines[0][0] <= end:
            _, session, size_bytes = lines.popleft()
            if session in waiting:
                waiting[session] -= size_bytes
                taken.add(session)
        for session in taken:
            left = waiting.get(session)
            if left is None:
                continue  # a report has ended it
            if not left:
                del waiting[session], self._reported[session]
                self._report(session, 0)
            else:  # also a small change: the core has added each answer since the last report
                self._reported[session] = left
                self._report(session, left)

    def forget(self, session: SessionId) -> None:
        """The session has ended. What waits for it is still written, and counts for nobody."""
        self._waiting.pop(session, None)
        self._reported.pop(session, None)

    def connection_closed(self) -> None:
        """Nothing waits any more."""
        waiting = list(self._waiting)
        self._lines.clear()
        self._waiting.clear()
        self._reported.clear()
        for session in waiting:
            self._report(session, 0)

    def check(self) -> None:
        """Assert every invariant."""
        sums: dict[SessionId, int] = {}
        for _, session, size_bytes in self._lines:
            if session in self._waiting:
                sums[session] = sums.get(session, 0) + size_bytes
        assert sums == self._waiting
        assert self._reported.keys() == self._waiting.keys()
