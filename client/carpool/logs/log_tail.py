"""The end of a log file, and what is added to it, over its rotations.

Works when the daemon is dead: then it is needed most. Refuses to know the format of a line (`records`).
"""

import os
from collections.abc import Iterable, Iterator

FOLLOW_S = 0.2
"""Seconds between two looks at a file that is followed."""
_BLOCK_BYTES = 64 * 1024
"""Bytes that are read at once from the end of a file."""
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
        """Return the last `count` lines, those before the current file's from its rotated ones."""
        self._position = _start_of_last(self._path, count)
        cut = self._position > 0
        found = self._rest()
        lines = found[1:] if cut else found
        for older in rotated_files(self._path):
            if len(lines) >= count:
                break
            lines = _last_lines_of(older, count - len(lines)) + lines
        return decoded(lines[-count:] if count else [])

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


def _start_of_last(path: str, count: int) -> int:
    """Return a position before the last `count` lines of a file, found by reading it from its end: 0 if it
    has fewer.
    """
    try:
        with open(path, "rb") as file:
            position = os.fstat(file.fileno()).st_size
            ends = 0
            while position > 0 and 0 < count >= ends:  # one more end than lines: the first line may be cut
                size = min(position, _BLOCK_BYTES)
                position -= size
                file.seek(position)
                ends += file.read(size).count(b"\n")
            return position
    except OSError:
        return 0


def _last_lines_of(path: str, count: int) -> list[bytes]:
    """Return the last lines of a file that is no longer written."""
    start = _start_of_last(path, count)
    try:
        with open(path, "rb") as file:
            file.seek(start)
            lines = file.read().removesuffix(b"\n").split(b"\n")
    except OSError:
        return []
    return lines[1:][-count:] if start else [line for line in lines[-count:] if line]


def rotated_files(path: str) -> Iterator[str]:
    """Yield the rotated files of a log, the newest first."""
    rotated = 1
    while os.path.exists(f"{path}.{rotated}"):
        yield f"{path}.{rotated}"
        rotated += 1


def all_lines(path: str) -> Iterator[str]:
    """Yield every line of the file and of its rotated ones, the oldest first; none of a missing file."""
    for each in (*reversed([*rotated_files(path)]), path):
        try:
            with open(each, encoding="utf-8", errors="replace", newline="\n") as file:
                yield from (line.removesuffix("\n").removesuffix("\r") for line in file)
        except FileNotFoundError:
            continue


def decoded(lines: Iterable[bytes]) -> list[str]:
    """Return the lines as text, without the end of line of another system."""
    return [line.removesuffix(b"\r").decode("utf-8", "replace") for line in lines]
