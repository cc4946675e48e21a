"""Virtual time: what happens when, and the parts of a world that have deadlines of their own.

Owns the time and the queue. One clock drives one carpool, or all carpools of a cluster. Knows nothing of:
what happens.
"""

import heapq
from collections.abc import Callable
from typing import Protocol


class TimedPart(Protocol):
    """A part with deadlines."""

    def next_deadline(self) -> float | None:
        """Return when `tick` is due; None: never, as things are."""

    def tick(self) -> None:
        """Time has passed."""

    def settle(self) -> None:
        """A burst is over: what it caused leaves."""


class SimClock:
    """See the module."""

    def __init__(self) -> None:
        self.now = 100.0
        self.parts: list[TimedPart] = []
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        """Do it so much later."""
        self._count += 1
        heapq.heappush(self._heap, (self.now + delay_s, self._count, act))

    def run(self, duration_s: float) -> None:
        """Let so much time pass."""
        self._settle()
        until = self.now + duration_s
        while True:
            deadlines = [part.next_deadline() for part in self.parts]
            due = min((at for at in deadlines if at is not None), default=until)
            at = min(due, self._heap[0][0] if self._heap else until)
            if at >= until:
                self.now = until
                return
            self.now = max(self.now, at)
            if self._heap and self._heap[0][0] <= self.now:
                heapq.heappop(self._heap)[2]()
            else:
                for part, its in zip(list(self.parts), deadlines, strict=True):
                    if its is not None and its <= self.now:
                        part.tick()
            self._settle()

    def _settle(self) -> None:
        for part in self.parts:
            part.settle()
