"""The limit on lines that nobody has asked an instance for: a server that floods its stdout is read slowly.

Owns the allowance of each instance: it grows with time and with each call, and lines, bytes and the time that
they take use it up. Each request of carpool's own allows one line more, its answer, because agents cause
these requests. Where the allowance is used up, reading pauses until it has grown again, so that the pipe
fills and the server waits. No pause is longer than `LONGEST_S`, because answers wait behind the flood: what
is still owed then follows in further pauses. Instances whose allowance is used up share the time of one of
them. Decides too when messages that may be left out are left out, so that little of a flood reaches the core
and the broker. Calls and their timeouts go on; a server is not ended for talking.

Knows nothing of: the meaning of lines, why reading is paused for other reasons (`read_budget`).
"""

import math
import time
from collections.abc import Callable
from typing import Final

import trio

from carpool_protocol.runtime.poller import ReadySet
from carpool_supervisor.stdio.child_io import ChildIo

LINES_S: Final = 2000
"""The lines of an instance in a second, in the long run, beside those that its calls allow."""
BURST_LINES: Final = 20_000
"""The most lines that an instance may have saved up."""
LINES_OF_CALL: Final = 100
"""The lines that each call allows: its answer, its progress, its messages for the log."""
LINES_OF_WORK: Final = 8000
"""A second of the supervisor's work counts as so many lines: floods take a quarter of its time at most. One
MiB takes between 0.2 and 100 ms, as its content is, so a number of bytes would be far too many or too few.
"""
BYTES_OF_LINE: Final = 64 * 1024
"""So many bytes count as one line more: reading them is work too, before anything is known of them."""
FEW_LINES: Final = 8
"""So many answers at once that calls wait for are not counted: each call would pay for it."""
FLOOD_S: Final = 5.0
"""So long after it was read last an instance with nothing left of its allowance counts as one that floods."""
LONGEST_S: Final = 1.0
"""The longest pause."""
MAX_OWED_LINES: Final = 30 * LINES_S
"""The most lines that an instance can owe. Lines beyond them do not count."""
_SHORTEST_S: Final = 0.02
"""A shorter pause would cost more than it saves. Its time is added to that of the next one."""


class FloodLimit:
    """The allowance of one instance. `now`: a clock in seconds."""

    __slots__ = ("_answers", "_at", "_calls", "_lines", "is_used_up", "now")

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self._at = now()
        self._calls = 0
        self._answers = 0
        """The answers to requests of carpool's own that may still come."""
        self._lines = float(BURST_LINES)
        """The lines that are allowed now."""
        self.is_used_up = False
        """The allowance was used up, and not even half of it has been saved up again."""

    def allow_answers(self, count: int) -> None:
        """So many requests of carpool's own are written: as many lines are not counted."""
        self._answers += count

    def forfeit(self) -> None:
        """Forget what has been saved up: what comes now is a flood, however little it was before."""
        self._lines = min(self._lines, 0.0)
        self.is_used_up = True

    def pause_after(
        self, lines: int, calls: int, size_bytes: int = 0, work_s: float = 0.0, floods: int = 1
    ) -> float:
        """Count these lines, their bytes that nobody has asked for, and the time that they took. Returns the
        seconds until the next ones are read; 0: at once. `calls`: the number of calls so far; `floods`: how
        many instances have used up their allowance, this one with them, and share the time of one.
        """
        now = self.now()
        earned = (now - self._at) * LINES_S + (calls - self._calls) * LINES_OF_CALL
        self._at, self._calls = now, calls
        if self._answers:
            answers = min(self._answers, lines)
            self._answers -= answers
            lines -= answers
        counted = lines + size_bytes // BYTES_OF_LINE + work_s * LINES_OF_WORK * floods
        self._lines = max(min(self._lines + earned, BURST_LINES) - counted, -MAX_OWED_LINES)
        if self._lines <= 0:
            self.is_used_up = True
        elif self._lines > BURST_LINES // 2:
            self.is_used_up = False
        pause_s = min(-self._lines / LINES_S, LONGEST_S)
        return pause_s if pause_s >= _SHORTEST_S else 0.0


class SlowReaders:
    """The instances whose reading pauses for a moment. Of pauses that are over together one ends in each
    round of the ready set, so that the others wait for one piece of a flood at a time.
    """

    def __init__(self, ready: ReadySet) -> None:
        self._ready = ready
        self._until: dict[ChildIo, float] = {}
        self._floods: dict[ChildIo, float] = {}
        """The instances that flood, and until when they count as such."""
        self._changed = trio.Event()
        self._is_ending = False
        """Pauses that are over are being ended, one in each round."""

    def pause(self, io: ChildIo, pause_s: float) -> None:
        """Read nothing of this instance for so long."""
        self._until[io] = trio.current_time() + pause_s
        io.slow_down(is_on=True)
        self._changed.set()

    def count_floods(self, io: ChildIo, now: float) -> int:
        """The number of instances that flood now, this one with them."""
        self._floods[io] = now + FLOOD_S
        if len(self._floods) > 1:
            self._floods = {each: until for each, until in self._floods.items() if until > now}
        return len(self._floods)

    def remove(self, io: ChildIo) -> None:
        """Forget an instance that has ended."""
        self._until.pop(io, None)
        self._floods.pop(io, None)

    async def run(self) -> None:
        """End the pauses when they are over, until cancelled."""
        while True:
            due = math.inf if self._is_ending else min(self._until.values(), default=math.inf)
            with trio.move_on_at(due):
                await self._changed.wait()
            self._changed = trio.Event()
            if not self._is_ending and due <= trio.current_time():
                self._is_ending = True
                self._ready.call_soon(self._end_next)

    def _end_next(self) -> None:
        """End the pause that is over longest, and plan the end of the next one."""
        io = min(self._until, key=self._until.__getitem__, default=None)
        if io is None or self._until[io] > trio.current_time():
            self._is_ending = False
            self._changed.set()
            return
        del self._until[io]
        io.slow_down(is_on=False)
        self._ready.call_soon(self._end_next)
