"""The sweep: ends what an earlier life of this runtime left running, found by its mark and our uid.

Runs before new instances start (rule 2). If supervisor and spawner were killed together, servers die by their
parent-death signal, but the processes that they had started live on; on macOS the servers do too.

    python -m carpool_supervisor.spawn.orphans RUNTIME_ID [EPOCH]    exit code 1 when something would not end

With EPOCH only what that life of a supervisor left is ended: others of the same carpool go on.

Never ends the process that runs it nor its ancestors. Standard library only, on Linux. Blocks for up to
`GRACE_S` + `KILL_WAIT_S` when there is something to end: from trio, call it in a thread. Knows nothing of:
instances, pools, recorded pids (they may have been reused).
"""

import os
import sys
import time
from collections.abc import Callable
from signal import SIGKILL, SIGTERM

from carpool_protocol.runtime.process_search import find_processes
from carpool_supervisor import marks

GRACE_S = 2.0
KILL_WAIT_S = 5.0
_POLL_S = 0.02


def sweep(runtime_id: str) -> tuple[int, int]:
    """End every process of this runtime: TERM, `GRACE_S`, KILL. Returns (found, still there)."""
    limits = marks.limits_of_runtime(runtime_id)
    return end_marked(marks.RUNTIME, lambda value: value == runtime_id, limits=limits)


def sweep_epoch(
    runtime_id: str, epoch: str, grace_s: float = GRACE_S, kill_wait_s: float = KILL_WAIT_S
) -> tuple[int, int]:
    """The same for what one life of a supervisor started."""
    ours = marks.instance_mark(runtime_id, epoch, "")
    limits = marks.limits_of_epoch(runtime_id, epoch)
    return end_marked(marks.INSTANCE, lambda value: value.startswith(ours), grace_s, kill_wait_s, limits)


def end_marked(
    name: str,
    is_wanted: Callable[[str], bool],
    grace_s: float = GRACE_S,
    kill_wait_s: float = KILL_WAIT_S,
    limits: range = marks.NO_LIMITS,
) -> tuple[int, int]:
    """The same for any mark, by environment or by limit; `grace_s` 0 starts with KILL. Repeats the search
    until it finds nothing, because a process that is ending may just have started another. What a search has
    found is signalled, however long it took.
    """
    spared = _ancestors()
    seen: set[int] = set()
    signalled: set[tuple[int, int]] = set()
    start = time.monotonic()
    while True:
        found = [pid for pid in find(name, is_wanted, limits) if pid not in spared]
        seen.update(found)
        waited_s = time.monotonic() - start
        number = SIGTERM if waited_s < grace_s else SIGKILL
        for pid in found:
            if (pid, number) not in signalled:
                signalled.add((pid, number))
                _signal(pid, number, name, is_wanted, limits)
        if not found or waited_s > grace_s + kill_wait_s:
            return len(seen), len(found)
        time.sleep(_POLL_S)


def find(name: str, is_wanted: Callable[[str], bool], limits: range = marks.NO_LIMITS) -> list[int]:
    """Other running processes of this user whose variable `name` has one of the wanted values, or whose mark
    by limit is one of `limits`.
    """
    if sys.platform != "linux":
        from carpool_supervisor.metrics.process_stats import (
            find_marked,  # psutil: only without /proc
        )

        return find_marked(name, is_wanted)
    mine = os.getuid()

    def judge(pid: int) -> bool | None:
        try:
            if os.stat(f"/proc/{pid}").st_uid != mine:
                return False
        except OSError:
            return None
        is_ours = marks.is_marked(pid, name, is_wanted, limits)
        return is_ours if marks.is_running(pid) else None

    return find_processes(_pids, judge)


def _pids() -> list[int]:
    try:
        return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    except OSError:
        return []


def _signal(pid: int, number: int, name: str, is_wanted: Callable[[str], bool], limits: range) -> None:
    if sys.platform == "linux":
        marks.signal_marked(pid, number, name, is_wanted, limits)
    elif pid in find(name, is_wanted, limits):
        try:
            os.kill(pid, number)
        except OSError:
            return


def _ancestors() -> set[int]:
    """This process and its ancestors: a daemon started inside a server carries that server's mark."""
    spared = {os.getpid(), os.getppid()}
    pid = os.getppid()
    while pid > 1 and (pid := marks.parent_of(pid)) not in spared:
        spared.add(pid)
    return spared


def main(argv: list[str]) -> int:
    if len(argv) not in {1, 2}:
        print("usage: python -m carpool_supervisor.spawn.orphans RUNTIME_ID [EPOCH]", file=sys.stderr)  # noqa: T201  # a command
        return 2
    found, left = sweep_epoch(argv[0], argv[1]) if len(argv) == 2 else sweep(argv[0])
    if found:
        text = f"ended {found - left} processes of an earlier life" + (
            f"; {left} would not end" if left else ""
        )
        print(text, file=sys.stderr)  # noqa: T201  # a command
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
