"""Processes seen from outside: whom the launcher has adopted, who is stopped, who carries our mark.

Linux tells through /proc; on macOS there are no sub-reapers, and `ps` tells the rest
(each server's lifeline pipe does there what adoption does here: rule 2).
Reads only; ends nobody.
"""

import os
import subprocess

from carpool_protocol.bootstrap import paths

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
    """Return the pids of living children that are not in `known`; exited ones are reaped."""
    if not _ON_LINUX:
        return []
    me = str(os.getpid())
    found = []
    for pid in _pids():
        if pid in known:
            continue
        fields = _stat(pid)
        if len(fields) > 1 and fields[1] == me and not _reaped(pid):
            found.append(pid)
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
    return _ps("-o", "state=", "-p", str(pid)).strip().startswith("T")


def marked(runtime: str) -> list[tuple[int, str]]:
    """Return the user's processes that carry this runtime's mark: (pid, command line), without zombies.
    Brokers, supervisors and spawners carry `CARPOOL_DAEMON`, instances and their descendants
    `CARPOOL_INSTANCE`.
    """
    daemon, instance = f"{paths.DAEMON_MARK}={runtime}", f"{paths.INSTANCE_MARK}={runtime}:"
    if not _ON_LINUX:
        return _marked_by_ps(daemon, instance)
    found = []
    for pid in _pids():
        if pid == os.getpid():
            continue
        for entry in _read(f"/proc/{pid}/environ").split(b"\0"):
            if entry == daemon.encode() or entry.startswith(instance.encode()):
                command = (
                    _read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode("utf-8", "replace").strip()
                )
                found.append((pid, command))
                break
    return found


def _marked_by_ps(daemon: str, instance: str) -> list[tuple[int, str]]:
    found = []
    for line in _ps("-axEww", "-U", str(os.getuid()), "-o", "pid=,command=").splitlines():
        pid, _, command = line.strip().partition(" ")
        words = command.split()
        if pid.isdecimal() and any(word == daemon or word.startswith(instance) for word in words):
            found.append((int(pid), words[0]))
    return found


def _ps(*arguments: str) -> str:
    try:
        done = subprocess.run(["ps", *arguments], capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace")


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the command's name: state, parent, …; empty if the process
    is gone.
    """
    text = _read(f"/proc/{pid}/stat").decode("utf-8", "replace")
    return text.rpartition(")")[2].split()


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # gone, or another user's
        return b""
