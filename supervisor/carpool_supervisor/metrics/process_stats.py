"""Memory, CPU time and age of processes. The only user of psutil.

A server is often a grandchild (`npx` and `uvx` stay as its parents), so every number is of a process with all
its descendants. Memory is given as RSS and as PSS: RSS counts a shared page once for each process, PSS
divides it among them, so only PSS may be added up.

Memory that threads of a process hold counts although its first thread has ended: such a process looks like a
zombie, whose memory is 0.

A vanished process is never an error, nor is a process table that cannot be read. One read of the table serves
any number of pids. Blocks for some milliseconds: from trio, survey many in a thread. Knows nothing of: the
role of a pid, limits, processes that are no descendants (`adopted`).
"""

import contextlib
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable

import psutil
from msgspec import Struct

from carpool_protocol.runtime.process_search import find_processes
from carpool_protocol.runtime.wallclock import unix_s
from carpool_supervisor import marks
from carpool_supervisor.metrics.adopted import ProcessTree


class ProcessUsage(Struct, frozen=True):
    """One process and all its descendants."""

    rss_bytes: int
    pss_bytes: int
    """On systems without PSS (macOS): the memory that only these processes use, else RSS."""
    cpu_percent: float
    """Of one core, since the last survey of this pid; in the first survey since its start."""
    cpu_s: float
    """With descendants: includes their ended processes. Without: this process alone."""
    uptime_s: float
    """Age of the process itself."""
    threads: int
    processes: int
    """Number of processes with descendants, at least 1."""


class ProcessSampler:
    """Surveys processes, and remembers their CPU time so that the next survey can tell the rate."""

    def __init__(self, *, families: bool = True) -> None:
        """`families`: count descendants with each process."""
        self._families = families
        self._last: dict[tuple[int, float], tuple[float, float]] = {}
        """By pid and start time, since a pid may be reused: the time of the last survey and its CPU seconds.
        """

    def survey(self, pids: Iterable[int], tree: ProcessTree | None = None) -> dict[int, ProcessUsage]:
        """The usage of the living processes among these. Forgets all others. `tree`: as it is now, unless it
        is to be read.
        """
        if tree is None:
            tree = children_by_parent() if self._families else {}
        now = time.monotonic()
        last, self._last = self._last, {}
        found: dict[int, ProcessUsage] = {}
        for pid in dict.fromkeys(pids):
            family = [
                sample
                for each in _family(pid, tree)
                if (sample := _sample(each, ended_children=self._families)) is not None
            ]
            if not family or family[0].pid != pid:
                continue
            started = family[0].started
            cpu_s = sum(each.cpu_s for each in family)
            uptime_s = max(unix_s() - started, 0.0)
            since, before = last.get((pid, started), (now - uptime_s, 0.0))
            self._last[pid, started] = (now, cpu_s)
            elapsed_s = now - since
            found[pid] = ProcessUsage(
                rss_bytes=sum(each.rss_bytes for each in family),
                pss_bytes=sum(each.pss_bytes for each in family),
                cpu_percent=max(cpu_s - before, 0.0) / elapsed_s * 100 if elapsed_s > 0 else 0.0,
                cpu_s=cpu_s,
                uptime_s=uptime_s,
                threads=sum(each.threads for each in family),
                processes=len(family),
            )
        return found


def process_usage(pid: int) -> ProcessUsage | None:
    """The usage of one process, with its average CPU use; None if it is gone."""
    return ProcessSampler().survey([pid]).get(pid)


def memory_of(pids: Iterable[int], tree: ProcessTree | None = None) -> dict[int, int]:
    """RSS in bytes of these processes, each with its descendants; memory that they share counts for each.
    Those of which nothing is left are missing. `tree`: as of `ProcessSampler.survey`.

    Far cheaper than a survey: PSS makes the kernel walk every page table.
    """
    if tree is None:
        tree = children_by_parent()
    sizes = {pid: sum(map(_rss, _family(pid, tree))) for pid in pids}
    return {pid: size_bytes for pid, size_bytes in sizes.items() if size_bytes}


