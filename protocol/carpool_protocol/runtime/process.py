"""What every process of the daemon does around its trio run.

Owns garbage-collector settings, profiles on request, and the exit code of a bug (70). Core dumps are off.
Knows nothing of: what the process does.
"""

import gc
import logging
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from carpool_protocol.runtime import core_dumps

EXIT_BUG = 70
PROFILE_VARIABLE = "CARPOOL_PROFILE"
"""A directory: the process writes `ROLE-PID.prof` (cProfile) there when it ends."""


def run_daemon(role: str, main: Callable[[], Awaitable[None]]) -> int:
    """Run `main` to its end. 0, or 70 after a bug, which is logged with its traceback."""
    core_dumps.turn_off()
    # What is alive now stays: scanning it again and again is most of the collector's work here.
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

    profile = cProfile.Profile(time.thread_time)  # CPU time: wall time shows who waited, not who worked
    try:
        profile.runcall(trio.run, main)
    finally:
        profile.dump_stats(directory / f"{role}-{os.getpid()}.prof")
