"""What must not be left behind: descriptors of this process, running processes with our mark, zombies."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from carpool_supervisor import marks


def open_fds() -> dict[int, str]:
    """Descriptors of this process and what they are."""
    fds: dict[int, str] = {}
    for entry in os.listdir("/proc/self/fd"):
        try:
            fds[int(entry)] = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:  # the listing's own
            continue
    return fds


def marked(runtime_id: str) -> dict[int, str]:
    """Running processes of this runtime and their command lines."""
    return {pid: command_line(pid) for pid in marks.find(marks.RUNTIME, lambda value: value == runtime_id)}


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
def no_leaks(runtime_id: str | None = None) -> Iterator[None]:
    """Fails when the body leaves a descriptor or a zombie of ours, or a process of the runtime."""
    before = open_fds()
    yield
    after = open_fds()
    new = {fd: what for fd, what in after.items() if before.get(fd) != what}
    assert not new, f"descriptors left open: {new}"
    assert not (left := zombies_of(os.getpid())), f"zombies left: {left}"
    if runtime_id is not None:
        assert not (running := marked(runtime_id)), f"processes left running: {running}"