def is_stopped(pid: int) -> bool:
    """True if the process is stopped (SIGSTOP, a debugger): silent, but not dead. False if it is gone."""
    try:
        return psutil.Process(pid).status() in {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}
    except (psutil.Error, ValueError):
        return False


def find_marked(name: str, is_wanted: Callable[[str], bool]) -> list[int]:
    """Other processes of this user whose variable `name` has one of these values: for systems without
    /proc.
    """
    mine = os.getuid()

    def judge(pid: int) -> bool | None:
        try:
            process = psutil.Process(pid)
            if process.uids().real != mine:
                return False
            value = process.environ().get(name)
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
        except psutil.NoSuchProcess:
            return None
        except (psutil.Error, OSError):
            return False
        return value is not None and is_wanted(value)

    return find_processes(psutil.pids, judge)


class _Sample(Struct, frozen=True):
    """One process at one moment."""

    pid: int
    started: float
    rss_bytes: int
    pss_bytes: int
    cpu_s: float
    threads: int


def children_by_parent() -> ProcessTree:
    """The children of each process of the machine; empty if the table cannot be read."""
    tree: ProcessTree = {}
    for pid, parent in _parents():
        tree.setdefault(parent, []).append(pid)
    return tree


def _parents() -> Iterable[tuple[int, int]]:
    """Each process and its parent; empty if the table cannot be read (no free descriptor).

    On Linux read directly: psutil takes several times as long.
    """
    try:
        if sys.platform != "linux":
            return [(process.pid, process.info["ppid"]) for process in psutil.process_iter(["ppid"])]
        else:
            return [(pid, parent) for pid in psutil.pids() if (parent := marks.parent_of(pid))]
    except OSError:
        return []


def _family(pid: int, tree: ProcessTree) -> list[int]:
    """The process first, then its descendants, each once, even if a racy table has a cycle."""
    family = [pid]
    seen = {pid}
    for each in family:
        for child in tree.get(each, ()):
            if child not in seen:
                seen.add(child)
                family.append(child)
    return family


def _sample(pid: int, *, ended_children: bool) -> _Sample | None:
    """Measure one process. `ended_children`: include the CPU time of children that have ended."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            rss_bytes, pss_bytes = _memory(process)
            times = process.cpu_times()
            cpu_s = times.user + times.system
            if ended_children:  # else a wrapper that starts many processes would seem idle
                cpu_s += times.children_user + times.children_system
            return _Sample(
                pid,
                process.create_time(),
                rss_bytes,
                pss_bytes,
                cpu_s,
                process.num_threads(),
            )
    except (psutil.Error, OSError, ValueError, KeyError):
        return None


def _rss(pid: int) -> int:
    """RSS of a process; 0 if it is gone."""
    try:
        rss_bytes: int = psutil.Process(pid).memory_info().rss
        if not rss_bytes and (task := _living_task(pid)):
            rss_bytes = psutil.Process(task).memory_info().rss
    except (psutil.Error, OSError, ValueError):
        return 0
    return rss_bytes


def _living_task(pid: int) -> int:
    """A thread of a process whose first thread has ended; /proc/THREAD tells the memory of the process. 0:
    there is none.
    """
    try:
        with os.scandir(f"/proc/{pid}/task") as tasks:
            # Threads that have ended are not listed, but for the first one.
            return next((int(task.name) for task in itertools.islice(tasks, 2) if int(task.name) != pid), 0)
    except (OSError, ValueError):
        return 0


def _memory(process: psutil.Process) -> tuple[int, int]:
    """RSS and PSS in bytes, measured together if the system allows it."""
    if sys.platform == "linux":  # psutil reads smaps for this, which is far longer
        with contextlib.suppress(OSError), open(f"/proc/{process.pid}/smaps_rollup", "rb") as rollup:
            sizes = {name: rest for name, _, rest in (line.partition(b":") for line in rollup)}
            return int(sizes[b"Rss"].split()[0]) * 1024, int(sizes[b"Pss"].split()[0]) * 1024
        rss_bytes = _rss(process.pid)
        return rss_bytes, rss_bytes
    else:
        full = process.memory_full_info()
        return full.rss, int(getattr(full, "pss", 0) or full.uss)
