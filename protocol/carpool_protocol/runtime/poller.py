"""Readiness of hundreds of file descriptors, served by one trio task.

Owns one selector, itself waited for through trio: a round of readiness costs one wake-up of one task,
however many descriptors are ready. Callbacks are synchronous and run in that task; after each round the
owner settles.

Rules:
- `remove` comes before `close`: a kernel selector does not forget a descriptor that a child process still
  holds;
- a callback may add, remove, pause and close anything, itself included: readiness that was reported for a
  removed descriptor is dropped, also when its number is in use again within the same round;
- a hung-up descriptor is reported to whoever is interested (reading: end of file; writing: EPIPE); while
  nobody is, it is not watched, so it cannot spin;
- whoever has read more than he may take in one turn asks for the next one (`read_again`): the kernel has
  nothing
  more to report;
- a callback that raises ends `run`: it is a bug of ours and must be loud.

Knows nothing of: what is read or written.
Decision: docs/decisions/0001.
"""

import select
import selectors
from collections.abc import Callable
from typing import Final

import trio

Callback = Callable[[], None]

# epoll's own numbers (POLLIN, POLLOUT). A round needs nothing of `selectors`, whose loop over what is ready
# takes as long as ours.
_IN: Final = 1
_OUT: Final = 4


CROWDED_ROUND: Final = 64
"""So many descriptors are served in a round at most. The kernel has all take turns, those that were not come
to first; and between two rounds the owner settles and other tasks run."""

TURN_LINES: Final = 128
"""So many lines of one descriptor are taken in a round at most, whoever reads lines. 64 KiB may hold twenty
thousand of them, and what costs little for each stops everybody else for a second.
"""


class _Selected:
    """What we use of `select.epoll`, where there is none (macOS)."""

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


_new_poll: Callable[[], "select.epoll | _Selected"] = select.epoll if hasattr(select, "epoll") else _Selected


class _WatchedFd:
    """One descriptor. The round it was added in tells two uses of the same number apart."""

    __slots__ = ("added_in", "mask", "on_readable", "on_writable", "reading")

    def __init__(self, on_readable: Callback, added_in: int) -> None:
        self.on_readable = on_readable
        self.added_in = added_in
        self.on_writable: Callback | None = None
        self.reading = True
        self.mask = 0


class ReadySet:
    """Descriptors and what to call when they are ready (level-triggered)."""

    def __init__(self) -> None:
        self._poll = _new_poll()
        self._watched: dict[int, _WatchedFd] = {}
        self._rounds = 0
        self._to_read_again: dict[int, None] = {}
        self._callbacks: list[Callback] = []
        self._is_sleeping = False
        """`run` waits for the kernel."""
        self.crowded = False
        """So many are ready that each should be served in small portions."""

    def __len__(self) -> int:
        return len(self._watched)

    def add(self, fd: int, on_readable: Callback) -> None:
        """Watch a descriptor for reading. OSError for one that cannot be polled (a regular file)."""
        if fd in self._watched:
            raise ValueError(f"descriptor {fd} is watched already: remove() it before it is closed")
        entry = self._watched[fd] = _WatchedFd(on_readable, self._rounds)
        try:
            self._apply(fd, entry)
        except BaseException:
            del self._watched[fd]
            raise

    def want_write(self, fd: int, on_writable: Callback | None) -> None:
        """Call `on_writable` in every round in which the descriptor takes bytes; None: no more."""
        entry = self._watched[fd]
        entry.on_writable = on_writable
        self._apply(fd, entry)

    def pause_read(self, fd: int) -> None:
        """Leave what arrives in the kernel until `resume_read`."""
        entry = self._watched[fd]
        entry.reading = False
        self._apply(fd, entry)

    def read_again(self, fd: int) -> None:
        """Call `on_readable` in the next round, whether more has come or not; not while reading is paused."""
        self._to_read_again[fd] = None
        if self._is_sleeping:
            self._wake()

    def call_soon(self, callback: Callback) -> None:
        """Call this at the end of the next round, and begin that at once, whatever is ready. From within a
        round that costs next to nothing.
        """
        self._callbacks.append(callback)
        if self._is_sleeping:
            self._wake()

    def resume_read(self, fd: int) -> None:
        entry = self._watched[fd]
        entry.reading = True
        self._apply(fd, entry)

    def remove(self, fd: int) -> None:
        """Watch the descriptor no more; nothing happens when it is not watched."""
        entry = self._watched.pop(fd, None)
        self._to_read_again.pop(fd, None)
        if entry is not None and entry.mask:
            self._poll.unregister(fd)

    async def run(self, settle: Callback) -> None:
        """Serve until cancelled. `settle` is called after each round in which something was to be done."""
        fileno: int = self._poll.fileno()
        while True:
            if self._to_read_again or self._callbacks:
                await trio.lowlevel.checkpoint()
            else:
                self._is_sleeping = True
                try:  # noqa: SIM105 - `suppress` costs something in each round
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
        self.crowded = len(ready) >= CROWDED_ROUND
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
            # A hang-up or an error comes as a bit of its own: it is for whoever is interested.
            if events & ~_OUT and entry.reading:
                entry.on_readable()
            # Looked at again: the reader may have removed the descriptor or written all there was.
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
        if mask == entry.mask:
            return
        if not entry.mask:
            self._poll.register(fd, mask)
        elif not mask:
            self._poll.unregister(fd)
        else:
            self._poll.modify(fd, mask)
        entry.mask = mask
