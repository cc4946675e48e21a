"""A proxy on loopback in front of a server, with the faults of a network: cuts, delay, and little bandwidth.

While it is cut nothing passes and no connection ends, as with a network cable that is pulled; new
connections are taken and get no answer. A cut of one way is a half-open connection. `break_all` resets
connections, mostly in the middle of a message.

Knows nothing of: what the bytes mean.
"""

import math
import socket
import struct
from collections.abc import Callable
from typing import Literal

import trio

READ_BYTES = 1 << 16
STEP_S = 0.02
"""A connection with little bandwidth passes bytes in steps of this time."""
BUFFERED_PIECES = 256
"""The most pieces of data on the way in one direction of one connection."""

Way = Literal["both", "there", "back"]


class CutProxy:
    """Passes connections at `port` on to `target_port`, both on 127.0.0.1."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self.port = 0
        self.delay_s = 0.0
        """How long each piece of data is on its way, in each direction."""
        self.bytes_per_s = math.inf
        """The bandwidth of each direction of each connection."""
        self.held_back = 0
        """The pieces of data that have come since the last cut, and did not pass."""
        self.passed_bytes = 0
        """The bytes that have passed, in both directions."""
        self._passing = {"there": trio.Event(), "back": trio.Event()}
        self._connections: set[trio.SocketStream] = set()
        self.heal()

    def cut(self, way: Way = "both") -> None:
        """Pass nothing any more, or nothing in one direction: to the server (`there`) or from it (`back`)."""
        self.held_back = 0
        for each in self._passing if way == "both" else (way,):
            self._passing[each] = trio.Event()

    def heal(self) -> None:
        """Pass everything that was held back, and go on."""
        for event in self._passing.values():
            event.set()

    def break_all(self) -> None:
        """Reset all connections: what is on its way is lost."""
        for stream in self._connections:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stream.socket.close()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        listeners = await trio.open_tcp_listeners(self.port, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        task_status.started()
        await trio.serve_listeners(self._serve, listeners)

    async def _serve(self, near: trio.SocketStream) -> None:
        await self._passing["there"].wait()
        try:
            far = await trio.open_tcp_stream("127.0.0.1", self._target_port)
        except OSError:
            await near.aclose()
            return
        both = {near, far}
        self._connections |= both
        try:
            async with near, far, trio.open_nursery() as nursery:
                end = nursery.cancel_scope.cancel
                for source, target, way in ((near, far, "there"), (far, near, "back")):
                    under_way, arrives = trio.open_memory_channel[tuple[float, bytes]](BUFFERED_PIECES)
                    nursery.start_soon(self._read, source, under_way, way, end)
                    nursery.start_soon(self._write, arrives, target, way, end)
        finally:
            self._connections -= both

    async def _read(
        self,
        source: trio.SocketStream,
        under_way: trio.MemorySendChannel[tuple[float, bytes]],
        way: str,
        end: Callable[[], None],
    ) -> None:
        try:
            while data := await source.receive_some(READ_BYTES):
                self.held_back += not self._passing[way].is_set()
                await under_way.send((trio.current_time() + self.delay_s, data))
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            end()
            return
        under_way.close()

    async def _write(
        self,
        arrives: trio.MemoryReceiveChannel[tuple[float, bytes]],
        target: trio.SocketStream,
        way: str,
        end: Callable[[], None],
    ) -> None:
        try:
            async for due, data in arrives:
                await trio.sleep_until(due)
                size = len(data) if self.bytes_per_s == math.inf else max(int(self.bytes_per_s * STEP_S), 1)
                for at in range(0, len(data), size):
                    await self._passing[way].wait()
                    await target.send_all(data[at : at + size])
                    self.passed_bytes += len(data[at : at + size])
                    if size < len(data):
                        await trio.sleep(STEP_S)
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            pass
        end()
