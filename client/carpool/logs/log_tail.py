"""The end of a log file, and what is added to it, over its rotations.

Works when the daemon is dead: then it is needed most. Refuses to know the format of a line (`records`).
"""

import os
from collections import deque
from collections.abc import Iterable, Iterator

FOLLOW_S = 0.2
"""Seconds between two looks at a file that is followed."""
_TAIL_BYTES_PER_LINE = 400
_LONGEST_LINE_BYTES = 64 * 1024


class LogTail:
    """One log file, followed over its rotations. An unfinished line is held until it ends.

    Keeps no file open between two looks: only a position, and the inode of its file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._inode = 0
        self._position = 0
        self._half = b""

    def last_lines(self, count: int) -> list[str]:
        """Return the last `count` lines, some from the rotated file if the current one is short."""
        lines: deque[bytes] = deque(maxlen=count)
        length = _length(self._path)
        self._position = max(0, length - max(1, count) * _TAIL_BYTES_PER_LINE)
        if not self._position:
            lines.extend(_end_of(self._path + ".1", count))
        cut = self._position > 0
        found = self._rest()
        lines.extend(found[1:] if cut else found)
        return decoded(lines)

    def new_lines(self) -> list[str]:
        """Return the lines that were finished since the last look."""
        return decoded(self._rest())

    def _rest(self) -> list[bytes]:
        data = b""
        try:
            with open(self._path, "rb") as file:
                found = os.fstat(file.fileno())
                if self._inode and found.st_ino != self._inode:
                    data = self._rest_of_rotated()
                    self._position = 0
                elif found.st_size < self._position:  # emptied
                    self._position, self._half = 0, b""
                file.seek(self._position)
                data += file.read()
                self._inode, self._position = found.st_ino, file.tell()
        except OSError:
            return []  # not there yet, or between two files
        *lines, self._half = (self._half + data).split(b"\n")
        if len(self._half) > _LONGEST_LINE_BYTES:  # a server that never ends its line
            lines, self._half = [*lines, self._half], b""
        return lines

    def _rest_of_rotated(self) -> bytes:
        try:
            with open(self._path + ".1", "rb") as file:
                if os.fstat(file.fileno()).st_ino == self._inode:
                    file.seek(self._position)
                    return file.read()
        except OSError:
            pass
        self._half = b""
        return b""


def _length(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _end_of(path: str, count: int) -> list[bytes]:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - max(1, count) * _TAIL_BYTES_PER_LINE))
            return file.read().split(b"\n")[1:-1]
    except OSError:
        return []


def all_lines(path: str) -> Iterator[str]:
    """Yield every line of the file and of its rotated ones, the oldest first; none of a missing file."""
    rotated = 1
    while os.path.exists(f"{path}.{rotated}"):
        rotated += 1
    for each in (*(f"{path}.{number}" for number in range(rotated - 1, 0, -1)), path):
        try:
            with open(each, encoding="utf-8", errors="replace", newline="\n") as file:
                yield from (line.removesuffix("\n").removesuffix("\r") for line in file)
        except FileNotFoundError:
            continue


def decoded(lines: Iterable[bytes]) -> list[str]:
    """Return the lines as text, without the end of line of another system."""
    return [line.removesuffix(b"\r").decode("utf-8", "replace") for line in lines]
