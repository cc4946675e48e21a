"""Runs work that may block on a file system, in threads beside the event loop.

Owns the number of these threads and the time that a caller waits for one. A file system that does not answer
(a mount whose server is gone) holds its thread, which nothing can end. So hanging work is never started
twice, and other work has room beside it.

Invariants: every caller gets an answer within `BLOCKING_TIMEOUT_S`; work on one subject is done one by one.
Knows nothing of: the kind of work, and the use of its result.
"""

from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, TypeVar

import trio

T = TypeVar("T")
StartSoon = Callable[..., None]
"""The type of `trio.Nursery.start_soon`."""

BLOCKING_TIMEOUT_S: Final = 5.0
"""A disk that has to spin up, or a slow network drive, may take a second or two."""
MAX_THREADS: Final = 4
TURN_S: Final = 0.0005
"""How long one of these threads computes before the event loop gets its turn, if it wants one.

Python's default of 5 ms would be a pause at each step of each call while a large file is read.
"""
MAX_HANGING: Final = 32
"""Maximum number of hanging threads that are replaced by another one.

Beyond that all work waits until one of them returns.
"""


class _WorkItem(Generic[T]):
    """A piece of blocking work: its function, its result, and if it was given up."""

    def __init__(self, work: Callable[[], T], late: Callable[[T], None]) -> None:
        self.work = work
        self.late = late
        self.result: T | None = None
        self.done = trio.Event()
        self.given_up = False
        self.beside = 0
        """1: it hangs, and another one may have a thread in its place."""


class BlockingWork:
    """The blocking work of one broker."""

    def __init__(self, settle: Callable[[], None], start_soon: StartSoon) -> None:
        """`settle`: called after a late result, to end the burst. `start_soon`: begins a task that ends with
        the broker.
        """
        self._settle = settle
        self._start_soon = start_soon
        self._limiter: trio.CapacityLimiter | None = None
        self._open: dict[Hashable, _WorkItem[Any]] = {}

    def is_hanging(self, subject: Hashable) -> bool:
        """True if work on this subject was given up and is still running."""
        found = self._open.get(subject)
        return found is not None and found.given_up

    async def run(
        self, subject: Hashable, work: Callable[[], T], late: Callable[[T], None] = lambda _: None
    ) -> T | None:
        """The result of `work`, which is never None. None: it took too long, or earlier work on this subject
        hangs.

        `late` gets a result that comes after that.
        """
        item = _WorkItem(work, late)
        try:
            with trio.move_on_after(BLOCKING_TIMEOUT_S):
                while (earlier := self._open.get(subject)) is not None:
                    if earlier.given_up:
                        return None
                    await earlier.done.wait()
                self._open[subject] = item
                self._start_soon(self._run_in_thread, subject, item)
                await item.done.wait()
        finally:  # the caller may have been cancelled too
            if self._open.get(subject) is item:
                self._time_out(item)
        return item.result

    def _time_out(self, item: _WorkItem[Any]) -> None:
        limiter = self._threads()
        item.given_up = True
        item.beside = int(limiter.total_tokens < MAX_THREADS + MAX_HANGING)
        limiter.total_tokens += item.beside

    def _threads(self) -> trio.CapacityLimiter:
        if self._limiter is None:  # it belongs to a run of trio
            self._limiter = trio.CapacityLimiter(MAX_THREADS)
        return self._limiter

    async def _run_in_thread(self, subject: Hashable, item: _WorkItem[Any]) -> None:
        limiter = self._threads()
        item.result = await trio.to_thread.run_sync(item.work, limiter=limiter, abandon_on_cancel=True)
        del self._open[subject]
        item.done.set()
        if item.given_up:
            limiter.total_tokens -= item.beside
            item.late(item.result)
            self._settle()
