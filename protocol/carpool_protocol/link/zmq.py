"""The link over ZeroMQ: ROUTER at the broker, a DEALER at each supervisor, `ipc://` only.

Owns the socket of one end. One task reads it; `flush` sends from any synchronous code of the same thread,
which saves a wake-up per burst.

Why that is safe (python-trio/trzmq, notes; tried with libzmq 4.3.5): the socket's descriptor is
edge-triggered and *any* call on the socket may consume the edge. Reading `EVENTS` handles everything that is
pending, and after it the next arrival signals the descriptor again. So `EVENTS` is read last in each burst of
input, and after each flush; if there is something to read after that, the ready set of the process reads it
in its next round. (Cancelling the wait of the task instead took 10 us and more, after every third flush under
load, and after three of four with many calls.)

Options, with their reasons: high-water mark 0 and ROUTER_MANDATORY (the link does not drop: rule 10);
ROUTER_HANDOVER (a restarted supervisor takes its name over); IMMEDIATE at the DEALER (nothing is queued for a
missing broker, and EAGAIN reports that at once); PROBE_ROUTER (the broker learns of each connection by an
empty frame, and greets); LINGER 0 and a context of its own (closing never waits).

Knows nothing of: messages, epochs, credit (`peer`).
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import trio
import zmq

from carpool_protocol.link.codec import FrameData, SplitFrame
from carpool_protocol.link.messages import Hello
from carpool_protocol.link.peer import BROKER, LINK_WINDOW_BYTES, LinkEvent
from carpool_protocol.link.transport import Deliver, PeeredLink, Settle
from carpool_protocol.runtime.pace import IDLE_S, until_due
from carpool_protocol.runtime.poller import ReadySet

# Plain numbers: an operation on pyzmq's flag enums takes about a microsecond, and a single call needs ten.
_NOBLOCK = int(zmq.NOBLOCK)
_NOBLOCK_SNDMORE = int(zmq.NOBLOCK) | int(zmq.SNDMORE)
_EVENTS = int(zmq.EVENTS)
_RCVMORE = int(zmq.RCVMORE)
_POLLIN = int(zmq.POLLIN)
_POLLOUT = int(zmq.POLLOUT)
_POLLIN_POLLOUT = _POLLIN | _POLLOUT
_RECONNECT_MS = 50
_POLL_S = IDLE_S
"""How often the broker's end checks that the file of its socket exists."""
_BURST_BYTES = 1024 * 1024
"""After frames of so many bytes, or a thousand short messages, the owner settles and other tasks run."""
_FRAME_COST_BYTES = 4 * 1024
"""The cost of a frame beside its messages: small ones cost time too."""


def checked_address(address: str) -> str:
    """The address, if the link may use it. Otherwise raises ValueError with a sentence."""
    if address.startswith("tcp://"):
        raise ValueError(
            "the link over tcp:// is not available yet: it comes with CURVE keys, and without them anybody "
            "who reaches the port could run tools. Use ipc://"
        )
    if not address.startswith("ipc://"):
        raise ValueError(f"the link needs an ipc:// address, not {address.partition(':')[0]}:")
    return address


