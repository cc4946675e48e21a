"""An event loop of asyncio on virtual time, with real sockets and pipes.

Time stands still while a descriptor is ready or a thread works, and otherwise leaps to the next timer. So a
minute of waiting takes no time, and all bytes that the kernel has are handled before any time passes. As both
ends of each pipe and socket are in this process, the order of events is the same in each run.

Owns the clock, and the check that nothing is ready again and again with nobody to handle it. Knows nothing
of: what runs on the loop.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, Final, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MAX_TURNS: Final = 200_000
"""So many turns of the loop without any time passing are a function that is called for nothing."""
_THREAD_S: Final = 0.05


class _Selector(selectors.DefaultSelector):
    """Real readiness, virtual waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.threads = 0
        self.turns = 0
        """Since time has passed."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready now. If nothing is, let the time pass that was to be waited."""
        self.turns += 1
        if self.turns > MAX_TURNS:
            ready = {key.fd: key.data for key, _ in super().select(0)}
            raise AssertionError(f"time does not pass, these are ready for ever: {ready}")
        events = super().select(0)
        if events or (timeout is not None and timeout <= 0):
            return events
        if self.threads:
            return super().select(_THREAD_S)
        assert timeout is not None, "everybody waits, and nothing will happen any more"
        self.now += timeout
        self.turns = 0
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        """Return the virtual time."""
        return self._virtual.now

    @property
    def watched(self) -> set[int]:
        """Return the descriptors that somebody waits for, with those of the loop itself."""
        return {key.fd for key in self._virtual.get_map().values()}

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """As that of asyncio. No time passes until the thread is done."""
        done = super().run_in_executor(executor, func, *args)
        self._virtual.threads += 1
        done.add_done_callback(self._thread_done)
        return done

    def _thread_done(self, _: object) -> None:
        self._virtual.threads -= 1

    async def shutdown_default_executor(self, *args: Any, **named: Any) -> None:
        """As that of asyncio, which waits for a thread."""
        self._virtual.threads += 1
        await super().shutdown_default_executor(*args, **named)


def run_virtually(main: Coroutine[Any, Any, None]) -> None:
    """Run this on a new virtual loop. Fails if a task or a watched descriptor is left."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        own = loop.watched
        runner.run(main)
        assert loop.watched == own, f"descriptors are still watched: {loop.watched - own}"
