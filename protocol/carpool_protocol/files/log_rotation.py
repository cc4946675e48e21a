"""The bound of carpool's own logs: a long one is renamed to `LOG.1`, and a new one begins.

Each process writes its log through stderr, which its starter opened. Owns the bound, the renaming before a
start, and the renaming by the process itself while it runs. One older file is kept, so a log takes about
twice `LOG_BYTES`.

Standard library only: the launcher uses it. Knows nothing of: the lines, the places of logs (`paths`).
"""

import os
from typing import Final

from carpool_protocol.files import private_files

LOG_BYTES: Final = 1024 * 1024
_STREAMS: Final = (1, 2)


def rotate(log: str) -> None:
    """Rename a long log before its process starts. Nothing else may have it open for writing."""
    try:
        if os.path.getsize(log) > LOG_BYTES:
            os.replace(log, log + ".1")
    except OSError:
        pass  # there is none yet


def rotate_in_use(log: str) -> bool:
    """Rename the log of this process if it is long, and write to a new one from now on. True if it did.

    Only the process itself does this. Nothing happens if stderr is another file than `log`: a terminal, or
    the journal of a service manager. If the new file cannot be made, the old one stays in use.
    """
    try:
        own, there = os.fstat(2), os.stat(log, follow_symlinks=False)
        if not os.path.samestat(own, there) or own.st_size <= LOG_BYTES:
            return False
        part = f"{log}.part-{os.getpid()}"
        fd = private_files.open_to_append(part)
    except OSError:
        return False
    try:
        os.replace(log, log + ".1")
        os.replace(part, log)
        for stream in _STREAMS:
            if os.path.samestat(os.fstat(stream), own):
                os.dup2(fd, stream)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
