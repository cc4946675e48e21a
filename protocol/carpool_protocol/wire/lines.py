r"""Splits a stream of bytes into lines.

Owns the end of a line: `\n` and nothing else (U+2028, U+2029 and U+0085 are legal inside JSON strings).
Linear in the bytes for any size of chunks. A line over the cap is not kept: its bytes pass through the
scanner of `json_scan`, and only its id and kind remain (rule 16). A reader may set a smaller cap for lines
that do not show near their beginning that they hold a result. A line that comes in many chunks is in memory
once, also when it ends.

Knows nothing of: JSON beyond that, the origin of the bytes.
"""

from binascii import crc32
from io import BytesIO

from msgspec import Struct

from carpool_protocol.bootstrap.carrier_contract import name_of, name_of_parts
from carpool_protocol.ids import RawJson
from carpool_protocol.wire.json_scan import ENDS_BYTES, TopLevelScanner

_RETURN = b"\r"
_CR = _RETURN[0]


class OverlongLine(Struct, frozen=True):
    """A line that was longer than the cap."""

    id: RawJson | None
    """Its top-level id, if one was found that may be echoed."""
    is_answer: bool | None
    """True: it has a result or an error. False: it has a method. None: neither was found."""
    size_bytes: int
    """Size without the line end."""
    checksum: int = 0
    """CRC-32 of its bytes."""


def name_of_any(line: bytes | OverlongLine) -> int:
    """The name of a line, kept or overlong (`carrier_contract`)."""
    return name_of(line) if isinstance(line, bytes) else name_of_parts(line.checksum, line.size_bytes)


class LineBuffer:
    """Bytes in, whole lines out.

    Lines come without their end (`\n` or `\r\n`); empty ones are left out unless `blanks` is set. A line of
    exactly `cap_bytes` is still a line.
    """

    __slots__ = (
        "_allowed_bytes", "_cap_bytes", "_checksum", "_others_cap_bytes", "_pending", "_scanned_bytes",
        "_scanner", "_size_bytes", "blanks",
    )  # fmt: skip

    def __init__(self, cap_bytes: int, others_cap_bytes: int = 0) -> None:
        """`others_cap_bytes`: the cap of a line whose first `ENDS_BYTES` show no result; 0: the same."""
        self._cap_bytes = cap_bytes
        self._others_cap_bytes = others_cap_bytes or cap_bytes
        self._allowed_bytes = self._others_cap_bytes
        """The cap of the unfinished line, as far as it is known."""
        self.blanks = False
        """True: return empty lines too, for a reader that counts lines."""
        self._pending = BytesIO()
        """It gives its bytes away without a copy; a `bytearray` does not."""
        self._size_bytes = 0
        """Size of the unfinished line, kept or not."""
        self._scanner: TopLevelScanner | None = None
        self._scanned_bytes = 0
        self._checksum = 0
        """CRC-32 so far of a line over the cap."""

    @property
    def pending_bytes(self) -> int:
        """Bytes of the unfinished line in memory. 0 if it is over the cap."""
        return self._pending.tell()

    @property
    def is_overlong(self) -> bool:
        """True while the unfinished line is over its cap: whatever follows, nobody gets it."""
        return self._size_bytes > self._allowed_bytes

    def feed(self, data: bytes) -> list[bytes | OverlongLine]:
        """Take the next bytes of the stream. Returns the lines that are complete now, in order."""
        first = data.find(b"\n")
        if first < 0:
            self._keep(data)
            return []
        done: list[bytes | OverlongLine] = []
        begin = 0
        if self._size_bytes:
            begin = first + 1
            self._keep(data[:first])
            self._end_line(done)
        last = data.rfind(b"\n") + 1
        # `split` is ten times as slow as `find` on long lines, so it gets only the part between line ends.
        if last > begin:
            ended = data[begin : last - 1].split(b"\n") if first + 1 < last else [data[:first]]
            if len(data) <= self._others_cap_bytes and _RETURN not in data and b"" not in ended:
                done += ended
                ended = []
            for raw in ended:
                if len(raw) > self._others_cap_bytes:
                    self._keep(raw)
                    self._end_line(done)
                    continue
                line = raw[:-1] if raw.endswith(b"\r") else raw
                if line or self.blanks:
                    done.append(line)
        if last < len(data):
            self._keep(data[last:])
        return done

    def end(self) -> list[bytes | OverlongLine]:
        """The stream has ended: bytes without a line end are its last line. Returns that line, if any."""
        done: list[bytes | OverlongLine] = []
        if self._size_bytes:
            self._end_line(done)
        return done

    def _keep(self, data: bytes) -> None:
        self._size_bytes += len(data)
        if self._size_bytes > self._allowed_bytes:
            self._raise_cap(data)
        if self._size_bytes <= self._allowed_bytes:
            self._pending.write(data)
            self._scan_ahead()
            return
        scanner = self._scanner = self._scanner or TopLevelScanner()
        if self._pending.tell():
            with self._pending.getbuffer() as pending:
                scanner.feed(bytes(pending[self._scanned_bytes :]))
                self._checksum = crc32(pending)
            self._pending = BytesIO()
        self._checksum = crc32(data, self._checksum)
        scanner.feed(data)

    def _raise_cap(self, data: bytes = b"") -> None:
        """Allow the unfinished line more if it shows near its beginning that it holds a result. Looks once.
        `data`: what comes behind the pending bytes.
        """
        if self._scanner is not None or self._allowed_bytes == self._cap_bytes:
            return
        with self._pending.getbuffer() as pending:
            begin = bytes(pending[:ENDS_BYTES])
        scanner = TopLevelScanner()
        scanner.feed(begin + data[: ENDS_BYTES - len(begin)])
        if "result" in scanner.keys:
            self._allowed_bytes = self._cap_bytes

    def _scan_ahead(self) -> None:
        """Scan two bytes for each new byte from half the cap on, so that at the cap everything is scanned.

        Scanning the whole line at the cap at once would delay all others for a second or more.
        """
        if 2 * self._size_bytes > self._allowed_bytes:
            self._raise_cap()
        due_bytes = 2 * self._size_bytes - self._allowed_bytes
        if due_bytes > self._scanned_bytes:
            self._scanner = self._scanner or TopLevelScanner()
            with self._pending.getbuffer() as pending:
                self._scanner.feed(bytes(pending[self._scanned_bytes : due_bytes]))
            self._scanned_bytes = due_bytes

    def _end_line(self, done: list[bytes | OverlongLine]) -> None:
        if self._size_bytes > self._allowed_bytes and self._scanner is not None:
            scanner = self._scanner
            done.append(OverlongLine(scanner.id, scanner.is_answer, self._size_bytes, self._checksum))
        else:
            line = self._take_pending()
            if line or self.blanks:
                done.append(line)
        self._pending = BytesIO()
        self._size_bytes = self._scanned_bytes = self._checksum = 0
        self._allowed_bytes = self._others_cap_bytes
        self._scanner = None

    def _take_pending(self) -> bytes:
        """Return the unfinished line without a carriage return at its end, and give its bytes away."""
        size_bytes = self._pending.tell()
        if size_bytes:
            with self._pending.getbuffer() as pending:
                size_bytes -= pending[-1] == _CR
        self._pending.truncate(size_bytes)
        return self._pending.getvalue()
