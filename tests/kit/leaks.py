"""What must not be left behind: descriptors of this process, running processes with our mark, zombies."""

import gc
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from carpool_supervisor import marks
from carpool_supervisor.spawn import orphans

OPENING_S = 2.0
"""So long a thread that goes on may have a descriptor that it does not know yet."""


def open_fds(*, with_garbage: bool = False) -> dict[int, str]:
    """Descriptors of this process and what they are (where /proc tells), without those of garbage, which may
    close at any time.
    """
    if not with_garbage:
        gc.collect()
    fds: dict[int, str] = {}
    if not os.path.isdir("/proc/self/fd"):
        return dict.fromkeys(map(int, os.listdir("/dev/fd")), "")
    for entry in os.listdir("/proc/self/fd"):
        try:
            fds[int(entry)] = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:  # the listing's own
            continue
    return fds


def opened_since(before: Mapping[int, str]) -> dict[int, str]:
    """Descriptors that are open and were not before. `before`: with those of garbage."""

    def found(with_garbage: bool) -> dict[int, str]:
        return {
            fd: what for fd, what in open_fds(with_garbage=with_garbage).items() if before.get(fd) != what
        }

    return found(True) and found(False)  # garbage is collected only if it may matter: that takes long


def marked(runtime_id: str) -> dict[int, str]:
    """Running processes of this runtime and their command lines."""
    return {pid: command_line(pid) for pid in orphans.find(marks.RUNTIME, lambda value: value == runtime_id)}


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "(gone)"


def zombies_of(pid: int) -> list[int]:
    """Ended children of `pid` that it has not reaped."""
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    ours = [each for each in pids if marks.parent_of(each) == pid]
    return [each for each in ours if marks.state_and_group(each)[0] == "Z"]


@contextmanager
def no_leaks(
    runtime_id: str | None = None, *, without: Callable[[], set[int]] | None = None
) -> Iterator[None]:
    """Fails when the body leaves a descriptor or a zombie of ours, or a process of the runtime. What an
    earlier test has left is not held against this one.

    `without`: the descriptors of a thread that goes on and opens and closes some meanwhile.
    """
    before, zombies_before = open_fds(with_garbage=True), zombies_of(os.getpid())
    yield

    def new() -> dict[int, str]:
        passed_over = without() if without is not None else set()
        return {fd: what for fd, what in opened_since(before).items() if fd not in passed_over}

    deadline = time.monotonic() + OPENING_S
    while (left_open := new()) and without is not None and time.monotonic() < deadline:
        time.sleep(0.01)  # the thread may open one just now
    assert not left_open, f"descriptors left open: {left_open}"
    assert not (left := set(zombies_of(os.getpid())).difference(zombies_before)), f"zombies left: {left}"
    if runtime_id is not None:
        assert not (running := marked(runtime_id)), f"processes left running: {running}"
