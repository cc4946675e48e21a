"""Readiness of hundreds of file descriptors, served by one trio task.

Owns one selector, which trio waits for, and how much one round serves. A round of readiness wakes one task
once, however many descriptors are ready. Callbacks are synchronous and run in that task; after each round the
owner's `settle` is called.

Rules:

- `remove` comes before `close`: a kernel selector does not forget a descriptor that a child process still
  holds;
- a callback may add, remove, pause and close anything, itself included: readiness that was reported for a
  removed descriptor is dropped, also when its number is in use again within the same round;
- a hang-up is reported to the callbacks that are set (reading: end of file; writing: EPIPE); while there is
  none, the descriptor is not watched, so it cannot spin;
- a descriptor that has reached its end of file can be watched for the hang-up alone (`watch_hang_up`);
- a reader that stops at its share of one turn asks for the next turn (`read_again`), because the kernel
  has nothing more to report;
- a callback that raises ends `run`: it is a bug in carpool and must be visible.

Knows nothing of: the bytes that are read or written.
Decision: docs/decisions/0001.
"""

import select
import selectors
from collections.abc import Callable
from typing import Final

import trio

Callback = Callable[[], None]

# epoll's own numbers (POLLIN, POLLOUT). A round does not use `selectors`: its loop over the ready descriptors
# takes as long as ours.
_IN: Final = 1
_OUT: Final = 4
# EPOLLET without any event: epoll then reports a hang-up only.
_HANG_UP: Final = 1 << 31

HEARS_HANG_UPS: Final = hasattr(select, "epoll")
"""False where `watch_hang_up` reports nothing (macOS): the owner must look now and then."""


CROWDED_ROUND: Final = 64
"""Maximum number of descriptors that one round serves.

The kernel lets all take turns, and those left out come first in the next round. Between two rounds the owner
settles and other tasks run.
"""

ROUND_BYTES: Final = 64 * 1024
"""The bytes that one round reads of all agents together. Each descriptor that is ready has an equal share: an
agent with a single call does not wait for hundreds of calls of each of the others.
"""

TURN_LINES: Final = 128
"""Maximum number of lines of one descriptor that a reader takes in one round.

64 KiB may hold twenty thousand lines: even if each costs little, together they would stop all others for a
second.
"""