class ZmqLink(PeeredLink):
    """One end: the broker's binds, a supervisor's connects (and reconnects automatically)."""

    def __init__(
        self, me: Hello, address: str, ready: ReadySet, *, window_bytes: int = LINK_WINDOW_BYTES
    ) -> None:
        """`ready`: its owner runs it, and settles after each of its rounds."""
        super().__init__(me, window_bytes=window_bytes)
        self._address = checked_address(address)
        self._socket: zmq.Socket[bytes] | None = None
        self._ready = ready
        self._deliver: Deliver = _ignore_event
        self._kicked = False
        """True: the next round of the ready set will read the socket."""
        self._busy = False
        """True while the task reads a burst; a flush then leaves new input to the task."""
        self._has_found = False

    async def run(
        self,
        deliver: Deliver,
        settle: Settle,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until cancelled. OSError if the address cannot be bound."""
        self._deliver = deliver
        with self._opened() as socket:
            task_status.started()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send_heartbeats)
                if self.is_broker:
                    nursery.start_soon(self._keep_file, socket)
                await self._read(socket, settle)

    @contextmanager
    def _opened(self) -> "Iterator[zmq.Socket[bytes]]":
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            socket = context.socket(zmq.ROUTER if self.is_broker else zmq.DEALER)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.SNDHWM, 0)
            socket.setsockopt(zmq.RCVHWM, 0)
            try:
                if self.is_broker:
                    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
                    socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
                    _bind(socket, self._address)
                else:
                    socket.setsockopt(zmq.ROUTING_ID, self.me.name.encode())
                    socket.setsockopt(zmq.IMMEDIATE, 1)
                    socket.setsockopt(zmq.PROBE_ROUTER, 1)
                    socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
                    socket.connect(self._address)
            except zmq.ZMQError as exc:
                raise OSError(exc.errno, f"the link cannot use {self._address}: {exc.strerror}") from exc
            self._socket = socket
            yield socket
        finally:
            self._socket = None
            context.destroy(linger=0)

    async def _keep_file(self, socket: "zmq.Socket[bytes]") -> None:
        """Put a vanished socket file back, for supervisors that connect later."""
        while True:
            await trio.sleep(until_due(_POLL_S))
            self._put_file_back(socket)

    def _put_file_back(self, socket: "zmq.Socket[bytes]") -> None:
        if os.path.lexists(self._address.removeprefix("ipc://")):
            return
        # The old listener stays until the end: closing it would unlink the new file.
        with suppress(zmq.ZMQError):  # the directory is still missing
            _bind(socket, self._address)
        self._kick()  # the call may have consumed the edge

    # --- in ----------------------------------------------------------------------------------------------

    async def _read(self, socket: "zmq.Socket[bytes]", settle: Settle) -> None:
        descriptor: int = socket.getsockopt(zmq.FD)  # type: ignore[assignment]
        woken = False
        while True:
            self._has_found, self._busy = False, True
            has_more = self._receive(socket, woken=woken)
            self._settle(settle)
            self._busy = False
            has_more |= self._has_found
            woken = not has_more
            if has_more:
                await trio.lowlevel.checkpoint()
            else:
                await trio.lowlevel.wait_readable(descriptor)

    def _poll_socket(self) -> None:
        """Read the socket, in a round of the ready set."""
        self._kicked = False
        if self._socket is not None and self._receive(self._socket, woken=False):
            self._kick()

    def _receive(self, socket: "zmq.Socket[bytes]", *, woken: bool) -> bool:
        """Deliver announced events and read at most one burst. True: there is more.

        `woken`: the descriptor was signalled.
        """
        if self._announced:
            self._deliver_announced(self._deliver)
        take_frame = self._receive_from_supervisor if self.is_broker else self._receive_from_broker
        has_more = True
        room = _BURST_BYTES
        try:
            while has_more and room > 0:
                room -= take_frame(socket)
                has_more = self._has_more(socket)  # an EAGAIN costs more than twice as much
        except zmq.Again:
            if woken and room == _BURST_BYTES:
                self._check_connections()
            has_more = self._has_more(socket)
        if self._announced:
            self._deliver_announced(self._deliver)
        return has_more

    def _has_more(self, socket: "zmq.Socket[bytes]") -> bool:
        """True if there is something to read. Also notices a lost connection to the broker."""
        events: int = socket.getsockopt(_EVENTS)  # type: ignore[assignment]
        if not events & _POLLIN_POLLOUT:
            self._connection_lost(BROKER, "the connection to the broker is gone")
        return bool(events & _POLLIN)

    def _receive_from_broker(self, socket: "zmq.Socket[bytes]") -> int:
        """Read the next frame of the broker. Returns its cost."""
        return self._frame_received(BROKER, socket.recv(_NOBLOCK), self._deliver) + _FRAME_COST_BYTES

    def _receive_from_supervisor(self, socket: "zmq.Socket[bytes]") -> int:
        """Read the next frame of any supervisor. Returns its cost."""
        parts = [socket.recv(_NOBLOCK), socket.recv(_NOBLOCK)]  # a ROUTER never gives a name alone
        while socket.getsockopt(_RCVMORE):
            parts.append(socket.recv(_NOBLOCK))
        name = _name_of(parts[0])
        if len(parts) == 3 and name:
            body, head = parts.pop(), parts.pop()
            return self._frame_received(name, SplitFrame(head, body), self._deliver) + _FRAME_COST_BYTES
        if len(parts) != 2 or not name:
            self._bad_frames += 1
        elif parts[1]:  # taken out of the list, so that it can be freed before the messages are delivered
            return self._frame_received(name, parts.pop(), self._deliver) + _FRAME_COST_BYTES
        else:
            self._connection_opened(name, self._deliver)
        return _FRAME_COST_BYTES

    def _check_connections(self) -> None:
        """Woken with nothing to read: a connection may be lost. A ROUTER notices only when it sends."""
        if self.is_broker:
            for peer in self._peers.values():
                peer.send_heartbeat()
                if peer.has_output:
                    self._dirty.add(peer)

    # --- from any synchronous code -----------------------------------------------------------------------

    def _transmit(self, peer: str, frames: list[FrameData]) -> str:
        socket = self._socket
        if socket is None:
            return "the link is closed"
        try:
            if self.is_broker:
                name = peer.encode()
                for frame in frames:
                    socket.send(name, _NOBLOCK_SNDMORE)
                    _send(socket, frame)
            else:
                for frame in frames:
                    _send(socket, frame)
        except zmq.ZMQError as exc:
            # EHOSTUNREACH at the ROUTER, EAGAIN at the DEALER: without a high-water mark both mean "not
            # connected".
            return f"the connection to {peer} is gone ({exc.strerror})"
        return ""

    def _flushed(self) -> None:
        if self._socket is not None:
            events: int = self._socket.getsockopt(_EVENTS)  # type: ignore[assignment]
            if events & _POLLIN or not events & _POLLOUT or self._announced:
                self._kick()

    def _kick(self) -> None:
        if self._busy:
            self._has_found = True
        elif not self._kicked and self._socket is not None:
            self._kicked = True
            self._ready.call_soon(self._poll_socket)


def _bind(socket: "zmq.Socket[bytes]", address: str) -> None:
    """Bind for this user only: by the mode of the file from its first moment, and by the user id of each
    connection.

    A process that can write to the link can run any program.
    """
    # a libzmq for a system that does not give the user id of a connecting process
    with suppress(zmq.ZMQError):
        socket.setsockopt(zmq.IPC_FILTER_UID, os.geteuid())
    old = os.umask(0o177)
    try:
        socket.bind(address)
    finally:
        os.umask(old)


def _send(socket: "zmq.Socket[bytes]", frame: FrameData) -> None:
    if isinstance(frame, SplitFrame):
        socket.send(frame.head, _NOBLOCK_SNDMORE)
        socket.send(frame.body, _NOBLOCK)
    else:
        socket.send(frame, _NOBLOCK)


def _name_of(identity: bytes) -> str:
    """The supervisor's name, or `""` for an identity that ZeroMQ made up or that is not text."""
    try:
        return "" if identity[:1] == b"\0" else identity.decode()
    except UnicodeDecodeError:
        return ""


def _ignore_event(_peer: str, _events: list[LinkEvent]) -> None:
    """Receives events before the link runs."""
