"""One agent's socket: lines in, lines out, and what waits for a slow reader.

Owns the socket and its buffers. Nothing here blocks. Reading goes on whatever is open (an answer,
a cancel or a ping may be the next line); it stops only while the agent does not read what we write
(rule 3), or while the door says so.

Whatever finds that the agent is gone, a read, a write or the door, closes the socket at once; that it is
closed is told between two bursts, never from within a call (docs/decisions/0031).

Knows nothing of: JSON, sessions, the attach line.
"""

import socket
from collections import deque
from collections.abc import Callable

from carpool_protocol.bootstrap import peer_credentials
from carpool_protocol.ids import CallId
from carpool_protocol.runtime.poller import TURN_LINES, ReadySet
from carpool_protocol.runtime.pump import OUTPUTS_PER_FLUSH
from carpool_protocol.wire.lines import LineBuffer, OverlongLine

LINE_CAP_BYTES = 8 * 1024 * 1024
UNREAD_HIGH_BYTES = 1024 * 1024
"""So much that the agent has not read stops our reading of it."""
READ_BYTES = 64 * 1024
SMALL_READ_BYTES = 1024
"""While very many agents say something at once: a few calls of each, so that whoever has but one to make does
not wait for hundreds of each of the others."""
_BATCH_BYTES = 256 * 1024
"""Lines up to this size together are joined; longer ones leave as they are, without a copy."""
_STEP_BYTES = 1024 * 1024
"""With every step more or less that is unread, `on_unread` is told."""

_room = memoryview(bytearray(READ_BYTES))
"""What was read of any socket, until it is lines. `recv` asks for 64 KiB each time and gives back what it did
not need: so the heap grew by 3.5 MB in 40 minutes, full of holes that are too small for the next read.
"""


