"""Counts the bytecodes of a process by function, from within. Python loads a copy of it as `sitecustomize`.

Owns the trace functions, what they have counted, and the socket over which a test turns them on and asks for
the counts. The copy is on the PYTHONPATH of a carpool under test, so carpool's own code has no part in it. It
does nothing in other processes than those of `COUNTED`. Only the main thread is traced: calls run there.

Each connection brings one command and gets a line of JSON. `start` turns the trace functions on. `take`
answers with a list of `[file, function, entries, bytecodes]` since the last one. A coroutine is entered each
time it is resumed. Python 3.13 counts the bytecodes of a function from its second entry on.

A coroutine that sleeps for a time (heartbeats, checks of files and timeouts) is no part of a call, and runs
more often beside a call on a slow machine. Once it has been seen to sleep, nothing is counted while trio
wakes it, and from then until it waits again.

Counting makes a process many times slower. So the clock of the time that its thread has worked stands still:
work that is cut by it is cut as if it took no time.

Imports the standard library only. Knows nothing of: carpool's code, calls, prices.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
from types import CodeType, FrameType
from typing import Any

COUNTED = ("carpool_broker", "carpool_supervisor", "carpool.http")
"""The modules behind `-m` whose processes are counted. Each has a socket `MODULE.sock` beside this file."""

SLEEPS, SLEEP_FILES = ("sleep", "sleep_until"), ("/trio/_timeouts.py", "/asyncio/tasks.py")
RETRY_S = 0.05
"""The main thread is interrupted again after this long."""
WAKE, WAKE_FILE = "expire", "/trio/_core/_run.py"
"""The function with which trio wakes those whose time has come."""


class OpcodeCounter:
    """The counts of this process. `start` runs in its main thread, everything else in the counter's own."""

    def __init__(self) -> None:
        self._counts: dict[CodeType, list[int]] = {}
        self._steps: dict[CodeType, Any] = {}
        self._sleeps: set[CodeType] = set()
        self._periodic: set[CodeType] = set()
        """Coroutines that were seen to sleep for a time, and what wakes them."""
        self._is_muted = False
        """True while one of them runs."""
        self._started = threading.Event()
        signal.signal(signal.SIGUSR1, self.start)

    def start(self, _signal: int, frame: FrameType | None) -> None:
        """Trace the main thread from here on: what it enters, and the functions that it is in."""
        while frame is not None:
            frame.f_trace = self._enter(frame, "call", None)
            frame = frame.f_back
        sys.settrace(self._enter)
        self._started.set()

    def _enter(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        code = frame.f_code
        if self._is_muted or code.co_filename == __file__:
            frame.f_trace_opcodes = False
            return None
        if code in self._periodic:
            self._is_muted = True
            frame.f_trace_lines, frame.f_trace_opcodes = False, False
            return self._unmute
        count = self._counts.get(code)
        if count is None:
            count = self._new_count(code)
        if code in self._sleeps and frame.f_back is not None and frame.f_back.f_code not in self._sleeps:
            self._periodic.add(frame.f_back.f_code)
        count[0] += 1
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._steps[code]

    def _new_count(self, code: CodeType) -> list[int]:
        count = self._counts[code] = [0, 0]
        self._steps[code] = _step_of(count)
        if code.co_name in SLEEPS and code.co_filename.endswith(SLEEP_FILES):
            self._sleeps.add(code)
        if code.co_name == WAKE and code.co_filename.endswith(WAKE_FILE):
            self._periodic.add(code)
        return count

    def _unmute(self, _frame: FrameType, event: str, _arg: Any) -> Any:
        if event == "return":  # also of a coroutine that waits
            self._is_muted = False
        return self._unmute

    def serve(self, listener: socket.socket) -> None:
        """Answer commands until the process ends."""
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(json.dumps(self._answer(connection.recv(16))).encode())

    def _answer(self, command: bytes) -> list[tuple[str, str, int, int]]:
        match command:
            case b"start":
                # A signal that comes right before the main thread begins to read does not interrupt it.
                while not self._started.wait(RETRY_S):
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            case b"take":
                rows = [
                    (code.co_filename, code.co_qualname, entries, bytecodes)
                    for code, (entries, bytecodes) in self._counts.items()
                    if entries or bytecodes
                ]
                for count in self._counts.values():
                    count[:] = [0, 0]
                return rows
            case _:
                pass
        return []


def _step_of(count: list[int]) -> Any:
    """Return the trace function of frames of one function."""

    def step(_frame: FrameType, event: str, _arg: Any) -> Any:
        if event == "opcode":
            count[1] += 1
        return step

    return step


def _stand_still() -> float:
    """Return the same time always."""
    return 0.0


def _count_in_this_process(module: str) -> None:
    time.thread_time = _stand_still
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{module}.sock"))
    listener.listen()
    threading.Thread(target=OpcodeCounter().serve, args=(listener,), daemon=True).start()


if __name__ == "sitecustomize":
    _words = sys.orig_argv
    _module = _words[_words.index("-m") + 1] if "-m" in _words[:-1] else ""
    if _module in COUNTED:
        _count_in_this_process(_module)
