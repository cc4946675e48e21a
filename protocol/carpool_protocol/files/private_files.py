"""Makes and opens files that only this user may read.

Owns two ways to write: append (logs), or replace the whole file. The mode is set at the opening, whatever the
umask is. No symbolic link is followed at the last path part, no FIFO blocks, and a file of another user is
refused, because that user could read on. A file of ours that is open to others is closed to them first. Only
an explicit `mode` of `replace` gives another mode: for files of other programs that had it before.

Standard library only: the launcher uses it. Knows nothing of: the content, the places of files (`paths`).
"""

import contextlib
import errno
import os
import stat

_LOG = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def open_to_append(path: str) -> int:
    """A descriptor that appends to `path`, which is created if missing. Raises `OSError`."""
    fd = os.open(path, _LOG, 0o600)
    try:
        found = os.fstat(fd)
        if stat.S_ISFIFO(found.st_mode) or found.st_uid not in (os.geteuid(), 0):
            raise PermissionError(errno.EPERM, "it is not a file of this user", path)  # noqa: TRY301 - closed below
        if stat.S_ISREG(found.st_mode) and found.st_mode & 0o077:
            os.fchmod(fd, 0o600)
    except BaseException:
        os.close(fd)
        raise
    return fd


def replace(path: str, data: bytes, mode: int = 0o600) -> None:
    """Write `data` to `path`, whole or not at all. Raises `OSError`.

    `mode`: for a file that is not carpool's own and had this mode before.
    """
    part = f"{path}.part-{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(part)  # left by an earlier process with this pid
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
