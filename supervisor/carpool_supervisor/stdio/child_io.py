"""One instance's stdin and stdout: lines out in order, lines in, and what never reached the process.

Owns the two descriptors and what waits for a full pipe. Nothing here ever blocks or waits: a server that
never reads its stdin only makes `unwritten_bytes` grow, and whoever writes watches that number.

Invariants: lines are written whole and in order; `unwritten_count` never counts a line that the process
could have executed; reading never depends on writing (a full stdin and a full stdout must not deadlock);
no more than `TURN_LINES` lines are handed over in one turn.

Pipes are raised to 1 MiB for an instance that has sent a long line, and for few of them: raising all
pipes of a user shrinks everybody's new ones to 8 KiB (rule 11).
Knows nothing of: JSON, calls, stderr, why the process runs.
"""

import fcntl
import os
import struct
import termios
from collections import deque
from collections.abc import Callable

from carpool_protocol.runtime.poller import TURN_LINES, ReadySet
from carpool_protocol.wire.lines import LineBuffer, OverlongLine

LINE_CAP_BYTES = 64 * 1024 * 1024
LONG_LINE_BYTES = 256 * 1024
RAISED_PIPE_BYTES = 1024 * 1024
RAISED_INSTANCES = 16

_READ_BYTES = 64 * 1024
"""What an unraised pipe holds. Asking for 256 KiB costs 9 us of page faults for every short read."""
_RAISED_READ_BYTES = 256 * 1024
_BATCH_BYTES = 64 * 1024
"""Below this, joining lines is cheaper than writev(2) and one write takes them all."""


class PipeBudget:
    """How many instances may have raised pipes at a time. One for the whole supervisor."""

    def __init__(self, limit: int = RAISED_INSTANCES) -> None:
        self._free = limit

    def acquire(self) -> bool:
        if self._free == 0:
            return False
        self._free -= 1
        return True

    def release(self) -> None:
        self._free += 1


