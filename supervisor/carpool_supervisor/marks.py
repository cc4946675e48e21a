"""The mark that every process of ours carries in its environment, and how it is read back.

Owns the spelling: `CARPOOL_RUNTIME=<runtime id>` and `CARPOOL_INSTANCE=<runtime id>:<epoch>.<instance>`.
Environments are inherited, so every process that a server starts carries the mark of its instance (rule 2),
also outside the server's process group. A pid alone proves nothing, because it may have been reused.

A process can drop its environment (`env -i setsid …`). Resource limits are inherited even then, so each
instance also has a limit of its own that limits nothing: its real-time timeout (RLIMIT_RTTIME), some hundred
thousand years, with runtime, epoch and instance in its lower bits (decision 0035). This mark counts only for
a process whose environment has no mark of any carpool.

Standard library only and few modules: the spawner and the launcher's sweep import this. Reads `/proc`; on
systems without it (macOS) these functions find nothing, and `process_stats.find_marked` is used. Knows
nothing of: starting, finding and ending processes.
"""

import _signal  # type: ignore[import-not-found]  # no stub; `signal` drags in enum, 0.7 MB
import binascii
import os
import resource
from _collections_abc import Callable  # `collections.abc` and `typing` would cost 2 MB more

from carpool_protocol.runtime.process_files import read_environment, read_process_file

RUNTIME = "CARPOOL_RUNTIME"
INSTANCE = "CARPOOL_INSTANCE"
_DAEMON = "CARPOOL_DAEMON"
_MARKS = tuple(os.fsencode(name) for name in (RUNTIME, INSTANCE, _DAEMON))
_RTTIME = getattr(resource, "RLIMIT_RTTIME", -1)
"""Linux only."""
_BASE = 1 << 62
_RUNTIME_BITS, _EPOCH_BITS, _TAIL_BITS = 24, 16, 22
NO_LIMITS = range(0)


def instance_mark(runtime_id: str, epoch: str, tail: int | str) -> str:
    """The value of `CARPOOL_INSTANCE`. `tail` is the instance, or `spawner`."""
    return f"{runtime_id}:{epoch}.{tail}"


def limit_of(mark: str) -> int:
    """The limit that carries the same mark as this value of `CARPOOL_INSTANCE`."""
    runtime_id, _, rest = mark.partition(":")
    epoch, _, tail = rest.rpartition(".")
    number = int(tail) if tail.isdigit() else binascii.crc32(tail.encode())
    return limits_of_epoch(runtime_id, epoch).start + number % (1 << _TAIL_BITS)


def limits_of_epoch(runtime_id: str, epoch: str) -> range:
    """The limits of all instances of one life of a supervisor."""
    number = binascii.crc32(epoch.encode()) % (1 << _EPOCH_BITS)
    start = limits_of_runtime(runtime_id).start + (number << _TAIL_BITS)
    return range(start, start + (1 << _TAIL_BITS))


def limits_of_runtime(runtime_id: str) -> range:
    """The limits of all instances of one runtime directory."""
    below = _EPOCH_BITS + _TAIL_BITS
    start = _BASE + (binascii.crc32(runtime_id.encode()) % (1 << _RUNTIME_BITS) << below)
    return range(start, start + (1 << below))


def set_limit(limit: int) -> None:
    """Set the limit that marks this process and its children. A lower limit stays."""
    if _RTTIME >= 0:
        try:
            resource.setrlimit(_RTTIME, (limit, limit))
        except (OSError, ValueError):
            return


def instance_of(pid: int) -> tuple[str, int]:
    """The instance that `pid` is marked with by environment and by limit; empty and 0: not so."""
    found = _marks_in_environment(pid)
    return found.get(INSTANCE, ""), 0 if found else _limit(pid)


def _marks_in_environment(pid: int) -> dict[str, str]:
    """The marks of any carpool in its environment. Read once for all: it is empty for a moment while the
    process starts another program, and two looks at it could miss the process by one mark and by the other.
    """
    found: dict[str, str] = {}
    for entry in read_environment(pid):
        name, _, value = entry.partition(b"=")
        if name in _MARKS and value:  # an empty one names no carpool
            found.setdefault(os.fsdecode(name), os.fsdecode(value))
    return found


def _limit(pid: int) -> int:
    """The limit that marks this process; 0: none of any carpool does."""
    for line in read_process_file(pid, "limits").splitlines():
        if line.startswith(b"Max realtime timeout"):
            hard = line.split()[-2]
            limit = int(hard) if hard.isdigit() else 0
            return limit if limit >= _BASE else 0
    return 0


def value_of(pid: int, name: str) -> str | None:
    """The value of `name` in the environment with which `pid` was started. None: not set, gone, or not
    readable.
    """
    wanted = os.fsencode(name) + b"="
    for entry in read_environment(pid):
        if entry.startswith(wanted):
            return os.fsdecode(entry[len(wanted) :])
    return None


def state_and_group(pid: int) -> tuple[str, int]:
    """The state letter of proc(5) and the process group; `("", 0)` if the process is gone."""
    # The name before it may contain anything.
    fields = read_process_file(pid, "stat").rpartition(b")")[2].split()
    return (fields[0].decode(), int(fields[2])) if len(fields) > 2 else ("", 0)


def parent_of(pid: int) -> int:
    """The parent; 0 if the process is gone."""
    fields = read_process_file(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def open_children() -> int:
    """A descriptor for `children_of_this_thread`, which then needs none when none is free. -1: no /proc."""
    try:
        return os.open("/proc/thread-self/children", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1


def children_of_this_thread(children_fd: int) -> list[int]:
    """Children of the thread that has opened this descriptor, adopted ones included."""
    parts: list[bytes] = []
    while children_fd >= 0 and (part := os.pread(children_fd, 1 << 16, sum(map(len, parts)))):
        parts.append(part)
    return [int(pid) for pid in b"".join(parts).split()]


def is_running(pid: int) -> bool:
    """True if the process exists and is no zombie."""
    return state_and_group(pid)[0] not in {"", "Z", "X"}


def is_marked(pid: int, name: str, is_wanted: Callable[[str], bool], limits: range = NO_LIMITS) -> bool:
    """True if its variable `name` has one of the wanted values, or its mark by limit is one of `limits`."""
    found = _marks_in_environment(pid)
    if name in found:
        return is_wanted(found[name])
    return bool(limits) and not found and _limit(pid) in limits


def signal_marked(
    pid: int, number: int, name: str, is_wanted: Callable[[str], bool], limits: range = NO_LIMITS
) -> bool:
    """Signal `pid` only if it is still a process with this mark. Returns True if it was signalled.

    The pidfd pins the process before the mark is read again, so a reused pid is never hit.
    """
    fd = -1
    try:
        if hasattr(os, "pidfd_open"):
            fd = os.pidfd_open(pid)
        if not is_marked(pid, name, is_wanted, limits):
            return False
        if fd >= 0:
            _signal.pidfd_send_signal(fd, number)
        else:
            os.kill(pid, number)
    except OSError:
        return False
    finally:
        if fd >= 0:
            os.close(fd)
    return True
