"""Starts the processes of a bench, attaches to sockets, and ends what it started.

Owns the waiting: everything here is bounded. Signals go to processes of ours only, by their handle.
Knows nothing of: what the processes are for.
"""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence

from carpool.bench.attach import AgentDescriptors, BenchError
from carpool.launcher.own_command import carpool_argv

_START_S = 30.0
_END_S = 10.0


def spawn_piped(
    argv: Sequence[str], env: dict[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], AgentDescriptors]:
    """A process and our ends of its stdin and stdout."""
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env, bufsize=0
    )
    assert process.stdin is not None
    assert process.stdout is not None
    attachment = AgentDescriptors(os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno()))
    process.stdin.close()
    process.stdout.close()
    return process, attachment


def end_all(processes: Sequence[subprocess.Popen[bytes]], *, grace_s: float = 5.0) -> None:
    """Wait for processes whose stdin is closed; terminate, then kill, those that stay."""
    until_s = time.monotonic() + grace_s
    for sign in (0, signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            if sign and process.poll() is None:
                process.send_signal(sign)
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.05, until_s - time.monotonic()))
        if all(process.returncode is not None for process in processes):
            return
        until_s = time.monotonic() + 2.0


def until(condition: Callable[[], bool], limit_s: float, what: str) -> None:
    """Wait for a condition, looking every 5 ms. Raises `BenchError` after the limit."""
    end_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end_s:
            raise BenchError(f"{what} did not happen within {limit_s:g} s")
        time.sleep(0.005)


def connect(path: str) -> AgentDescriptors:
    """Attach to a Unix stream socket."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(path)
    except OSError:
        sock.close()
        raise
    return AgentDescriptors.of_socket(sock)


def carpool(arguments: Sequence[str], env: dict[str, str], limit_s: float = _START_S) -> str:
    """Run one carpool command; its stdout. Raises `BenchError` with the last of its stderr."""
    argv = [*carpool_argv(), *arguments]
    try:
        done = subprocess.run(
            argv,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"`carpool {arguments[0]}` did not end within {limit_s:g} s") from None
    if done.returncode:
        said = done.stderr.strip()[-400:]
        raise BenchError(f"`carpool {arguments[0]}` failed with exit code {done.returncode}: {said}")
    return done.stdout
