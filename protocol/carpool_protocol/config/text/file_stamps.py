"""What of a file tells that it has changed, without reading it.

Knows nothing of: what is in files, who watches.
"""

import os
from collections.abc import Mapping

Stamp = tuple[int, int, int] | None


def is_current(seen: Mapping[str, Stamp]) -> bool:
    """Whether every path, of a file or a directory, is as it was when it was seen."""
    return all(stamp(path) == before for path, before in seen.items())


def stamp(path: str) -> Stamp:
    """What changes when the file does; None when there is none. Taken before what it stands for is read: a
    change in between is then seen later, not never.
    """
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return (found.st_ino, found.st_mtime_ns, found.st_size)
