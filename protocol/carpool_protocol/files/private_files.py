"""Files that nobody but this user may read: how they are made and opened.

Owns the ways to write one: on at its end (logs), or whole, in place of the old one. Modes are said at the
opening, whatever the umask. No symbolic link is followed at the last step, no FIFO is waited for, and a file
that another user put there is refused: he could read on. One of ours that is open to others is closed first.
Only who says a mode to `replace` gets another one: for files of other programs, which had it before.

Standard library only: the launcher uses it. Knows nothing of: what is written, where files lie (`paths`).
"""

import contextlib
import errno
import os
import stat

_LOG = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def open_to_append(path: str) -> int:
    """A descriptor that writes at the end of `path`, made where it is missing. Raises `OSError`."""
    fd = os.open(path, _LOG, 0o600)
    try:
        found = os.fstat(fd)
        if stat.S_ISFIFO(found.st_mode) or found.st_uid not in (os.geteuid(), 0):
            raise PermissionError(errno.EPERM, "it is no file of this user", path)  # noqa: TRY301 - closed below
        if stat.S_ISREG(found.st_mode) and found.st_mode & 0o077:
            os.fchmod(fd, 0o600)
    except BaseException:
        os.close(fd)
        raise
    return fd


def replace(path: str, data: bytes, mode: int = 0o600) -> None:
    """Put `data` there, whole or not at all. Another `mode` is for files that are not ours alone, and were
    that before. Raises `OSError`.
    """
    part = f"{path}.part-{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(part)  # left by an earlier process of this number
    try:
        with open(os.open(part, _NEW, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            if mode != 0o600:
                os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
