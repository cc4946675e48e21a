"""Processes seen from outside: whom the launcher has adopted, who is stopped, who carries our mark.

Linux tells through /proc; on macOS there are no sub-reapers, and `ps` tells the rest
(each server's lifeline pipe does there what adoption does here: rule 2).
Reads only; ends nobody.
"""

import os
import subprocess
from collections.abc import Callable

from carpool_protocol.bootstrap import paths
from carpool_protocol.runtime.process_files import read_environment, read_process_file
from carpool_protocol.runtime.process_search import find_processes

_PR_SET_CHILD_SUBREAPER = 36
"""linux/prctl.h"""
_ON_LINUX = os.path.exists("/proc/self/stat")


def become_subreaper() -> None:
    """Make orphans of our descendants our children, so that their end is seen."""
    if not _ON_LINUX:
        return
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def adopted(known: set[int]) -> list[int]:
    """Return the pids of living children that are not in `known`; exited ones are reaped.

    The children of an exited one are ours only since its end, so a look that has reaped one is repeated.
    """
    if not _ON_LINUX:
        return []
    me = str(os.getpid())
    while True:
        ours = [pid for pid in _pids() if pid not in known and _stat(pid)[1:2] == [me]]
        found = [pid for pid in ours if not _reaped(pid)]
        if found == ours:
            return found


def _reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def is_stopped(pid: int) -> bool:
    """True if the process was stopped (SIGSTOP, a debugger): it is silent, not dead."""
    if _ON_LINUX:
        return _stat(pid)[:1] in (["T"], ["t"])
    return ps("-o", "state=", "-p", str(pid)).strip().startswith("T")


def marked(runtime: str) -> list[tuple[int, str]]:
    """Return the user's processes that carry this runtime's mark: (pid, command line), without zombies.
    Brokers, supervisors and spawners carry `CARPOOL_DAEMON`, instances and their descendants
    `CARPOOL_INSTANCE`.
    """
    daemon, instance = f"{paths.DAEMON_MARK}={runtime}", f"{paths.INSTANCE_MARK}={runtime}:"
    return with_environment(
        lambda environ: any(entry == daemon or entry.startswith(instance) for entry in environ)
    )


def with_environment(is_wanted: Callable[[list[str]], bool]) -> list[tuple[int, str]]:
    """Return the other processes with such an environment: (pid, command line), without zombies. Where `ps`
    tells, words of the command count as entries, too, and the command line is its first word.
    """
    return _with_environment_in_proc(is_wanted) if _ON_LINUX else _with_environment_by_ps(is_wanted)


def _with_environment_in_proc(is_wanted: Callable[[list[str]], bool]) -> list[tuple[int, str]]:
    commands: dict[int, str] = {}

    def judge(pid: int) -> bool | None:
        environ = [entry.decode("utf-8", "replace") for entry in read_environment(pid)]
        if is_wanted(environ):
            command = read_process_file(pid, "cmdline").replace(b"\0", b" ").decode("utf-8", "replace")
            commands[pid] = command.strip()
            return True
        return None if not environ and _stat(pid)[:1] in ([], ["Z"], ["X"]) else False

    return [(pid, commands[pid]) for pid in find_processes(_pids, judge)]


def _with_environment_by_ps(is_wanted: Callable[[list[str]], bool]) -> list[tuple[int, str]]:
    words: dict[int, list[str]] = {}

    def list_pids() -> list[int]:
        for line in ps("-axEww", "-U", str(os.getuid()), "-o", "pid=,command=").splitlines():
            pid, _, command = line.strip().partition(" ")
            if pid.isdecimal():
                words[int(pid)] = command.split()
        return list(words)

    def judge(pid: int) -> bool | None:
        if is_wanted(words[pid]):
            return True
        # In brackets is the name of a process that has ended before `ps` could read its arguments.
        return None if words[pid] and words[pid][0].startswith("(") else False

    return [(pid, words[pid][0]) for pid in find_processes(list_pids, judge)]


def ps(*arguments: str) -> str:
    """Return what `ps` prints; empty if it cannot be run. Without a mark of ours it does not find itself."""
    environ = {"PATH": os.environ.get("PATH", os.defpath)}
    try:
        done = subprocess.run(["ps", *arguments], env=environ, capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace")


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the command's name: state, parent, …; empty if the process
    is gone.
    """
    text = read_process_file(pid, "stat").decode("utf-8", "replace")
    return text.rpartition(")")[2].split()
