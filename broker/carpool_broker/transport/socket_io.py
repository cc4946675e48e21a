"""One agent's socket: lines in, lines out, and the output that waits for a slow reader.

Owns the socket and its buffers. Nothing here blocks. Reading goes on with any number of open requests,
because an answer, a cancel or a ping may be the next line. It stops only while the agent does not read its
output (rule 3), or while the agent server asks for it.

The end of an agent's input is not its end: it may have closed one direction only, as a client does that is
fed from a file, and still reads. Then `on_input_ended` is called, and only the hang-up is watched. A read, a
write or the agent server may find that the agent is gone; the socket is then closed at once, and `on_closed`
is called between two bursts, never from within a call (docs/decisions/0031).

Knows nothing of: JSON, sessions, the attach line.
"""

import select
import socket
from collections import deque
from collections.abc import Callable

from carpool_protocol.bootstrap import peer_credentials
from carpool_protocol.ids import CallId
from carpool_protocol.runtime.poller import HEARS_HANG_UPS, ROUND_BYTES, TURN_LINES, ReadySet
from carpool_protocol.runtime.pump import OUTPUTS_PER_FLUSH
from carpool_protocol.wire.lines import LineBuffer, OverlongLine

LINE_CAP_BYTES = 8 * 1024 * 1024
UNREAD_HIGH_BYTES = 1024 * 1024
"""With more unread output than this, the agent's input is not read."""
_BATCH_BYTES = 256 * 1024
"""Lines up to this size together are joined; longer ones are sent as they are, without a copy."""
_STEP_BYTES = 1024 * 1024
"""`on_unread` is called each time the unread output grows or shrinks by this much."""

_room = memoryview(bytearray(ROUND_BYTES))
"""Buffer for input of any socket, until it is split into lines.

`recv` allocates 64 KiB each time and gives back the unused part: the heap grew by 3.5 MB in 40 minutes, full
of holes that are too small for the next read.
"""


