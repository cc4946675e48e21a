"""Whether the HTTP door is to run, as the launcher sees it.

Owns the reading of the door's exit codes, and the look at the configuration file that tells a launcher, which
reads no JSON, that a door may be wanted now. Standard library only: the launcher stays small.

Knows nothing of: the door's settings, when a process is started again (`vigil`).
"""

import os

from carpool_protocol import paths

EXIT_CONFIG, EXIT_UNWANTED, EXIT_TAKEN = 2, 3, 4
"""It cannot serve as configured; no door is configured (any more); another program has the address."""
_MAX_FILE_BYTES = 1024 * 1024


class DoorWatch:
    """`listen`: `HOST:PORT` of the command line, which wants a door whatever the file says; or empty.
    `last_good`: the file of the last good reading, which counts where the configuration is broken; or empty.
    """

    def __init__(self, listen: str, config: str, environ: dict[str, str], last_good: str = "") -> None:
        self.listen = listen
        self._last_good = last_good
        self._path = config or _default_config(environ)
        self._seen: object = ""
        """The file as it was when the door was last begun, or found unwanted."""
        self._said = ""

    def due(self) -> bool:
        """Whether a door that does not run should be begun: the file is new or changed, and may want one."""
        stamp = _stamp(self._path)
        if stamp == self._seen:
            return False
        self._seen = stamp
        return bool(self.listen) or self._mentioned()

    def again(self, status: int) -> bool:
        """Whether to start it again after it ended so. Otherwise when the file has changed."""
        return status not in {EXIT_CONFIG, EXIT_UNWANTED}

    def news(self, words: str) -> str:
        """Its last words, if they are not those of the time before."""
        last = words.rpartition("\n")[2]
        fresh = last != self._said
        self._said = last
        return last.partition(" http: ")[2] or last if fresh else ""

    def _mentioned(self) -> bool:
        """A false yes costs one short process; the door reads the file properly."""
        return _holds(self._path, b'"http"') or _holds(self._last_good, rb"\"http\"")


def _holds(path: str, text: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return text in file.read(_MAX_FILE_BYTES)
    except OSError:
        return False


def _default_config(environ: dict[str, str]) -> str:
    base = environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".config")
    return os.path.join(base, "carpool", "carpool.json")


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def told_url(directory: str) -> str:
    """The URL of the door that listens here; empty: none does."""
    import json  # late: the launcher does not ask

    try:
        with open(paths.door_file(directory), "rb") as file:
            found = json.load(file)
        os.kill(int(found["pid"]), 0)
        url = str(found["url"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return ""
    return url if url.isprintable() else ""
