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
- a callback that raises ends `run`: it is a bug of ours and must be loud.

Knows nothing of: what is read or written.
"""

import selectors
from collections.abc import Callable
from selectors import EVENT_READ, EVENT_WRITE

import trio

Callback = Callable[[], None]


class _Watched:
    """One descriptor. Identity tells two uses of the same number apart."""

    __slots__ = ("mask", "on_readable", "on_writable", "reading")

    def __init__(self, on_readable: Callback) -> None:
        self.on_readable = on_readable
        self.on_writable: Callback | None = None
        self.reading = True
        self.mask = 0


class ReadySet:
    """Descriptors and what to call when they are ready (level-triggered)."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._watched: dict[int, _Watched] = {}

    def __len__(self) -> int:
        return len(self._watched)

    def add(self, fd: int, on_readable: Callback) -> None:
        """Watch a descriptor for reading. OSError for one that cannot be polled (a regular file)."""
        if fd in self._watched:
            raise ValueError(f"descriptor {fd} is watched already: remove() it before it is closed")
        entry = self._watched[fd] = _Watched(on_readable)
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

    def resume_read(self, fd: int) -> None:
        entry = self._watched[fd]
        entry.reading = True
        self._apply(fd, entry)

    def remove(self, fd: int) -> None:
        """Watch the descriptor no more; nothing happens when it is not watched."""
        entry = self._watched.pop(fd, None)
        if entry is not None and entry.mask:
            self._selector.unregister(fd)

    async def run(self, settle: Callback) -> None:
        """Serve until cancelled. `settle` is called after each round in which something was ready."""
        fileno: int = self._selector.fileno()
        while True:
            await trio.lowlevel.wait_readable(fileno)
            if self._round():
                settle()

    def close(self) -> None:
        """Close the selector, not the descriptors. `run` must have ended."""
        self._watched.clear()
        self._selector.close()

    def _round(self) -> bool:
        ready = self._selector.select(0)
        watched = self._watched
        for key, events in ready:
            entry: _Watched = key.data
            fd = key.fd
            if events & EVENT_READ and entry.reading and watched.get(fd) is entry:
                entry.on_readable()
            # Looked at again: the reader may have removed the descriptor or written all there was.
            if events & EVENT_WRITE and entry.on_writable is not None and watched.get(fd) is entry:
                entry.on_writable()
        return bool(ready)

    def _apply(self, fd: int, entry: _Watched) -> None:
        mask = (EVENT_READ if entry.reading else 0) | (EVENT_WRITE if entry.on_writable is not None else 0)
        if mask == entry.mask:
            return
        if not entry.mask:
            self._selector.register(fd, mask, entry)
        elif not mask:
            self._selector.unregister(fd)
        else:
            self._selector.modify(fd, mask, entry)
        entry.mask = mask
