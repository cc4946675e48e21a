"""The log of one server: stderr of all its instances in a bounded file, and the last lines in memory.

Owns the file (rotated, 0600), the stderr pipes of attached instances, and the tails. Each line has the format
of all logs (`log_format`), whatever the server writes, and says from which stream of which instance it came.
Lines about the server that carpool itself writes name no stream. Invalid UTF-8 is replaced, overlong lines
are cut.

In the file the secrets of the server are masked, by the rule that its errors follow.

A server that floods stderr takes little time from others: of its lines few are written in one turn, and what
it writes beyond a rate is read and left out of the file, which has a line with the number of bytes. The rate
counts the bytes in the file: a line of one byte costs as much as its time and its names. The tail has its
last lines all the same. Empty lines are left out.

Invariants: memory is bounded per instance; no failure of the disk reaches a caller: lost lines are counted,
and reported once. Knows nothing of: the readers of the lines (rule 7), MCP (stderr is free text, and no sign
of an error).
"""

import os
import re
import time
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal

from carpool_protocol.files import private_files
from carpool_protocol.files.log_format import line_head, log_line, quoted
from carpool_protocol.files.redaction import Mask
from carpool_protocol.ids import InstanceId
from carpool_protocol.machine.allowance import Allowance
from carpool_protocol.runtime.poller import TURN_LINES, ReadySet
from carpool_protocol.runtime.wallclock import wallclock

FILE_BYTES = 5 * 1024 * 1024
FILES = 3
"""Including the current one: `NAME.log`, `NAME.log.1`, `NAME.log.2`."""
LINE_BYTES = 16 * 1024
TAIL_LINES = 20
TAIL_LINE_CHARS = 1000
"""The limit for a line in memory; the file has it whole."""

RATE_BYTES_S = 1024 * 1024
"""The file gets this much for the stderr of an instance in a second, in the long run."""
BURST_BYTES = 4 * 1024 * 1024
"""And this much at once."""

_READ_BYTES = 64 * 1024
_CUT = b" [cut]"
_DRAINED_READS: Final = 16
"""At most one raised pipe of an ended process is read: one that it left behind may keep writing."""
_many_ends = re.compile(rb"\n{2,}").sub


UNMASKED: Final = Mask((), "")

Stream = Literal["stderr", "stdout", "log", ""]
"""Where a line comes from: two pipes of a server, its log messages in MCP, and carpool itself."""


class _Stream:
    """One instance's stderr, from attach to forget."""

    __slots__ = (
        "ahead", "allowance", "drained_reads", "fd", "is_cutting", "left_out_bytes", "mask", "part", "tail",
    )  # fmt: skip

    def __init__(self, fd: int, mask: Mask) -> None:
        self.fd = fd
        self.mask = mask
        """Applied to lines in the file. The tail is unmasked, because a value with line ends is found only in
        the whole tail.
        """
        self.part = b""
        self.ahead = b""
        """Bytes that were read and wait for the next turn."""
        self.drained_reads = 0
        self.is_cutting = False
        """The rest of this line is dropped."""
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.allowance = Allowance(RATE_BYTES_S, BURST_BYTES)
        """The bytes that the file may get."""
        self.left_out_bytes = 0
        """Bytes that the file does not have, and no line tells of yet."""

    def may_write(self, now: float) -> bool:
        """True if the file may have its next lines. What it gets is to be taken from the allowance."""
        return self.allowance.refill(now) > 0

    def masked(self, line: str) -> str:
        """The line as it is in the file. A cut line may end within a value."""
        mark = _CUT.decode()
        return (
            self.mask.redact_cut(line.removesuffix(mark)) + mark
            if line.endswith(mark)
            else self.mask.redact(line)
        )


