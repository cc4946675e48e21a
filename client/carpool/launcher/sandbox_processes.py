"""Processes of a private carpool (`sandbox`) seen from outside: memory, families, which belong to it.

Owns the reading: /proc on Linux, `ps` elsewhere. Memory is PSS in bytes where the system tells it (a page
that several processes share is divided among them, so it may be added up), else RSS, and `memory_kind`
says which. A process belongs to it that carries its runtime directory in the environment,
which everything that it starts inherits or is given (rule 2: a pid alone proves nothing).
Ends only what carries that mark. Knows nothing of: what the processes are for.
"""

import os
import signal
import time
from collections.abc import Iterable

from carpool.launcher import processes
from carpool_protocol.bootstrap import paths
from carpool_protocol.runtime.process_files import read_process_file

_ON_LINUX = os.path.exists("/proc/self/stat")


def memory_kind() -> str:
    """Return `PSS`, or `RSS` where this system (or this sandbox) does not tell PSS."""
    return "RSS" if _pss_bytes(os.getpid()) is None else "PSS"


def memory_bytes(pids: Iterable[int], kind: str, *, families: bool = True) -> int:
    """Return the memory of these processes, each counted once; ended ones count nothing. `families`: with
    all descendants.
    """
    table = _table()
    wanted = list(dict.fromkeys(pids))
    for pid in wanted if families else ():  # grows while it is walked
        wanted += [child for child, (parent, _) in table.items() if parent == pid and child not in wanted]
    if kind == "PSS":
        return sum(_pss_bytes(pid) or 0 for pid in wanted)
    return sum(table[pid][1] for pid in wanted if pid in table)


def marked(directory: str) -> list[tuple[int, str]]:
    """Return (pid, command line) of every running process that belongs to this runtime directory, without
    this one.
    """
    return processes.with_environment(lambda environ: _is_ours(environ, directory))


def kill_marked(pid: int, directory: str, number: signal.Signals = signal.SIGKILL) -> float | None:
    """Send `pid` this signal if it carries the mark. Returns the time (monotonic), or None if it was not
    sent.
    """
    fd = -1
    try:
        if hasattr(os, "pidfd_open"):
            fd = os.pidfd_open(pid)  # pins the process before its mark is read: a reused pid is never hit
        if pid not in [each for each, _ in marked(directory)]:
            return None
        now_s = time.monotonic()  # before: what a death makes others do may be quicker than we are
        if fd >= 0:
            signal.pidfd_send_signal(fd, number)
        else:
            os.kill(pid, number)
    except OSError:
        return None
    finally:
        if fd >= 0:
            os.close(fd)
    return now_s


def _is_ours(environ: list[str], directory: str) -> bool:
    runtime = paths.runtime_id(directory)
    exact = (f"{paths.RUNTIME_VARIABLE}={directory}", f"{paths.DAEMON_MARK}={runtime}")
    instance = f"{paths.INSTANCE_MARK}={runtime}:"
    return any(entry in exact or entry.startswith(instance) for entry in environ)


def _table() -> dict[int, tuple[int, int]]:
    """Return for every process its parent and its RSS in bytes."""
    table: dict[int, tuple[int, int]] = {}
    if not _ON_LINUX:
        for line in processes.ps("-axo", "pid=,ppid=,rss=").splitlines():
            pid, parent, rss = (int(field) for field in line.split())
            table[pid] = (parent, rss * 1024)
        return table
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    for pid in _pids():
        # After the name, which may hold anything: state, parent, ...; proc(5) counts RSS as field 24.
        fields = read_process_file(pid, "stat").rpartition(b")")[2].split()
        if len(fields) > 21:
            table[pid] = (int(fields[1]), int(fields[21]) * page_bytes)
    return table


def _pss_bytes(pid: int) -> int | None:
    for line in read_process_file(pid, "smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return None


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
