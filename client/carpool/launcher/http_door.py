"""Whether the HTTP door is to run, as the launcher sees it, and what is told of it to others.

Owns the reading of the door's exit codes, and the look at the configuration file that tells a launcher, which
reads no JSON, that a door may be wanted now. Owns the file that tells verbs of the door: its URL and the key
of its web page, which the door itself writes, or why there is none, which the launcher writes. Standard
library only: the launcher stays small.

Knows nothing of: the door's settings, when a process is started again (`restart_policy`).
"""

import contextlib
import os
from typing import Any, NamedTuple

from carpool.launcher.log import exit_status_text
from carpool_protocol.bootstrap import paths
from carpool_protocol.config.text.file_stamps import stamp
from carpool_protocol.files import private_files

EXIT_CONFIG, EXIT_UNWANTED, EXIT_TAKEN = 2, 3, 4
"""Exit codes: the door cannot serve as configured; no door is configured (any more); another program has the
address.
"""
_MAX_FILE_BYTES = 1024 * 1024


class HttpDoorWatch:
    """Decides when the door runs. `listen` is the `HOST:PORT` of the command line, which wants a door
    whatever the file says, or empty. `last_good` is the last good configuration, which counts while the file
    is broken, or empty.
    """

    def __init__(self, listen: str, config: str, environ: dict[str, str], last_good: str = "") -> None:
        self.listen = listen
        self._last_good = last_good
        self._path = config or paths.config_file(environ)
        self._seen: object = ""
        """The file as it was when the door was last started, or found unwanted."""
        self._said = ""
        self._dropped = False

    def is_start_due(self) -> bool:
        """True if a door that does not run should be started: the file is new or changed, and
        may want one.
        """
        found = stamp(self._path)
        if found == self._seen:
            return False
        self._seen = found
        wanted = bool(self.listen) or self._is_http_mentioned()
        self._dropped = not wanted
        return wanted

    def is_no_longer_wanted(self) -> bool:
        """True if the file has changed and wants no door; once for each change."""
        dropped, self._dropped = self._dropped, False
        return dropped

    def should_restart(self, status: int) -> bool:
        """True if the door should be restarted after this exit. Otherwise it waits for a change
        of the file.
        """
        return status not in {EXIT_CONFIG, EXIT_UNWANTED}

    def new_problem(self, words: str) -> str:
        """Return the last lines of its log, if they differ from those of the time before."""
        note = words.rpartition("\n")[2]
        fresh = note != self._said
        self._said = note
        return note if fresh else ""

    def _is_http_mentioned(self) -> bool:
        """True if the file may want a door. A wrong yes costs one short process, because the door reads the
        file properly.
        """
        return is_word_in(self._path, b'"http"') or is_word_in(self._last_good, rb"\"http\"")


def is_word_in(path: str, text: bytes) -> bool:
    """True if the beginning of the file holds this text."""
    try:
        with open(path, "rb") as file:
            return text in file.read(_MAX_FILE_BYTES)
    except OSError:
        return False


class HttpDoorStatus(NamedTuple):
    """The HTTP door as verbs see it. Either `url` or `problem` is empty."""

    url: str
    problem: str
    """The reason why it is not open, and what to do."""
    retried: bool
    """True if it is started again by itself; otherwise after a change of the configuration file."""
    token_file: str = ""
    """The file with the token that the door has made; empty if that lets nobody in."""


def read_door_status(directory: str) -> HttpDoorStatus | None:
    """Return the door that listens here, or could not open; `None` if there is none."""
    found = _read(paths.door_file(directory))
    try:
        if "problem" in found:
            problem = str(found["problem"])
            return HttpDoorStatus("", problem, found["retried"] is True) if problem.isprintable() else None
        os.kill(int(found["pid"]), 0)
        url, token_file = str(found["url"]), str(found.get("token_file", ""))
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
    return HttpDoorStatus(url, "", False, token_file) if url.isprintable() else None


def read_door_url(directory: str) -> str:
    """Return the URL of the door that listens here; empty if there is none."""
    door = read_door_status(directory)
    return door.url if door else ""


def read_door_tokens(directory: str) -> dict[str, str] | None:
    """Return the hashes of the named tokens that the door which listens here admits; None if it cannot be
    told. No tokens if no door listens.
    """
    if not read_door_url(directory):
        return {}
    found = _read(paths.door_file(directory)).get("tokens")
    return found if isinstance(found, dict) else None


def read_page_key(directory: str) -> str:
    """Return the key of the web page of the door that listens here; empty if there is none."""
    key = _read(paths.door_file(directory)).get("key", "")
    return key if isinstance(key, str) and key.isascii() and key.isprintable() else ""


def write_door_problem(directory: str, status: int, words: str, *, retried: bool) -> None:
    """Write down that the door ended with this exit status, and its last lines. The door overwrites that
    with its URL once it listens.
    """
    import json  # late: no launcher needs it whose door opens

    told = words.rpartition("\n")[2] if status in {EXIT_CONFIG, EXIT_TAKEN} else ""
    problem = told or f"the HTTP door ended with {exit_status_text(status)}; see `carpool logs --daemon`"
    problem = "".join(each if each.isprintable() else "?" for each in problem)
    data = json.dumps({"problem": problem, "retried": retried}).encode()
    with contextlib.suppress(OSError):  # a full disk: the log has it, or nothing has
        private_files.replace(paths.door_file(directory), data)


def remove_door_file(directory: str) -> None:
    """Remove the file, because no door is wanted."""
    with contextlib.suppress(OSError):
        os.unlink(paths.door_file(directory))


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            text = file.read()
    except OSError:
        return {}
    import json  # late: the launcher does not ask, and mostly there is no door

    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