class AgentIo:
    """One agent's socket on the ready set.

    `on_closed` is called once, when no input is being handled; nothing else is called after the socket is
    closed. `on_input_ended` is called once after the last line, if the agent may still read.
    `on_unfinished` is called after each read that leaves a line unfinished, and after the one that ends it.
    `on_unread` gets the number of unread bytes, at every `_STEP_BYTES` of change, and 0 once the
    agent has read all.
    """

    def __init__(
        self,
        sock: socket.socket,
        ready: ReadySet,
        *,
        on_lines: Callable[[list[bytes | OverlongLine]], None],
        on_closed: Callable[[], None],
        on_input_ended: Callable[[], None],
        on_unfinished: Callable[[], None],
        on_unread: Callable[[int], None],
        written: list[CallId],
    ) -> None:
        """`written`: list to which calls are added once the socket has taken their answers."""
        self._sock = sock
        self._fd = sock.fileno()
        self._ready = ready
        self._on_lines = on_lines
        self._on_closed = on_closed
        self._on_input_ended = on_input_ended
        self._on_unfinished = on_unfinished
        self._on_unread = on_unread
        self._buffer = LineBuffer(cap_bytes=LINE_CAP_BYTES)
        self._buffer.blanks = True  # until `skip_blanks`, because a carrier may count lines
        self._out: deque[bytes | memoryview] = deque()
        self._marks: deque[tuple[int, CallId]] = deque()
        """Answers that are not completely sent: their end in the stream of all accepted bytes, and their
        call.
        """
        self._written = written
        self._unsent = memoryview(b"")
        self._waiting_bytes = 0
        """Bytes accepted and not yet taken by the socket."""
        self._later: list[bytes | OverlongLine] = []
        """Lines of one read that wait for their turn, or until the agent reads."""
        self._going = False
        self._unfinished = False
        """True: the last read brought no line end, so the part of the line counts towards the receive
        budget.
        """
        self._blocked = False
        self._steps = 0
        """The step of unread output that was last reported."""
        self._held = False
        self._waits = False
        self._ends = False
        self._paused = False
        self.progress = 0
        """Number of bytes that the agent has taken."""
        self.input_ended = False
        """True: the agent sends nothing more, and may still read."""
        self.closed = False
        ready.add(self._fd, self._read_ready)

    @property
    def pending_bytes(self) -> int:
        """Bytes of the unfinished line."""
        return self._buffer.pending_bytes

    @property
    def unread_bytes(self) -> int:
        """Bytes accepted and not yet taken by the socket."""
        return self._waiting_bytes

    def written_bytes(self) -> int:
        """Bytes accepted so far, with those that the socket has taken."""
        return self.progress + self._waiting_bytes

    @property
    def is_blocked(self) -> bool:
        """True while the agent does not read."""
        return self._blocked

    def peer_pid(self) -> int:
        """The agent's pid if the system tells it, else 0."""
        found = peer_credentials.peer(self._sock)
        return found[0] if found is not None else 0

    def peer_uid(self) -> int | None:
        """The agent's user if the system tells it."""
        found = peer_credentials.peer(self._sock)
        return None if found is None else found[1]

    def write(self, line: bytes | memoryview) -> None:
        """Accept a complete line, or a piece of a long one; `flush` sends it. Does nothing once the socket is
        closed.
        """
        if self.closed:
            return
        self._out.append(line)
        self._waiting_bytes += len(line)
        if self._waiting_bytes > UNREAD_HIGH_BYTES and not self._blocked:
            self.flush()  # now, to find out soon if the agent reads

    def mark_call(self, call: CallId) -> None:
        """Add this call to `written` when the socket has taken everything accepted so far."""
        if self.closed:
            return
        self._marks.append((self.progress + self._waiting_bytes, call))
        if not self._waiting_bytes:  # it is sent already
            self._marks_reached()

    def skip_blanks(self) -> None:
        """Leave out empty lines from now on, because the carrier does not count lines."""
        self._buffer.blanks = False
        self._later = [line for line in self._later if line]

    def flush(self) -> None:
        """Send as much as the socket takes now. The rest follows automatically."""
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

    def _next_batch(self) -> bytes | memoryview:
        """The next lines to send together: at least one, at most `_BATCH_BYTES` joined."""
        out = self._out
        lines = [out.popleft()]
        room = _BATCH_BYTES - len(lines[0])
        while out and len(out[0]) <= room:
            room -= len(out[0])
            lines.append(out.popleft())
        return lines[0] if len(lines) == 1 else b"".join(lines)

    def set_held(self, held: bool) -> None:
        """Stop reading because the receive budget is spent, or read again."""
        self._held = held
        self._update_reading()
        if self._later:
            self._hand_over()

    def stop_reading(self) -> None:
        """Read no more, for good: the broker ends, and a carrier keeps what was not read."""
        self._ends = True
        self._update_reading()

    def set_waiting(self, waits: bool) -> None:
        """Stop reading while the session is not admitted yet, or read again.

        Lines that were read meanwhile are handled then, even if no more input follows.
        """
        self._waits = waits
        self._update_reading()
        if self._later:
            self._hand_over()

    def close(self) -> None:
        """Close the socket and drop all waiting output."""
        if not self.closed:
            self.closed = True
            self._ready.remove(self._fd)
            self._sock.close()
            self._out.clear()
            self._marks.clear()
            self._unsent = memoryview(b"")
            self._waiting_bytes = 0
            self._ready.call_soon(self._on_closed)
            # They refer to the agent and back to this object. Without the circle they are freed now, not by
            # the garbage collector.
            self._on_lines = self._on_unread = _ignore
            self._on_closed = self._on_unfinished = self._on_input_ended = _ignore

    def _read_ready(self) -> None:
        if self._later:
            self._hand_over()
            return
        try:
            share = self._ready.share_bytes
            if self._unfinished and self._buffer.pending_bytes > ROUND_BYTES:
                share = ROUND_BYTES
            size = self._sock.recv_into(_room, share)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if not size:
            self._end_input()
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

    def _end_input(self) -> None:
        """Nothing more comes. A last line without a line end counts, if the agent can still be answered."""
        if self.input_ended or self.is_hung_up():
            self.close()
            return
        self.input_ended = True
        self._ready.watch_hang_up(self._fd)
        if lines := self._buffer.end():
            self._on_lines(lines)
            self._unfinished = False
            self._on_unfinished()
        self._on_input_ended()

    def is_hung_up(self) -> bool:
        """True if the agent has closed both directions. Asked after the end of its input."""
        if HEARS_HANG_UPS:
            watch = select.poll()
            watch.register(self._fd, 0)
            return any(event & (select.POLLHUP | select.POLLERR) for _, event in watch.poll(0))
        try:  # macOS reports a hang-up for one closed direction too, but forgets the peer of a closed socket
            self._sock.getpeername()
        except OSError:
            return True
        return False

    def _hand_over(self) -> None:
        """Pass read lines on in pieces, because one read may hold a thousand requests.

        Their answers may fill the agent's buffer. A flood of lines gets more than one turn.
        """
        if self._going:
            return  # called from within: the outer loop continues
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
            if self._out:  # one batch a round, so that a fast reader of much output does not delay others
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
        """Read unless the socket is held, or too much output is unread."""
        if self.closed:
            return
        steps = self._waiting_bytes // _STEP_BYTES + 1 if self._blocked else 0
        if steps != self._steps:
            self._steps = steps
            self._on_unread(self._waiting_bytes if steps else 0)
        is_full = self._blocked and self._waiting_bytes > UNREAD_HIGH_BYTES
        pause = self._held or self._waits or self._ends or is_full
        if pause != self._paused:
            self._paused = pause
            if pause:
                self._ready.pause_read(self._fd)
            else:
                self._ready.resume_read(self._fd)


def _ignore(*_: object) -> None:
    """In place of the callbacks of a closed connection."""
