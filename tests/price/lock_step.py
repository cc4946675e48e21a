"""Processes that run one at a time, each until it has nothing to do.

Bytecodes per call depend on how many calls a process finds at once, and that depends on how processes share
the cores. Here all processes but one are stopped, so a burst of calls passes through carpool as a whole, the
same each time on any machine.

Owns stopping (SIGSTOP) and resuming, and the proof that a process is idle. A process that sleeps when SIGSTOP
is sent runs nothing more: its main thread takes the signal before it takes anything else. Linux only (/proc).
Knows nothing of: what the processes do.
"""

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.kit.private_daemon import until

_LOOK_EVERY_S: Final = 0.0005

Thread = tuple[str, ...]
"""A thread as it was seen: its id, its state, and how often it gave up a core, willingly and not."""


def _threads(pid: int) -> list[Thread]:
    found: list[Thread] = []
    for task in sorted(os.listdir(f"/proc/{pid}/task")):
        with suppress(
            FileNotFoundError, ProcessLookupError
        ):  # it has just ended, before the open or after it
            lines = Path(f"/proc/{pid}/task/{task}/status").read_text().splitlines()
            fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            switches = (fields["voluntary_ctxt_switches"], fields["nonvoluntary_ctxt_switches"])
            found.append((task, fields["State"][0], *switches))
    return found


def are_idle(pids: Iterable[int]) -> bool:
    """True if there was a moment in which no thread of these processes ran or could run.

    Each is seen asleep twice and has not run between: so all slept together between the two looks.
    """
    pids = list(pids)
    first = [_threads(pid) for pid in pids]
    asleep = all(state == "S" for threads in first for _, state, *_ in threads)
    return asleep and [_threads(pid) for pid in pids] == first


def wait_until_idle(pids: Iterable[int]) -> None:
    """Wait until nothing runs in these processes."""
    pids = list(pids)
    until(lambda: are_idle(pids), f"{pids} are idle", every_s=_LOOK_EVERY_S)


class LockStep:
    """Stops its processes within a `with` block. After it all run."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = sorted(set(pids))

    def __enter__(self) -> Self:
        wait_until_idle(self._pids)
        for pid in self._pids:
            os.kill(pid, signal.SIGSTOP)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def give_turn(self, pid: int) -> None:
        """Let one process run until it waits for others."""
        os.kill(pid, signal.SIGCONT)
        wait_until_idle([pid])
        os.kill(pid, signal.SIGSTOP)
