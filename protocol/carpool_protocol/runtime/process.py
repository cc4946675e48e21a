"""Set-up that every daemon process does around its trio run: garbage collection, profiles, exit codes,
logging.

Owns garbage-collector settings, profiles on request, the exit code of a bug (70), core dumps (off), and the
handler of log lines: `log_format` on stderr, which the launcher writes to a file. A log line holds names and
numbers, never arguments or environment values. A line that cannot be written, for example on a full disk, is
dropped.

Knows nothing of: what the process does.
"""

import gc
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TextIO

import trio

from carpool_protocol.files import log_rotation
from carpool_protocol.files.log_format import log_line
from carpool_protocol.runtime import core_dumps
from carpool_protocol.runtime.pace import IDLE_S, until_due
from carpool_protocol.runtime.wallclock import wallclock

EXIT_BUG = 70
PROFILE_VARIABLE = "CARPOOL_PROFILE"
"""Names a directory: the process writes `ROLE-PID.prof` (cProfile) there when it ends."""


def run_daemon(role: str, main: Callable[[], Awaitable[None]]) -> int:
    """Run `main` to its end. Returns 0, or the exit code 70 after a bug, which is logged with its
    traceback.
    """
    core_dumps.turn_off()
    # Objects that exist now stay. Scanning them again and again is most of the collector's work here.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    profile_dir = os.environ.get(PROFILE_VARIABLE)
    try:
        if profile_dir:
            _run_profiled(role, main, Path(profile_dir))
        else:
            trio.run(main)
    except KeyboardInterrupt:
        return 0
    except BaseException:
        logging.getLogger("carpool").exception("%s: a bug in carpool ended this process", role)
        return EXIT_BUG
    return 0


def _run_profiled(role: str, main: Callable[[], Awaitable[None]], directory: Path) -> None:
    import cProfile  # only on request

    profile = cProfile.Profile(time.thread_time)  # CPU time: wall time would also count waiting
    try:
        profile.runcall(trio.run, main)
    finally:
        profile.dump_stats(directory / f"{role}-{os.getpid()}.prof")


FIELDS: Final = ("server", "instance", "session", "call")
"""Names that a line may have beside its message: `log.info(text, extra={"server": name})`."""


class _Format(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.exc_info:
            message = f"{message}\n{self.formatException(record.exc_info)}"
        fields = {name: value for name in FIELDS if (value := record.__dict__.get(name))}
        level = "error" if record.levelno > logging.ERROR else record.levelname.lower()
        return log_line(wallclock(), level, self._process, message, fields)


class _Handler(logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        if not isinstance(sys.exc_info()[1], OSError):  # the traceback would go to the same full disk
            super().handleError(record)


def log_to_stderr(process: str, level: str = "INFO") -> None:
    """Configure logging for this process. `level`: a level name of `logging`."""
    handler = _Handler(sys.stderr)
    handler.setFormatter(_Format(process))
    logging.basicConfig(level=level, handlers=[handler], force=True)


async def bound_log(log: str) -> None:
    """Keep the log of this process below its bound (`log_rotation`), until cancelled."""
    while True:
        await trio.sleep(until_due(IDLE_S))
        log_rotation.rotate_in_use(log)
