"""Set-up that every daemon process does around its trio run: garbage collection, profiles, exit codes,
logging.

Owns garbage-collector settings, profiles on request, the exit code of a bug (70), core dumps (off), and the
format of log lines: one line on stderr, which the launcher writes to a file. A log line holds names and
numbers, never arguments or environment values. Control characters of a peer's text are removed and a second
line is indented, so that a peer cannot forge a log line. A line that cannot be written, for example on a full
disk, is dropped.

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

from carpool_protocol.runtime import core_dumps
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


LINE: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"
_SHOWN: Final = {
    **{at: f"\\x{at:02x}" for at in (*range(0x20), *range(0x7F, 0xA0))},
    **{at: f"\\u{at:04x}" for at in (0x2028, 0x2029, *range(0xD800, 0xE000))},
    ord("\n"): "\n    ",
    ord("\t"): "\t",
}


class _Format(logging.Formatter):
    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        return wallclock()

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        if not record.message.isprintable():
            record.message = record.message.translate(_SHOWN)
        return super().formatMessage(record)


class _Handler(logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        if not isinstance(sys.exc_info()[1], OSError):  # the traceback would go to the same full disk
            super().handleError(record)


def log_to_stderr(level: str = "INFO") -> None:
    """Configure logging for this process. `level`: a level name of `logging`."""
    handler = _Handler(sys.stderr)
    handler.setFormatter(_Format(LINE))
    logging.basicConfig(level=level, handlers=[handler], force=True)
