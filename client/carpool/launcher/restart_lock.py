"""The lock of a running `carpool restart --all`, and its end by `carpool down`.

Owns that one verb at a time restarts carpool, and that a `carpool down` wins over every restart that began
before it: the verb that restarts holds the lock from before its signal until the next carpool runs. `carpool
down` writes its file first, which ends a restart between two carpools, and returns only while it holds this
lock and no launcher runs. The next launcher inherits this lock and frees it once it has the launcher's lock:
so a verb that is killed meanwhile leaves no launcher that `carpool down` does not see. The system frees the
lock of processes that are killed.

Standard library only. Knows nothing of: signals, how a launcher is started, what the verbs print.
"""

import contextlib
import fcntl
import os
import time
from types import TracebackType
from typing import Final, Self

from carpool_protocol.bootstrap import paths
from carpool_protocol.files import private_files

_LOOK_S: Final = 0.02


class RestartLock:
    """The lock of one runtime directory, not taken yet. Raises `OSError` if its file cannot be opened."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._down_before = _down_stamp(directory)
        flags = os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(paths.restart_file(directory), flags, 0o600)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Free the lock."""
        os.close(self._fd)

    @property
    def fd(self) -> int:
        """The descriptor: a process that inherits it has the lock as well, until it closes it."""
        return self._fd

    def take(self, wait_s: float = 0.0) -> bool:
        """Take the lock. Returns False if another process holds it for all of this time."""
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return False
                time.sleep(_LOOK_S)
            else:
                return True

    def give_back(self) -> None:
        """Free the lock, to take it again later."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def is_down_wanted(self) -> bool:
        """True if `carpool down` was said since this object was made, and no launcher has started since."""
        return _down_stamp(self._directory) not in {None, self._down_before}


def write_down_file(directory: str) -> None:
    """Write the file which says that carpool was ended on purpose: a shim need not start it, and a restart
    ends here. The next launcher removes it.
    """
    with contextlib.suppress(OSError):  # a full disk: then it is as if carpool had died
        private_files.replace(paths.down_file(directory), b"")


def _down_stamp(directory: str) -> tuple[int, int] | None:
    """Return what differs between two files of `carpool down`; None if there is none."""
    try:
        found = os.stat(paths.down_file(directory))
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