class ChildIo:
    """The pipes of one instance on the `ReadySet`. Closes them itself; `close` may be called twice.

    `on_lines` gets complete lines without their newline, at least one. `on_stdout_closed` is called once,
    never from `close`. `on_stdin_blocked` says that the pipe is full (True; may come from within `flush`)
    and that everything has been written since (False). `on_stdin_broken` is called once, perhaps from within
    `flush`: the process reads no more, and what is unwritten stays so. `on_long_line` is called whenever the
    unfinished line on stdout has grown beyond `LONG_LINE_BYTES`, and when such a line has come to its end.
    `on_paused` says that reading has stopped (True) or goes on (False), each time that changes.
    """

    def __init__(
        self,
        ready: ReadySet,
        stdin_fd: int,
        stdout_fd: int,
        budget: PipeBudget,
        *,
        on_lines: Callable[[list[bytes | OverlongLine]], None],
        on_stdout_closed: Callable[[], None],
        on_stdin_blocked: Callable[[bool], None],
        on_stdin_broken: Callable[[], None],
        on_long_line: "Callable[[ChildIo], None]",
        on_paused: Callable[[bool], None],
        cap_bytes: int = LINE_CAP_BYTES,
    ) -> None:
        self._ready = ready
        self._stdin_fd = stdin_fd
        self._stdout_fd = stdout_fd
        self._budget = budget
        self._on_lines = on_lines
        self._on_stdout_closed = on_stdout_closed
        self._on_stdin_blocked = on_stdin_blocked
        self._on_stdin_broken = on_stdin_broken
        self._on_long_line = on_long_line
        self._on_paused = on_paused
        self._is_paused = False
        self._buffer = LineBuffer(cap_bytes=cap_bytes)
        self._ahead: list[bytes | OverlongLine] = []
        """Lines that were read and wait for their turn."""
        self._lines: deque[bytes] = deque()
        self._offset = 0
        """Bytes of the first waiting line that are written."""
        self._is_waiting = False
        self._line_bytes = 0
        """Length so far of the unfinished line on stdout."""
        self._raised: bool | None = False
        """None: it was refused, not to be tried again."""
        self._read_bytes = _READ_BYTES
        self.unwritten_bytes = 0
        """Accepted by `write` and not yet taken by the pipe."""
        self.received_bytes = 0
        """Everything that ever came on stdout: it grows, the instance lives."""
        self.is_stdin_broken = False
        """The process has closed its stdin, or has ended: nothing more can be delivered."""
        ready.add(stdout_fd, self._readable)
        ready.add(stdin_fd, _nothing)
        ready.pause_read(stdin_fd)  # watched only while the pipe is full

    # --- towards the process ------------------------------------------------------------------------------

    def write(self, line: bytes) -> None:
        """Accept a complete line, its newline included. `flush` writes it."""
        self._lines.append(line)
        self.unwritten_bytes += len(line)

    def flush(self) -> None:
        """Hand over what the pipe takes now; the rest follows by itself, in order."""
        if self._lines and not self._is_waiting and self._stdin_fd >= 0 and not self.is_stdin_broken:
            self._push()

    def unwritten_count(self) -> int:
        """How many of the last written lines the process cannot have executed, not one byte more.

        A line that lacks only its newline counts as written: at end of file a server may take it as it is.
        """
        count = len(self._lines)
        if count and self._offset >= len(self._lines[0]) - 1 and self._offset:
            count -= 1
        return count

    def close_stdin(self) -> None:
        """End of file for the process, at once: what a full pipe still holds back is not delivered."""
        if self._stdin_fd < 0:
            return
        self.flush()
        self._is_waiting = False
        self._ready.remove(self._stdin_fd)
        os.close(self._stdin_fd)
        self._stdin_fd = -1

    def _push(self) -> None:
        while self._lines:
            data = self._next_batch()
            try:
                sent = os.write(self._stdin_fd, data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self.is_stdin_broken = True
                self._stop_waiting()
                self._on_stdin_broken()
                return
            self._advance(sent)
            if sent < len(data):
                if not self._is_waiting:
                    self._is_waiting = True
                    self._ready.want_write(self._stdin_fd, self._push)
                    self._on_stdin_blocked(True)
                return
        if self._is_waiting:
            self._stop_waiting()
            self._on_stdin_blocked(False)

    def _next_batch(self) -> bytes | memoryview:
        first = self._lines[0]
        if self._offset or len(first) >= _BATCH_BYTES:
            return memoryview(first)[self._offset :]
        if len(self._lines) == 1:
            return first
        if self.unwritten_bytes <= _BATCH_BYTES:
            return b"".join(self._lines)
        batch: list[bytes] = []
        room = _BATCH_BYTES
        for line in self._lines:
            room -= len(line)
            if room < 0:
                break
            batch.append(line)
        return b"".join(batch)

    def _advance(self, sent: int) -> None:
        if sent == self.unwritten_bytes:
            self._lines.clear()
            self.unwritten_bytes = self._offset = 0
            return
        self.unwritten_bytes -= sent
        lines = self._lines
        while sent:
            rest = len(lines[0]) - self._offset
            if sent < rest:
                self._offset += sent
                return
            sent -= rest
            self._offset = 0
            lines.popleft()

    def _stop_waiting(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._ready.want_write(self._stdin_fd, None)

    @property
    def pending_bytes(self) -> int:
        """What is kept of the unfinished line on stdout."""
        return self._buffer.pending_bytes

    # --- from the process ---------------------------------------------------------------------------------

    def pause(self) -> None:
        """Take no more lines: the pipe fills and the server waits."""
        if self._stdout_fd >= 0 and not self._is_paused:
            self._is_paused = True
            self._ready.pause_read(self._stdout_fd)
            self._on_paused(True)

    def resume(self) -> None:
        """Take lines again."""
        if self._stdout_fd >= 0 and self._is_paused:
            self._is_paused = False
            self._ready.resume_read(self._stdout_fd)
            if self._ahead:
                self._ready.read_again(self._stdout_fd)
            self._on_paused(False)

    @property
    def has_unread(self) -> bool:
        """Whether the process has written something that is not handed over yet, an unfinished line aside."""
        return bool(self._ahead) or (self._stdout_fd >= 0 and self._waiting_bytes() > 0)

    def drain(self) -> None:
        """Once the process has ended: take in all that it had written, also while paused.

        Bounded by what is in the pipe now: something it left behind may hold the other end and write on.
        """
        if self._stdout_fd < 0:
            return
        until = self.received_bytes + self._waiting_bytes()
        before = -1
        self._hand_over(len(self._ahead))
        while before < self.received_bytes < until and self._stdout_fd >= 0:
            before = self.received_bytes
            self._readable()
            self._hand_over(len(self._ahead))

    def _waiting_bytes(self) -> int:
        """What is in the pipe now."""
        answer = fcntl.ioctl(self._stdout_fd, termios.FIONREAD, bytes(4))
        return int(struct.unpack("i", answer)[0])

    def _readable(self) -> None:
        if self._ahead:
            self._hand_over(TURN_LINES)
            return
        try:
            data = os.read(self._stdout_fd, self._read_bytes)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close_stdout()
            self._on_stdout_closed()
            return
        self.received_bytes += len(data)
        end = data.rfind(b"\n")
        was_long = self._line_bytes > LONG_LINE_BYTES
        if end < 0:
            self._line_bytes += len(data)
        else:
            self._line_bytes = len(data) - end - 1
        is_long = self._line_bytes > LONG_LINE_BYTES
        if is_long and self._raised is False:
            self._raise_pipe()
        lines = self._buffer.feed(data)
        if is_long or was_long:
            self._on_long_line(self)
        if len(lines) > TURN_LINES:
            self._ahead = lines
            self._hand_over(TURN_LINES)
        elif lines:
            self._on_lines(lines)

    def _hand_over(self, most: int) -> None:
        """So many of the lines that wait, at most; the others have their turn after everybody else's."""
        if not self._ahead:
            return
        lines, self._ahead = self._ahead[:most], self._ahead[most:]
        if self._ahead:
            self._ready.read_again(self._stdout_fd)
        self._on_lines(lines)

    def _raise_pipe(self) -> None:
        if not hasattr(fcntl, "F_SETPIPE_SZ"):  # Linux only
            self._raised = None
        elif self._budget.acquire():
            try:
                fcntl.fcntl(self._stdout_fd, fcntl.F_SETPIPE_SZ, RAISED_PIPE_BYTES)
            except OSError:  # the user's own limit is spent
                self._budget.release()
                self._raised = None
            else:
                self._raised = True
                self._read_bytes = _RAISED_READ_BYTES

    def _close_stdout(self) -> None:
        self._ready.remove(self._stdout_fd)
        os.close(self._stdout_fd)
        self._stdout_fd = -1
        if self._raised:
            self._budget.release()
            self._raised = None

    def close(self) -> None:
        """Let go of both pipes. No callback comes after this."""
        self.close_stdin()
        self._ahead = []
        if self._stdout_fd >= 0:
            self._close_stdout()
        # They lead back here by way of the conversation: what stands in no circle is freed now, not by the
        # collector.
        self._on_lines = self._on_stdout_closed = self._on_stdin_blocked = self._on_long_line = _nothing
        self._on_paused = self._on_stdin_broken = _nothing


def _nothing(*_: object) -> None:
    """A stdin is never readable (a hang-up is seen by the next write), and what is closed calls nobody."""
