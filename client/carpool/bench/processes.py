"""The cost of a process: CPU time and memory, read from /proc.

Owns the reading of `/proc/<pid>/task/*/schedstat`, `smaps_rollup`, `stat` and `cmdline` for the bench.
CPU is in seconds and counts all threads; memory is the proportional set size in bytes, all of it or what
is no file's, so pages that two processes share are not counted twice. A process that is gone, not ours, or on
a system without /proc gives `None`: the report leaves it out rather than calling it zero.
Knows nothing of: calls, arms, MCP. Ends and starts nothing.
"""

import os
from collections.abc import Iterable
from pathlib import Path

_PROC = Path("/proc")


def cpu_s(pid: int) -> float | None:
    """CPU seconds of all living threads of a process, to the nanosecond where the kernel counts so.

    `/proc/<pid>/schedstat` covers the first thread only (proc_pid_schedstat), hence the sum over tasks.
    Where the kernel keeps no schedstat, `stat` gives ticks of 10 ms: use windows of seconds.
    """
    total = 0
    try:
        for task in os.listdir(_PROC / str(pid) / "task"):
            with open(f"/proc/{pid}/task/{task}/schedstat", "rb") as file:
                total += int(file.read().split(None, 1)[0])
    except (OSError, ValueError, IndexError):
        return _ticks_s(pid)
    return total / 1e9


def _ticks_s(pid: int) -> float | None:
    fields = _stat_fields(pid)
    return None if fields is None else (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _stat_fields(pid: int) -> list[bytes] | None:
    """The fields of `stat` after the command name, which may hold blanks and brackets: state first."""
    try:
        return (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None


def cpu_of(pids: Iterable[int]) -> dict[int, float]:
    """CPU seconds now of each process that can be seen."""
    return {pid: spent for pid in pids if (spent := cpu_s(pid)) is not None}


def pss_bytes(pid: int) -> int | None:
    """Proportional set size of a process."""
    return _rolled_up(pid, b"Pss:")


def own_bytes(pid: int) -> int | None:
    """Return the part of `pss_bytes` that is no file's: other processes of the same program do
    not move it.
    """
    return _rolled_up(pid, b"Pss_Anon:")


def _rolled_up(pid: int, what: bytes) -> int | None:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(what):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        return None
    return None


def parent(pid: int) -> int | None:
    """The parent's pid."""
    fields = _stat_fields(pid)
    return None if fields is None else int(fields[1])


def words(pid: int) -> list[str]:
    """The command line of a process; empty when it cannot be seen."""
    try:
        raw = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return raw.decode(errors="replace").split("\0")[:-1]


def descendants(root: int) -> list[int]:
    """All processes below `root`, without it, nearest first."""
    children: dict[int, list[int]] = {}
    try:
        pids = [int(name) for name in os.listdir(_PROC) if name.isdigit()]
    except OSError:
        return []
    for pid in pids:
        above = parent(pid)
        if above is not None:
            children.setdefault(above, []).append(pid)
    found = list(children.get(root, []))
    for pid in found:  # grows while it is walked: breadth first
        found.extend(children.get(pid, []))
    return found
