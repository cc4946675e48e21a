"""The ids of this node's ends of channels: each is greater than all before, also those of earlier processes.

Owns the file that outlives the process. It holds an id that no process has used yet, so a clock that went
back between two lives of the process costs nothing. Without the file ids begin at the clock. Within one life
they grow by at least one in a millisecond, whatever the clock says: numbers of sessions lie between two ids.

Knows nothing of: channels, what an id means to the other end.
"""

import contextlib
import os
from time import monotonic as monotonic_s
from typing import Final

from carpool_protocol.bootstrap import paths
from carpool_protocol.files import private_files
from carpool_protocol.runtime.wallclock import unix_s

BLOCK: Final = 1 << 20
"""The file is written once for this number of ids, which last for 17 minutes."""
MAX_ID: Final = 1 << 42
"""A greater number in the file is none of carpool's: so many milliseconds after 1970 is the year 2109.
Numbers of sessions are multiples of ids, and have 53 bits.
"""


def ids_file(directory: str) -> str:
    """Return the file of a carpool. `directory`: its runtime directory."""
    return os.path.join(paths.state_dir(os.environ, directory), "node-ids", paths.runtime_id(directory))


class ChannelIds:
    """The ids of one life of the node's process. `path`: the file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._reserved = _read(path)
        """No process has used this id, or a greater one."""
        self._first = max(self._reserved + 1, int(unix_s() * 1000))
        self._began_s = monotonic_s()
        self._last = 0

    def take(self) -> int:
        """Return the next id."""
        self._last = max(self._last + 1, self._first + int((monotonic_s() - self._began_s) * 1000))
        if self._last >= self._reserved:
            self._reserved = self._last + BLOCK
            with contextlib.suppress(OSError):  # a full disk: ids follow the clock
                os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
                private_files.replace(self._path, b"%d\n" % self._reserved)
        return self._last


def _read(path: str) -> int:
    """Return the number in the file; 0: there is none."""
    try:
        with open(path, "rb") as file:
            text = file.read(32).strip()
    except OSError:
        return 0
    number = int(text) if text.isdigit() and len(text) < 20 else 0
    return number if number <= MAX_ID else 0