class _Selected:
    """The part of `select.epoll` that carpool uses, for systems without it (macOS)."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self.fileno: Callable[[], int] = self._selector.fileno
        self.unregister = self._selector.unregister
        self.close = self._selector.close

    def register(self, fd: int, mask: int) -> None:
        self._selector.register(fd, _for_selectors(mask))

    def modify(self, fd: int, mask: int) -> None:
        self._selector.modify(fd, _for_selectors(mask))

    def poll(self, timeout_s: float, _most: int) -> list[tuple[int, int]]:
        read, write = selectors.EVENT_READ, selectors.EVENT_WRITE
        return [
            (key.fd, (_IN if events & read else 0) | (_OUT if events & write else 0))
            for key, events in self._selector.select(timeout_s)
        ]


def _for_selectors(mask: int) -> int:
    return (selectors.EVENT_READ if mask & _IN else 0) | (selectors.EVENT_WRITE if mask & _OUT else 0)


_new_poll: Callable[[], "select.epoll | _Selected"] = select.epoll if HEARS_HANG_UPS else _Selected


class _WatchedFd:
    """One descriptor. The number of the round in which it was added distinguishes two uses of the same
    number.
    """

    __slots__ = ("added_in", "has_ended", "mask", "on_readable", "on_writable", "reading")

    def __init__(self, on_readable: Callback, added_in: int) -> None:
        self.on_readable = on_readable
        self.added_in = added_in
        self.on_writable: Callback | None = None
        self.reading = True
        self.has_ended = False
        """True: only its hang-up is watched, no input."""
        self.mask = 0


class ReadySet:
    """File descriptors and the functions to call when they are ready (level-triggered)."""

    def __init__(self) -> None:
        self._poll = _new_poll()
        self._watched: dict[int, _WatchedFd] = {}
        self._rounds = 0
        self._to_read_again: dict[int, None] = {}
        self._callbacks: list[Callback] = []
        self._is_sleeping = False
        """True while `run` waits for the kernel."""
        self.share_bytes = ROUND_BYTES
        """The share of each descriptor in what this round reads."""

    def __len__(self) -> int:
        return len(self._watched)

    @property
    def rounds(self) -> int:
        """The number of rounds so far: it grows while anything happens."""
        return self._rounds

    def add(self, fd: int, on_readable: Callback) -> None:
        """Watch a descriptor for reading. Raises OSError for one that cannot be polled (a regular file)."""
        if fd in self._watched:
            raise ValueError(f"descriptor {fd} is watched already: remove() it before it is closed")
        entry = self._watched[fd] = _WatchedFd(on_readable, self._rounds)
        try:
            self._apply(fd, entry)
        except BaseException:
            del self._watched[fd]
            raise

    def want_write(self, fd: int, on_writable: Callback | None) -> None:
        """Call `on_writable` in every round in which the descriptor takes bytes; None: stop that."""
        entry = self._watched[fd]
        entry.on_writable = on_writable
        self._apply(fd, entry)

    def pause_read(self, fd: int) -> None:
        """Do not read from this descriptor until `resume_read`: arriving bytes stay in the kernel."""
        entry = self._watched[fd]
        entry.reading = False
        self._apply(fd, entry)

    def watch_hang_up(self, fd: int) -> None:
        """Call `on_readable` only when the other end is closed in both directions, and not for input."""
        entry = self._watched[fd]
        entry.has_ended = True
        self._apply(fd, entry)

    def read_again(self, fd: int) -> None:
        """Call `on_readable` in the next round even if no more bytes have come, unless reading is paused."""
        self._to_read_again[fd] = None
        if self._is_sleeping:
            self._wake()

    def call_soon(self, callback: Callback) -> None:
        """Call `callback` at the end of the next round, and begin that round at once.

        From within a round this costs next to nothing.
        """
        self._callbacks.append(callback)
        if self._is_sleeping:
            self._wake()

    def resume_read(self, fd: int) -> None:
        entry = self._watched[fd]
        entry.reading = True
        self._apply(fd, entry)

    def remove(self, fd: int) -> None:
        """Stop watching the descriptor. Does nothing if it is not watched."""
        entry = self._watched.pop(fd, None)
        self._to_read_again.pop(fd, None)
        if entry is not None and entry.mask:
            self._poll.unregister(fd)

    async def run(self, settle: Callback) -> None:
        """Serve until cancelled. `settle` is called after each round that called a callback."""
        fileno: int = self._poll.fileno()
        while True:
            if self._to_read_again or self._callbacks:
                await trio.lowlevel.checkpoint()
            else:
                self._is_sleeping = True
                try:  # noqa: SIM105 - `suppress` costs time in each round
                    await trio.lowlevel.wait_readable(fileno)
                except trio.ClosedResourceError:  # see `_wake`
                    pass
                self._is_sleeping = False
            if self._round():
                settle()

    def _wake(self) -> None:
        self._is_sleeping = False
        trio.lowlevel.notify_closing(self._poll.fileno())  # nothing is closed: it ends the wait

    def close(self) -> None:
        """Close the selector, not the descriptors. `run` must have ended."""
        self._watched.clear()
        self._poll.close()

    def _round(self) -> bool:
        ready = self._poll.poll(0, CROWDED_ROUND)
        self.share_bytes = ROUND_BYTES // (len(ready) or 1) or 1
        watched = self._watched
        self._rounds = this = self._rounds + 1
        again: list[int] = []
        if self._to_read_again:
            served = {fd for fd, events in ready if events & ~_OUT}
            again = [fd for fd in self._to_read_again if fd not in served]
            self._to_read_again = {}
        for fd, events in ready:
            entry = watched.get(fd)
            if entry is None or entry.added_in == this:
                continue
            # A hang-up or an error is a bit of its own: both callbacks get it.
            if events & ~_OUT and entry.reading:
                entry.on_readable()
            # Checked again: the reader may have removed the descriptor or written everything.
            if events & ~_IN and entry.on_writable is not None and watched.get(fd) is entry:
                entry.on_writable()
        for fd in again:
            entry = watched.get(fd)
            if entry is not None and entry.reading and entry.added_in != this:
                entry.on_readable()
        if not self._callbacks:
            return bool(ready or again)
        soon, self._callbacks = self._callbacks, []
        for callback in soon:
            callback()
        return True

    def _apply(self, fd: int, entry: _WatchedFd) -> None:
        mask = (_IN if entry.reading else 0) | (_OUT if entry.on_writable is not None else 0)
        if entry.has_ended:  # with `_OUT` a hang-up is reported anyway
            mask = mask & _OUT or (_HANG_UP if mask and HEARS_HANG_UPS else 0)
        if mask == entry.mask:
            return
        if not entry.mask:
            self._poll.register(fd, mask)
        elif not mask:
            self._poll.unregister(fd)
        else:
            self._poll.modify(fd, mask)
        entry.mask = mask