class StderrLog:
    """The stderr of all instances of one server.

    `on_trouble` is called once if the file cannot be written. `now` and `now_text` are clocks, for tests.
    """

    def __init__(
        self,
        ready: ReadySet,
        path: Path,
        *,
        server: str,
        on_trouble: Callable[[str], None],
        now_text: Callable[[], str] = wallclock,
        now: Callable[[], float] = time.monotonic,
        file_bytes: int = FILE_BYTES,
    ) -> None:
        self._ready = ready
        self._path = path
        self._server = server
        self._on_trouble = on_trouble
        self._now_text = now_text
        self._now = now
        self._file_bytes = file_bytes
        self._fd = -1
        self._size_bytes = 0
        self._streams: dict[InstanceId, _Stream] = {}
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._has_complained = False
        self.lost_lines = 0
        """Lines that could not be written to the file."""

    @property
    def path(self) -> Path:
        return self._path

    def attach(self, instance: InstanceId, fd: int, mask: Mask = UNMASKED) -> None:
        """Read this instance's stderr from `fd` (non-blocking; closed here) until it ends. `mask`: applied to
        lines in the file.
        """
        self._streams[instance] = _Stream(fd, mask)

        def readable() -> None:
            self._read(instance)

        self._ready.add(fd, readable)

    def drain(self, instance: InstanceId) -> bool:
        """Read one turn of the rest of an ended process's output, so that the tail is complete. Returns True
        if there may be more.
        """
        stream = self._streams.get(instance)
        for _ in range(2):  # the second one usually finds the end
            if stream is None or stream.fd < 0:
                return False
            if not stream.ahead:
                if stream.drained_reads == _DRAINED_READS:
                    return False
                stream.drained_reads += 1
            if not self._read(instance):
                return False
        return True

    def detach(self, instance: InstanceId) -> None:
        """Stop reading and drop this instance's tail. The file and the server's tail keep its lines."""
        if (stream := self._streams.pop(instance, None)) is not None:
            self._end(instance, stream)
        self._rest()

    def tail(self) -> list[str]:
        """The last lines of the server, `#instance text`, oldest first."""
        return list(self._tail)

    def tail_of(self, instance: InstanceId) -> list[str]:
        """The last lines of this instance, until it is forgotten."""
        stream = self._streams.get(instance)
        return list(stream.tail) if stream is not None else []

    def close(self) -> None:
        for instance in list(self._streams):
            self.detach(instance)

    def _rest(self) -> None:
        """Close the file while no instance of the server runs."""
        if self._fd >= 0 and not self._streams:
            os.close(self._fd)
            self._fd = -1

    # --- reading ------------------------------------------------------------------------------------------

    def _read(self, instance: InstanceId) -> bool:
        """Take one turn of the lines. False: there are none now, or no more."""
        stream = self._streams[instance]
        data, stream.ahead = stream.ahead, b""
        if not data:
            try:
                data = os.read(stream.fd, _READ_BYTES)
            except BlockingIOError:
                return False
            except OSError:
                data = b""
            if not data:
                self._end(instance, stream)
                return False
            data = _many_ends(b"\n", data)
        if not stream.may_write(self._now()):
            stream.left_out_bytes += len(data)
            self._keep_tail(instance, stream, _last_lines(stream, data))
            return True
        lines = data.split(b"\n", TURN_LINES)
        if len(lines) > TURN_LINES:
            stream.ahead, lines[-1] = lines[-1], b""
            if stream.ahead:
                self._ready.read_again(stream.fd)
        self._tell_left_out(instance, stream)
        self._lines_received(instance, stream, _lines(stream, lines))
        return True

    def _tell_left_out(self, instance: InstanceId, stream: _Stream) -> None:
        if size_bytes := stream.left_out_bytes:
            stream.left_out_bytes = 0
            rate = f"{RATE_BYTES_S // 1024**2} MiB in a second"
            text = f"{size_bytes} bytes of stderr are not in this log: the server wrote more than {rate}"
            self.write_line(instance, text, level="warning")

    def _end(self, instance: InstanceId, stream: _Stream) -> None:
        if stream.fd < 0:
            return
        self._ready.remove(stream.fd)
        os.close(stream.fd)
        stream.fd = -1
        if stream.ahead:
            stream.left_out_bytes += len(stream.ahead)
            self._keep_tail(instance, stream, _last_lines(stream, stream.ahead))
            stream.ahead = b""
        if stream.part and not stream.is_cutting:
            last, stream.part = stream.part, b""
            self._lines_received(instance, stream, [last])
        self._tell_left_out(instance, stream)

    def _lines_received(self, instance: InstanceId, stream: _Stream, lines: list[bytes]) -> None:
        if not lines:
            return
        self._keep_tail(instance, stream, lines)
        texts = [line.decode("utf-8", "replace") for line in lines]
        head = line_head(self._now_text(), "info", "server", self._fields(instance, "stderr"))
        block = "".join(f"{head}{quoted(stream.masked(text))}}}\n" for text in texts).encode()
        stream.allowance.left -= len(block)
        self._write(block, len(lines))

    def _keep_tail(self, instance: InstanceId, stream: _Stream, lines: list[bytes]) -> None:
        for line in lines[-TAIL_LINES:]:
            text = line.decode("utf-8", "replace")[:TAIL_LINE_CHARS]
            stream.tail.append(text)
            self._tail.append(f"#{instance} {text}")

    def write_line(self, instance: InstanceId, text: str, stream: Stream = "", level: str = "info") -> None:
        """Write a line that did not come on stderr to the file; it is in no tail."""
        held = self._streams.get(instance)
        mask = UNMASKED if held is None else held.mask
        shown = mask.redact(text) if len(text) <= LINE_BYTES else mask.redact_cut(text[:LINE_BYTES])
        message = " ".join(shown.split())
        process, fields = "server" if stream else "supervisor", self._fields(instance, stream)
        self._write(f"{log_line(self._now_text(), level, process, message, fields)}\n".encode(), 1)
        self._rest()

    def _fields(self, instance: InstanceId, stream: Stream) -> dict[str, str | int]:
        return {"server": self._server, "instance": instance, "stream": stream}

    # --- the file -----------------------------------------------------------------------------------------

    def _write(self, block: bytes, count: int) -> None:
        try:
            if self._fd < 0:
                self._open()
            if self._size_bytes and self._size_bytes + len(block) > self._file_bytes:
                self._rotate()
            written = os.write(self._fd, block)
            self._size_bytes += written
            if written == len(block):
                return
            reason = "the disk is full"
            count = block[written:].count(b"\n")
            os.write(self._fd, b"\n")  # so that a next line begins at the margin
        except OSError as error:
            reason = error.strerror or "no reason given"
        self.lost_lines += count
        if not self._has_complained:
            self._has_complained = True
            self._on_trouble(f"{self._path}: cannot be written ({reason}); lines of stderr are being lost")

    def _open(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._fd = private_files.open_to_append(str(self._path))
        self._size_bytes = os.fstat(self._fd).st_size

    def _rotate(self) -> None:
        os.close(self._fd)
        self._fd = -1
        names = [self._path, *(self._path.with_name(f"{self._path.name}.{at}") for at in range(1, FILES))]
        for newer, older in reversed(list(pairwise(names))):
            if newer.exists():
                newer.replace(older)
        self._open()


def _last_lines(stream: _Stream, data: bytes) -> list[bytes]:
    """The last lines of the stream with these bytes."""
    lines = data.rsplit(b"\n", TAIL_LINES + 1)
    if len(lines) > TAIL_LINES + 1:
        lines[0] = b""
    return _lines(stream, lines)


def _lines(stream: _Stream, lines: list[bytes]) -> list[bytes]:
    """The complete lines of the stream without empty ones, cut at the limit; an unfinished line stays in it.

    `lines`: those that were read, and the unfinished one as the last.
    """
    rest = lines.pop()
    if lines:
        if stream.is_cutting:
            del lines[0]  # the rest of a line that is already in the file
            stream.is_cutting = False
        else:
            lines[0] = stream.part + lines[0]
        stream.part = rest
    elif not stream.is_cutting:
        stream.part += rest
    lines = [line if len(line) <= LINE_BYTES else line[:LINE_BYTES] + _CUT for line in lines if line]
    if len(stream.part) > LINE_BYTES:
        lines.append(stream.part[:LINE_BYTES] + _CUT)
        stream.part, stream.is_cutting = b"", True
    return lines