class AgentIo:
    """One agent's socket on the ready set. `on_closed` is called once, when everything under way is over;
    nothing else is called after the socket is closed. `on_unfinished` is called after each read that leaves a
    line unfinished, and after the one that ends it; `on_unread` with how much the agent leaves unread, at
    every step of that, and with 0 once it has read all.
    """

    def __init__(
        self,
        sock: socket.socket,
        ready: ReadySet,
        *,
        on_lines: Callable[[list[bytes | OverlongLine]], None],
        on_closed: Callable[[], None],
        on_unfinished: Callable[[], None],
        on_unread: Callable[[int], None],
        written: list[CallId],
    ) -> None:
        """Calls whose answers the socket has taken are added to `written`."""
        self._sock = sock
        self._fd = sock.fileno()
        self._ready = ready
        self._on_lines = on_lines
        self._on_closed = on_closed
        self._on_unfinished = on_unfinished
        self._on_unread = on_unread
        self._buffer = LineBuffer(cap_bytes=LINE_CAP_BYTES)
        self._buffer.blanks = True  # until it is known that nobody counts lines (`skip_blanks`)
        self._out: deque[bytes] = deque()
        self._marks: deque[tuple[int, CallId]] = deque()
        """Answers that are not all sent: where each ends in all that was ever accepted, and its call."""
        self._written = written
        self._unsent = memoryview(b"")
        self._waiting_bytes = 0
        """Accepted and not yet taken by the socket."""
        self._later: list[bytes | OverlongLine] = []
        """Lines that were read together with others, and wait for their turn, or until the agent reads."""
        self._going = False
        self._unfinished = False
        """The last read brought no line end: what there is of a line counts towards the door's budget."""
        self._blocked = False
        self._steps = 0
        """As last told."""
        self._held = False
        self._waits = False
        self._paused = False
        self.progress = 0
        """Grows with every byte the agent takes."""
        self.closed = False
        ready.add(self._fd, self._read_ready)

    @property
    def pending_bytes(self) -> int:
        """Of the unfinished line."""
        return self._buffer.pending_bytes

    @property
    def unread_bytes(self) -> int:
        """Accepted and not yet taken by the socket."""
        return self._waiting_bytes

    @property
    def is_blocked(self) -> bool:
        """The agent does not read."""
        return self._blocked

    def peer_pid(self) -> int:
        """The agent's pid where the system tells it, else 0."""
        found = peer_credentials.peer(self._sock)
        return found[0] if found is not None else 0

    def write(self, line: bytes) -> None:
        """Accept a complete line. `flush` sends it. Nothing happens once the socket is closed."""
        if self.closed:
            return
        self._out.append(line)
        self._waiting_bytes += len(line)
        if self._waiting_bytes > UNREAD_HIGH_BYTES and not self._blocked:
            self.flush()  # now, so that it is known soon whether the agent reads

    def mark_call(self, call: CallId) -> None:
        """This call is `written` when the socket has all that was accepted so far."""
        if self.closed:
            return
        self._marks.append((self.progress + self._waiting_bytes, call))
        if not self._waiting_bytes:  # it is gone already
            self._marks_reached()

    def skip_blanks(self) -> None:
        """Nobody counts the lines: from now on empty ones are left out."""
        self._buffer.blanks = False
        self._later = [line for line in self._later if line]

    def flush(self) -> None:
        """Send what the socket takes now; the rest follows by itself."""
        if self.closed or not self._out:
            return
        if self._blocked:
            self._update_reading()
            return
        out = self._out
        if self._waiting_bytes <= _BATCH_BYTES:
            data = out[0] if len(out) == 1 else b"".join(out)
            out.clear()
        else:
            data = self._next_batch()
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close()
            return
        self.progress += sent
        self._waiting_bytes -= sent
        if self._marks:
            self._marks_reached()
        if sent < len(data) or out:
            self._unsent = memoryview(data)[sent:]
            self._blocked = True
            self._ready.want_write(self._fd, self._write_ready)
            self._update_reading()

    def _next_batch(self) -> bytes:
        """The next lines, as many as are worth joining, and one at least."""
        out = self._out
        lines = [out.popleft()]
        room = _BATCH_BYTES - len(lines[0])
        while out and len(out[0]) <= room:
            room -= len(out[0])
            lines.append(out.popleft())
        return lines[0] if len(lines) == 1 else b"".join(lines)

    def set_held(self, held: bool) -> None:
        """The door's word: do not read (the receive budget is spent), or read again."""
        self._held = held
        self._update_reading()
        if self._later:
            self._hand_over()

    def set_waiting(self, waits: bool) -> None:
        """Do not read while it is not known whether the agent comes in, or read again. What it has said is
        answered then, also where nothing comes after that: its end is read last.
        """
        self._waits = waits
        self._update_reading()
        if self._later:
            self._hand_over()

    def close(self) -> None:
        """Let go of the socket and of all that waits for it."""
        if not self.closed:
            self.closed = True
            self._ready.remove(self._fd)
            self._sock.close()
            self._out.clear()
            self._marks.clear()
            self._unsent = memoryview(b"")
            self._waiting_bytes = 0
            self._ready.call_soon(self._on_closed)
            # They lead to the agent and back here: what stands in no circle is freed now, not when the
            # collector comes.
            self._on_lines = self._on_unread = _ignore
            self._on_closed = self._on_unfinished = _ignore

    def _read_ready(self) -> None:
        if self._later:
            self._hand_over()
            return
        try:
            crowded = self._ready.crowded and self._buffer.pending_bytes <= READ_BYTES
            size = self._sock.recv_into(_room, SMALL_READ_BYTES if crowded else READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            size = 0
        if not size:
            self.close()
            return
        lines = self._buffer.feed(_room[:size].tobytes())
        if not lines:
            self._unfinished = True
            self._on_unfinished()
            return
        if len(lines) <= OUTPUTS_PER_FLUSH:
            self._on_lines(lines)
        else:
            self._later = lines
            self._hand_over()
        if self._unfinished:
            self._unfinished = False
            self._on_unfinished()

    def _hand_over(self) -> None:
        """Hand over what was read: a piece at a time, for one read may hold a thousand requests, and what
        answers them may be all that the agent can take. A flood has more than one turn.
        """
        if self._going:
            return  # from within: the piece before comes to its end first
        self._going = True
        left = TURN_LINES
        while self._later and left > 0 and not self._paused and not self.closed:
            lines, self._later = self._later[:OUTPUTS_PER_FLUSH], self._later[OUTPUTS_PER_FLUSH:]
            left -= OUTPUTS_PER_FLUSH
            self._on_lines(lines)
        self._going = False
        if self._later and not self._paused and not self.closed:
            self._ready.read_again(self._fd)

    def _write_ready(self) -> None:
        try:
            sent = self._sock.send(self._unsent)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        self.progress += sent
        self._waiting_bytes -= sent
        if self._marks:
            self._marks_reached()
        self._unsent = self._unsent[sent:]
        if not self._unsent:
            if self._out:  # one batch a round: a fast reader of much does not keep everybody waiting
                self._unsent = memoryview(self._next_batch())
            else:
                self._unsent = memoryview(b"")
                self._blocked = False
                self._ready.want_write(self._fd, None)
        self._update_reading()
        if self._later:
            self._hand_over()

    def _marks_reached(self) -> None:
        marks, progress = self._marks, self.progress
        while marks and marks[0][0] <= progress:
            self._written.append(marks.popleft()[1])

    def _update_reading(self) -> None:
        """Whether to read: not while held, nor while too much waits for the agent."""
        if self.closed:
            return
        steps = self._waiting_bytes // _STEP_BYTES + 1 if self._blocked else 0
        if steps != self._steps:
            self._steps = steps
            self._on_unread(self._waiting_bytes if steps else 0)
        pause = self._held or self._waits or (self._blocked and self._waiting_bytes > UNREAD_HIGH_BYTES)
        if pause != self._paused:
            self._paused = pause
            if pause:
                self._ready.pause_read(self._fd)
            else:
                self._ready.resume_read(self._fd)


def _ignore(*_: object) -> None:
    """What a closed connection calls."""
