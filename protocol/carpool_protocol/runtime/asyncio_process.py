"""Parts of a daemon process that runs on asyncio: its event loop, its lifeline, its log lines.

The HTTP door and the node's process run on asyncio, because their libraries do. Owns the choice of the loop,
the profile of such a process (`CARPOOL_PROFILE`), and its end of the lifeline (`lifeline` says what the lines
mean, and is for processes on trio).

Knows nothing of: what the process does.
"""

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from carpool_protocol.files import log_format
from carpool_protocol.runtime.pace import IDLE_S, until_due
from carpool_protocol.runtime.wallclock import wallclock

PROFILE_VARIABLE = "CARPOOL_PROFILE"
ALIVE_EVERY_S = 2 * IDLE_S
"""The launcher waits for a sign of life more than twice as long."""


def run_on_the_fastest_loop(main: Coroutine[Any, Any, int], role: str) -> int:
    """Run the process to its end and return its exit code. `role`: the name of its profile."""
    run_loop: Callable[[Coroutine[Any, Any, int]], int]
    try:
        from uvloop import run as run_loop  # not on every platform
    except ImportError:
        run_loop = asyncio.run
    profile_dir = os.environ.get(PROFILE_VARIABLE)
    return _run_profiled(run_loop, main, profile_dir, role) if profile_dir else run_loop(main)


def _run_profiled(
    run_loop: Callable[[Coroutine[Any, Any, int]], int],
    main: Coroutine[Any, Any, int],
    directory: str,
    role: str,
) -> int:
    """Run under the profiler, as the daemons on trio do in `runtime.process`."""
    import cProfile  # only on request

    profile = cProfile.Profile(time.thread_time)
    try:
        return profile.runcall(run_loop, main)
    finally:
        profile.dump_stats(os.path.join(directory, f"{role}-{os.getpid()}.prof"))


async def run_lifeline(
    fd: int,
    stop: Callable[[], None],
    serves: Awaitable[object],
    others: Mapping[str, Callable[[], None]] | None = None,
) -> None:
    """Run the lifeline; its end is the end of the process. `serves`: done when the process is in service.
    `others`: what to do at other lines of the launcher, and at some that would stop it.
    """
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=fd))

    async def be_ready() -> None:
        await serves
        writer.write(b"ready\n")

    tasks = [asyncio.create_task(each) for each in (hear_launcher(reader, stop, others), be_ready())]
    try:
        while True:
            await asyncio.sleep(until_due(ALIVE_EVERY_S))
            if writer.transport.get_write_buffer_size() == 0:
                writer.write(b"alive\n")
    finally:
        for task in tasks:
            task.cancel()
        writer.close()


async def hear_launcher(
    reader: asyncio.StreamReader,
    stop: Callable[[], None],
    others: Mapping[str, Callable[[], None]] | None = None,
) -> None:
    """Stop at the launcher's command, and when the launcher is gone. A launcher that dies with unread lines
    leaves a reset and no end of file. `others`: see `run_lifeline`.
    """
    others = others or {}
    with contextlib.suppress(OSError):
        while line := await reader.readline():
            text = line.decode("utf-8", "replace").strip()
            if text in others:
                others[text]()
            elif text.split()[:1] == ["stop"]:
                stop()
    stop()


def print_log_line(process: str, text: str, level: str) -> None:
    """Print one line for the log on stderr. `level`: one of `log_format.LEVELS`."""
    with contextlib.suppress(OSError):  # a full disk ends no process
        sys.stderr.write(log_format.log_line(wallclock(), level, process, text, {}) + "\n")
        sys.stderr.flush()
