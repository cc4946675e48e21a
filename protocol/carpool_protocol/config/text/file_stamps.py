"""Stamps of files: they show a change of a file without reading it.

Knows nothing of: the content of files, the code that watches.
"""

import os
from collections.abc import Mapping

Stamp = tuple[int, int, int] | None


def is_current(seen: Mapping[str, Stamp]) -> bool:
    """True if no file or directory has changed since its stamp was taken."""
    return all(stamp(path) == before for path, before in seen.items())


def stamp(path: str) -> Stamp:
    """Inode, modification time and size of a file; None if there is none.

    Take it before the file is read: a change in between is then noticed later instead of never.
    """
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return (found.st_ino, found.st_mtime_ns, found.st_size)
