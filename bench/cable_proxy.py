"""A TCP proxy on loopback in front of servers, with the faults of a network, which change while it runs.

`slow` gives the cable a delay and a bandwidth. `stall` lets nothing pass and ends no connection, as with a
cable that is pulled: bytes are taken until the buffers are full, and new connections get no answer; in one
direction that is a half-open connection. `cut` resets all connections, mostly in the middle of a message.
`refuse` takes no further connections. `heal` ends all of that. Several ports can share one cable, so that all
connections of a machine have one bandwidth.

Owns sockets only: what passes when is decided by `cable`. Knows nothing of: what the bytes mean.
"""

import socket
import struct
from math import inf

import trio

from bench.cable import Cable, CableDirection, Lane, Way, Ways

READ_BYTES = KERNEL_BYTES = 1 << 16


class CableProxy:
    """A cable and the ports at its ends."""

    def __init__(self) -> None:
        self.cable = Cable()
        self._ports: list[_Port] = []
        self._connections: list[_Connection] = []
        self._changed = trio.Event()

    @property
    def carried_bytes(self) -> int:
        """The bytes that have passed, in both directions."""
        return self.cable.there.carried_bytes + self.cable.back.carried_bytes

    @property
    def held_pieces(self) -> int:
        """The pieces of data that have come since the last stall, and did not pass."""
        return sum(each.held_pieces for each in self.cable.directions())

    def slow(self, *, delay_s: float = 0.0, bytes_per_s: float = inf, way: Ways = "both") -> None:
        """Give the cable a delay and a bandwidth, each way; without arguments, take them away."""
        for direction in self.cable.directions(way):
            direction.delay_s, direction.bytes_per_s = delay_s, bytes_per_s
        self._wake()

    def stall(self, way: Ways = "both") -> None:
        """Pass nothing any more, or nothing in one direction, and end no connection."""
        for direction in self.cable.directions(way):
            direction.stall()
        self._wake()

    def cut(self) -> None:
        """Reset all connections: what is on its way is lost."""
        for connection in self._connections:
            connection.reset()

    def refuse(self) -> None:
        """Refuse all further connections. Those that are there go on; `cut` ends them."""
        for port in self._ports:
            port.close()

    def heal(self) -> None:
        """Pass everything that was held, take connections again, and go on. Delay and bandwidth stay."""
        for direction in self.cable.directions():
            direction.resume(trio.current_time())
        for port in self._ports:
            port.open()
        self._wake()

    def listen(self, nursery: trio.Nursery, target_port: int, *, reverse: bool = False) -> int:
        """Pass connections on to a port of this machine until the nursery ends. Returns the port that takes
        them. `reverse`: those who connect are at the far end of the cable.
        """
        port = _Port()
        self._ports.append(port)
        nursery.start_soon(self._accept, port, target_port, reverse)
        return port.number

    def _wake(self) -> None:
        """Have everybody who waits look again."""
        self._changed.set()
        self._changed = trio.Event()

    async def _accept(self, port: "_Port", target_port: int, reverse: bool) -> None:
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    changed = self._changed
                    if port.listener is None:
                        await changed.wait()
                        continue
                    try:
                        stream = await port.listener.accept()
                    except trio.ClosedResourceError:
                        continue  # it refuses now
                    nursery.start_soon(self._serve, stream, target_port, reverse)
        finally:
            self._ports.remove(port)
            port.release()

    async def _serve(self, near: trio.SocketStream, target_port: int, reverse: bool) -> None:
        way: Way = "back" if reverse else "there"
        there, back = self.cable.direction(way), self.cable.direction("there" if reverse else "back")
        connection = _Connection(near)
        self._connections.append(connection)
        try:
            with connection.scope:
                async with near:
                    while there.is_stalled:
                        await self._changed.wait()
                    try:
                        far = await trio.open_tcp_stream("127.0.0.1", target_port)
                    except OSError:
                        connection.reset()
                        return
                    _limit_buffer(far.socket)
                    connection.streams.append(far)
                    async with far:
                        await self._pass_on(connection, there, back)
        finally:
            self._connections.remove(connection)

    async def _pass_on(self, connection: "_Connection", there: CableDirection, back: CableDirection) -> None:
        near, far = connection.streams
        ways = ((near, far, there, Lane()), (far, near, back, Lane()))
        try:
            async with trio.open_nursery() as reading:
                for source, _, direction, lane in ways:
                    reading.start_soon(self._read, source, direction, lane)
                async with trio.open_nursery() as writing:
                    for _, target, direction, lane in ways:
                        writing.start_soon(self._write, target, direction, lane, connection)
                reading.cancel_scope.cancel()
        finally:
            for _, _, direction, lane in ways:
                direction.drop(lane)

    async def _read(self, source: trio.SocketStream, direction: CableDirection, lane: Lane) -> None:
        while not lane.ending:
            changed, now = self._changed, trio.current_time()
            room = direction.room_bytes(lane, now)
            if not room:
                with trio.move_on_at(direction.next_due(lane, now)):
                    await changed.wait()
                continue
            try:
                data = await source.receive_some(min(room, READ_BYTES))
            except trio.BrokenResourceError:
                lane.ending = "reset"
            else:
                direction.put(lane, bytes(data), trio.current_time())
                if not data:
                    lane.ending = "end"
            self._wake()

    async def _write(
        self, target: trio.SocketStream, direction: CableDirection, lane: Lane, connection: "_Connection"
    ) -> None:
        """Write what comes out, and then the end of the connection, as it was ended at the other side."""
        try:
            while direction.is_stalled or not lane.is_over:
                changed, now = self._changed, trio.current_time()
                if data := direction.take(lane, now):
                    await target.send_all(data)
                    self._wake()  # there is room
                else:
                    with trio.move_on_at(direction.next_due(lane, now)):
                        await changed.wait()
            if lane.ending == "reset":
                connection.reset()
            else:
                await target.send_eof()
        except trio.BrokenResourceError:
            connection.reset()


class _Connection:
    """A connection, with the streams at both ends of the cable."""

    def __init__(self, near: trio.SocketStream) -> None:
        self.streams = [near]
        self.scope = trio.CancelScope()

    def reset(self) -> None:
        """End it with a reset at both ends."""
        for stream in self.streams:
            if stream.socket.fileno() >= 0:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                stream.socket.close()
        self.scope.cancel()


class _Port:
    """One port of loopback that listens, or refuses and stays reserved."""

    def __init__(self) -> None:
        self._held = _bind(0)
        self.number: int = self._held.getsockname()[1]
        self.listener: trio.SocketListener | None = None
        self.open()

    def open(self) -> None:
        """Listen."""
        if self.listener is None:
            listening = trio.socket.from_stdlib_socket(self._held)
            _limit_buffer(listening)
            self._held.listen(100)
            self.listener = trio.SocketListener(listening)

    def close(self) -> None:
        """Refuse. The port stays bound, so that nobody else takes it."""
        if self.listener is not None:
            self.release()
            self._held = _bind(self.number)

    def release(self) -> None:
        """Give the port back."""
        if self.listener is None:
            self._held.close()
        else:
            self.listener.socket.close()
            self.listener = None


def _bind(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # its connections may outlive its listening
    bound.bind(("127.0.0.1", port))
    return bound


def _limit_buffer(sock: trio.socket.SocketType) -> None:
    """Keep the kernel from taking megabytes of a sender whose bytes find no room in the cable."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BYTES)
