"""Stdin and stdout of one instance: lines out in order, lines in, and the lines that never reached the
process.

Owns the two descriptors and the lines that wait for a full pipe. Nothing here ever blocks: if a server never
reads its stdin, `unwritten_bytes` grows, and the writer watches that number. Only the answers to requests of
the server itself are bounded here, because it alone decides how many there are: while `MAX_ANSWERS` of them
wait, nothing more of it is read.

Invariants: lines are written whole and in order; `unwritten_count` never counts a line that the process could
have executed; reading depends on writing only beyond `MAX_ANSWERS` (a full stdin and a full stdout must not
deadlock); at most `TURN_LINES` lines are handed over in one turn, also of a process that has ended.

The pipe of an instance that has sent a long line is raised to 1 MiB, but of few instances: raising all pipes
of a user shrinks all new ones to 8 KiB (rule 11). A line over its cap is read in short pieces all the same:
each is scanned in one step, and nobody gets the line. Knows nothing of: JSON, calls, stderr, why the process
runs.
"""

import fcntl
import os
import struct
import termios
import time
from collections import deque
from collections.abc import Callable

from carpool_protocol.runtime.poller import TURN_LINES, ReadySet
from carpool_protocol.wire.lines import LineBuffer, OverlongLine
from carpool_supervisor.era.line_sizes import MAX_LINE_BYTES

LINE_CAP_BYTES = 64 * 1024 * 1024
LONG_LINE_BYTES = 256 * 1024
RAISED_PIPE_BYTES = 1024 * 1024
RAISED_INSTANCES = 16
MAX_ANSWERS = 4096
"""So many answers to its own requests may wait for a server that does not read its stdin. One that reads at
all hardly has so many; one that does not falls silent with this and is replaced (rule 8).
"""
DRAIN_TURNS = 16
"""So many turns of an ended process's lines are handed over. Of the rest only those that matter are: a full
pipe of 1 MiB may hold half a million lines, and each may cost as much as a message.
"""

_READ_BYTES = 64 * 1024
"""The size of an ordinary pipe. Asking for 256 KiB costs 9 us of page faults for every short read."""
_RAISED_READ_BYTES = 256 * 1024
_BATCH_BYTES = 64 * 1024
"""Below this, joining lines is cheaper than writev(2) and one write takes them all."""


class PipeBudget:
    """The number of instances with raised pipes, limited for the whole supervisor."""

    def __init__(self, limit: int = RAISED_INSTANCES) -> None:
        self._free = limit

    def acquire(self) -> bool:
        if self._free == 0:
            return False
        self._free -= 1
        return True

    def release(self) -> None:
        self._free += 1


def _bytes_in(pipe_fd: int) -> int:
    """The bytes that a pipe holds, asked at either end."""
    return int(struct.unpack("i", fcntl.ioctl(pipe_fd, termios.FIONREAD, bytes(4)))[0])


