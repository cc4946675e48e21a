"""The link inside one thread, for tests and simulations of both halves in one process.

Owns a wire between one broker end and any number of supervisor ends. Frames are really encoded and decoded.
An end exists while its `run` runs; a connection is made when both ends run and lost when one stops. Tests may
`break_path` and `heal` the path to a supervisor, and `delay` its frames (both ways, in order). A break loses
unread frames, which is the worst that a real transport does.

Knows nothing of: sockets, processes.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from carpool_protocol.link.codec import FrameData
from carpool_protocol.link.messages import Hello
from carpool_protocol.link.peer import BROKER, LINK_WINDOW_BYTES
from carpool_protocol.link.transport import Deliver, PeeredLink, Settle


class _Path:
    """The path between the broker and one supervisor."""

    __slots__ = ("cut", "delay_s")

    def __init__(self) -> None:
        self.cut = False
        self.delay_s = 0.0


class MemoryWire:
    """The place where the ends meet, with the functions for tests."""

    def __init__(self) -> None:
        self._ends: dict[str, MemoryLink] = {}
        self._paths: dict[str, _Path] = {}

    def make_link(self, me: Hello, *, window_bytes: int = LINK_WINDOW_BYTES) -> "MemoryLink":
        """An end for `me`: the broker's or a supervisor's, by its name. It joins when it runs."""
        return MemoryLink(self, me, window_bytes=window_bytes)

    def break_path(self, name: str) -> None:
        """Break the path to this supervisor. Frames under way are lost."""
        self._path(name).cut = True
        self._lose(name, "the link was cut")

    def heal(self, name: str) -> None:
        """Let this supervisor connect again."""
        self._path(name).cut = False
        self._connect(name)

    def delay(self, name: str, delay_s: float) -> None:
        """Delay each frame from and to this supervisor by `delay_s` from now on."""
        self._path(name).delay_s = delay_s

    def inject(self, sender: str, receiver: str, data: FrameData) -> None:
        """Deliver bytes as if `sender` had sent them."""
        self._ends[receiver].arrive(sender, data, 0.0)

    def carry(self, sender: str, receiver: str, data: FrameData) -> bool:
        """Carry a frame, for ends. False if there is no path."""
        path = self._path(sender if receiver == BROKER else receiver)
        end = self._ends.get(receiver)
        if path.cut or end is None:
            return False
        end.arrive(sender, data, path.delay_s)
        return True

    def attach(self, end: "MemoryLink") -> None:
        """Register a running end. A second one with the same name takes over, as a restarted process does."""
        name = end.me.name
        self._ends[name] = end
        for supervisor in [n for n in self._ends if n != BROKER] if name == BROKER else [name]:
            self._connect(supervisor)

    def detach(self, end: "MemoryLink") -> None:
        """Remove an end that has stopped."""
        name = end.me.name
        if self._ends.get(name) is end:
            for supervisor in [n for n in self._ends if n != BROKER] if name == BROKER else [name]:
                self._lose(supervisor, "the other end stopped")
            del self._ends[name]

    def _connect(self, supervisor: str) -> None:
        if BROKER in self._ends and supervisor in self._ends and not self._path(supervisor).cut:
            self._ends[BROKER].arrive(supervisor, None, 0.0)

    def _lose(self, supervisor: str, why: str) -> None:
        for name, other in ((BROKER, supervisor), (supervisor, BROKER)):
            if name in self._ends:
                self._ends[name].lose(other, why)

    def _path(self, supervisor: str) -> _Path:
        return self._paths.setdefault(supervisor, _Path())


class MemoryLink(PeeredLink):
    """One end on a `MemoryWire`."""

    def __init__(self, wire: MemoryWire, me: Hello, *, window_bytes: int = LINK_WINDOW_BYTES) -> None:
        super().__init__(me, window_bytes=window_bytes)
        self._wire = wire
        self._inbox: deque[tuple[float, str, FrameData | None]] = deque()
        self._woken = trio.Event()

    async def run(
        self,
        deliver: Deliver,
        settle: Settle,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        with self._joined():
            task_status.started()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send_heartbeats)
                await self._read(deliver, settle)

    def arrive(self, sender: str, data: FrameData | None, delay_s: float) -> None:
        """Receive a frame, or (None) a connection, from the wire."""
        due = trio.current_time() + delay_s
        if self._inbox:
            due = max(due, self._inbox[-1][0])  # in order, also if a delay was shortened
        self._inbox.append((due, sender, data))
        self._kick()

    def lose(self, sender: str, why: str) -> None:
        """Lose the connection and the frames on it; called by the wire."""
        self._inbox = deque(item for item in self._inbox if item[1] != sender)
        self._connection_lost(sender, why)
        self._kick()

    @contextmanager
    def _joined(self) -> Iterator[None]:
        self._wire.attach(self)
        try:
            yield
        finally:
            self._wire.detach(self)

    async def _read(self, deliver: Deliver, settle: Settle) -> None:
        while True:
            self._woken = trio.Event()
            self._deliver_announced(deliver)
            now = trio.current_time()
            while self._inbox and self._inbox[0][0] <= now:
                _, sender, data = self._inbox.popleft()
                if data is None:
                    self._connection_opened(sender, deliver)
                else:
                    self._frame_received(sender, data, deliver)
            self._settle(settle)
            due = self._inbox[0][0] if self._inbox else float("inf")
            if self._announced:
                self._woken.set()
            with trio.move_on_at(due):
                await self._woken.wait()

    def _transmit(self, peer: str, frames: list[FrameData]) -> str:
        for frame in frames:
            if not self._wire.carry(self.me.name, peer, frame):
                return f"no connection to {peer}"
        return ""

    def _flushed(self) -> None:
        if self._announced:
            self._kick()

    def _kick(self) -> None:
        self._woken.set()