class ChildIo:
    """The pipes of one instance on the `ReadySet`. Closes them itself; `close` may be called twice.

    `on_lines` gets complete lines without their newline, at least one. `on_stdout_closed` is called once,
    never from `close`. `on_stdin_blocked` says that the pipe is full (True; may be called within `flush`) and
    that everything has been written since (False). `on_stdin_broken` is called once, perhaps within `flush`:
    the process reads no more, and unwritten lines stay unwritten. `on_long_line` is called each time the
    unfinished line on stdout has grown beyond `LONG_LINE_BYTES`, and when such a line ends. `on_paused` says
    that reading has stopped (True) or continues (False), at each change. `now`: a clock in seconds.
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
        now: Callable[[], float] = time.monotonic,
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
        self._now = now
        self._is_paused = False
        self._is_slowed = False
        self._drain_until = -1
        """While an ended process is drained: the value of `received_bytes` at which everything is read."""
        self._drain_turns = 0
        self.left_out_lines = 0
        """Lines of an ended process that were not handed over."""
        self._buffer = LineBuffer(cap_bytes, min(cap_bytes, MAX_LINE_BYTES))
        self._ahead: list[bytes | OverlongLine] = []
        """Lines that were read and wait for the next turn, the last ones first: taking some moves none."""
        self._lines: deque[bytes] = deque()
        self._offset = 0
        """Written bytes of the first waiting line."""
        self._is_waiting = False
        self._waiting_answers = 0
        """Answers that were accepted since the pipe was full."""
        self.line_bytes = 0
        """Length so far of the unfinished line on stdout, kept or not."""
        self._line_s = 0.0
        """The time that the long line has taken so far, until it is handed over or asked for."""
        self._raised: bool | None = False
        """None: raising failed and is not tried again."""
        self._read_bytes = _READ_BYTES
        self.unwritten_bytes = 0
        """Accepted by `write` and not yet taken by the pipe."""
        self.received_bytes = 0
        """All bytes that ever came on stdout; it grows while the instance is alive."""
        self.is_stdin_broken = False
        """The process has closed its stdin or has ended: nothing more can be delivered."""
        ready.add(stdout_fd, self._readable)
        ready.add(stdin_fd, _nothing)
        ready.pause_read(stdin_fd)  # watched only while the pipe is full

    # --- towards the process ------------------------------------------------------------------------------

    def write(self, line: bytes) -> None:
        """Accept a complete line with its newline. `flush` writes it."""
        self._lines.append(line)
        self.unwritten_bytes += len(line)

    def write_answer(self, line: bytes) -> bool:
        """Accept the answer to a request of the server. Returns True, once, if nothing more is read from now
        on because too many answers wait. `on_paused` does not tell of it: the server counts as silent.
        """
        self.write(line)
        if not self._is_waiting:
            return False
        self._waiting_answers += 1
        if self._waiting_answers != MAX_ANSWERS:
            return False
        self._update_reading()
        return True

    @property
    def is_stdin_full(self) -> bool:
        """The pipe takes no more: what is written waits here."""
        return self._is_waiting

    @property
    def is_behind(self) -> bool:
        """Too many answers to requests of the server wait, so nothing more of it is read."""
        return self._waiting_answers >= MAX_ANSWERS

    @property
    def takes_lines(self) -> bool:
        """True until stdin is closed, by either end: later lines never reach the process."""
        return self._stdin_fd >= 0 and not self.is_stdin_broken

    def flush(self) -> None:
        """Write as much as the pipe takes now; the rest follows by itself, in order."""
        if self._lines and not self._is_waiting and self._stdin_fd >= 0 and not self.is_stdin_broken:
            self._push()

    def unwritten_count(self) -> int:
        """The number of last lines that the process cannot have executed, because not even one byte too many
        was written.

        A line that lacks only its newline counts as written: at end of file a server may accept it.
        """
        count = len(self._lines)
        if count and self._offset >= len(self._lines[0]) - 1 and self._offset:
            count -= 1
        return count

    def has_unread_stdin(self) -> bool:
        """True if the process has not read all that was written to its stdin."""
        if self._stdin_fd < 0:
            return False
        return _bytes_in(self._stdin_fd) > 0

    def close_stdin(self) -> None:
        """Send end of file at once; lines that still wait for the full pipe are not delivered."""
        if self._stdin_fd < 0:
            return
        self.flush()
        self._stop_waiting()
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
            was_behind, self._waiting_answers = self.is_behind, 0
            if was_behind:
                self._update_reading()

    @property
    def pending_bytes(self) -> int:
        """The bytes kept of the unfinished line on stdout."""
        return self._buffer.pending_bytes

    @property
    def is_overlong(self) -> bool:
        """True while the unfinished line on stdout is over its cap."""
        return self._buffer.is_overlong

    def take_line_s(self) -> float:
        """The seconds that the long line has taken which goes on or is being handed over. Told once."""
        line_s, self._line_s = self._line_s, 0.0
        return line_s

    # --- from the process ---------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stop reading: the pipe fills and the server waits."""
        if self._stdout_fd >= 0 and not self._is_paused:
            self._is_paused = True
            self._update_reading()
            self._on_paused(True)

    def resume(self) -> None:
        """Read again."""
        if self._stdout_fd >= 0 and self._is_paused:
            self._is_paused = False
            self._update_reading()
            self._on_paused(False)

    def slow_down(self, *, is_on: bool) -> None:
        """Read nothing for a moment, or read on. It is no pause of which `on_paused` tells."""
        if self._stdout_fd >= 0 and self._is_slowed != is_on:
            self._is_slowed = is_on
            self._update_reading()

    def _update_reading(self) -> None:
        if self._stdout_fd < 0:
            return
        if self._is_paused or self._is_slowed or self.is_behind or self._drain_until >= 0:
            self._ready.pause_read(self._stdout_fd)
            return
        self._ready.resume_read(self._stdout_fd)
        if self._ahead:
            self._ready.read_again(self._stdout_fd)

    @property
    def has_unread(self) -> bool:
        """True if the process has written something that is not handed over yet, apart from an unfinished
        line.
        """
        return bool(self._ahead) or (self._stdout_fd >= 0 and self._waiting_bytes() > 0)

    def drain(self, matters: Callable[[bytes | OverlongLine], bool]) -> bool:
        """Hand over one turn of what the ended process had written, also while paused. Returns True if there
        is more: call again when others had their turn.

        Bounded by the content of the pipe at the first call: a process that it left behind may hold the other
        end and keep writing. After `DRAIN_TURNS` turns only lines that matter are kept.
        """
        if self._stdout_fd < 0:
            return False
        if self._drain_until < 0:
            self._drain_until = self.received_bytes + self._waiting_bytes()
            self._read_bytes = _READ_BYTES
            self._update_reading()
        before = self.received_bytes
        is_reading = not self._ahead
        if is_reading and before >= self._drain_until:
            return False
        self._readable()
        self._drain_turns += 1
        if self._drain_turns == DRAIN_TURNS or (is_reading and self._drain_turns > DRAIN_TURNS):
            kept = [line for line in self._ahead if matters(line)]
            self.left_out_lines += len(self._ahead) - len(kept)
            self._ahead = kept
        if self._ahead:
            return True
        is_stuck = is_reading and self.received_bytes == before
        return self._stdout_fd >= 0 and self.received_bytes < self._drain_until and not is_stuck

    def _waiting_bytes(self) -> int:
        """The bytes in the pipe now."""
        return _bytes_in(self._stdout_fd)

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
        was_long = self.line_bytes > LONG_LINE_BYTES
        if end < 0:
            self.line_bytes += len(data)
        else:
            self.line_bytes = len(data) - end - 1
        if was_long or self.line_bytes > LONG_LINE_BYTES:
            self._feed_long_line(data)
            return
        lines = self._buffer.feed(data)
        if len(lines) > TURN_LINES:
            lines.reverse()
            self._ahead = lines
            self._hand_over(TURN_LINES)
        elif lines:
            self._on_lines(lines)

    def _feed_long_line(self, data: bytes) -> None:
        """Handle bytes of a long line that goes on or ends here."""
        if self._raised is False and self.line_bytes > LONG_LINE_BYTES:
            self._raise_pipe()
        began = self._now()
        lines = self._buffer.feed(data)
        if self._raised and self._drain_until < 0:
            self._read_bytes = _READ_BYTES if self._buffer.is_overlong else _RAISED_READ_BYTES
        self._line_s += self._now() - began
        self._on_long_line(self)
        if lines:  # it took long enough to cut it: others have their turn before it is parsed
            lines.reverse()
            self._ahead = lines
            self._ready.read_again(self._stdout_fd)

    def _hand_over(self, most: int) -> None:
        """Hand over at most this many waiting lines; the rest wait until other instances had their turn."""
        if not self._ahead:
            return
        lines = self._ahead[-most:]
        del self._ahead[-most:]
        lines.reverse()
        if self._ahead:
            self._ready.read_again(self._stdout_fd)
        self._on_lines(lines)
        self._line_s = 0.0

    def _raise_pipe(self) -> None:
        if not hasattr(fcntl, "F_SETPIPE_SZ"):  # Linux only
            self._raised = None
        elif self._budget.acquire():
            try:
                fcntl.fcntl(self._stdout_fd, fcntl.F_SETPIPE_SZ, RAISED_PIPE_BYTES)
            except OSError:  # the limit of the user is used up
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
        """Close both pipes. No callback is called after this."""
        self.close_stdin()
        self._ahead = []
        if self._stdout_fd >= 0:
            self._close_stdout()
        # They refer back to this object through the adapter. Outside reference cycles everything is freed at
        # once.
        self._on_lines = self._on_stdout_closed = self._on_stdin_blocked = self._on_long_line = _nothing
        self._on_paused = self._on_stdin_broken = _nothing


def _nothing(*_: object) -> None:
    """A callback without effect. Stdin is never readable (the next write sees a hang-up), and a closed object
    calls nothing.
    """
