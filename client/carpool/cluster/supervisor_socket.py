"""The socket on which supervisors of this machine ask for sessions at other nodes, and `carpool cluster`
speaks.

Owns the listening socket and its connections, and the descriptors of a request until they are handed over. A
request for a session fails while only the last descriptors are left, which are kept for verbs and links. The
lines on it are described where the other end is (`carpool_supervisor.spawn.node_sessions`).

Knows nothing of: nodes, links, bytes of sessions.
"""

import array
import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from carpool.cluster.core.frames import Number
from carpool_protocol.bootstrap import peer_credentials
from carpool_protocol.runtime.descriptor_limit import DescriptorReserve

_READ_BYTES: Final = 1 << 16
_MAX_FDS: Final = 250
"""The most descriptors of one message, and the most that wait for their lines."""
_FDS: Final = 3
MAX_LINE_BYTES: Final = 64 * 1024
"""A longer line, or more descriptors without a line, ends the connection."""

ACCEPT_PAUSE_S: Final = 0.5
"""The pause before the next try to accept a connection, while there is no free descriptor."""


class SessionRequest(msgspec.Struct):
    """One line of a supervisor."""

    open: Number = 0
    """The instance that the session stands for."""
    node: str = ""
    server: str = ""
    end: Number = 0
    """The instance whose session is to end."""
    act: Literal["", "drain", "undrain", "leave", "story", "status"] = ""
    """The request of a verb (`requests`), about `node`."""
    session: Number = 0
    """For `story`: the number of the session at the other node."""
    call: Number = 0
    """For `story`: the JSON-RPC id of the call on it."""


_requests = msgspec.json.Decoder(SessionRequest)


class SupervisorConnection:
    """One supervisor. `on_request` gets each request with its three descriptors, or none."""

    def __init__(
        self,
        sock: socket.socket,
        on_request: Callable[["SupervisorConnection", SessionRequest, tuple[int, ...]], None],
        on_closed: Callable[["SupervisorConnection"], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.peer: Final = peer_credentials.peer(sock)
        """Process id and user id of the other end, also after its end; None: not known."""
        self._sock = sock
        self._on_request = on_request
        self._on_closed = on_closed
        self._fds: list[int] = []
        self._inbox = b""
        self._outbox = bytearray()
        self._is_open = True
        self._reserve = DescriptorReserve()
        self._loop.add_reader(sock.fileno(), self._readable)

    def tell(self, answer: dict[str, object]) -> None:
        """Send one line."""
        if self._is_open:
            self._outbox += msgspec.json.encode(answer) + b"\n"
            self._write()

    def _write(self) -> None:
        try:
            sent = self._sock.send(self._outbox)
        except BlockingIOError:
            sent = 0
        except OSError:  # the other end no longer hears: what it still says is read, up to its end of file
            sent = len(self._outbox)
        del self._outbox[:sent]  # moves its start, and copies nothing
        if self._outbox:
            self._loop.add_writer(self._sock.fileno(), self._write)
        else:
            self._loop.remove_writer(self._sock.fileno())

    def _readable(self) -> None:
        try:
            data, extra, *_ = self._sock.recvmsg(_READ_BYTES, socket.CMSG_SPACE(_MAX_FDS * 4))
        except BlockingIOError:
            return
        except OSError:
            data, extra = b"", []
        for level, kind, passed in extra:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._fds += array.array("i", passed[: len(passed) - len(passed) % 4])
        *lines, self._inbox = (self._inbox + data).split(b"\n")
        for line in lines:
            self._line_received(line)
        if not data or len(self._inbox) > MAX_LINE_BYTES or len(self._fds) > _MAX_FDS:
            self.close()
            self._on_closed(self)

    def _line_received(self, line: bytes) -> None:
        try:
            request = _requests.decode(line)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return
        fds: tuple[int, ...] = ()
        if request.open:
            fds, self._fds = tuple(self._fds[:_FDS]), self._fds[_FDS:]
            # This process has no free descriptor, or only those for verbs and for its own links.
            if len(fds) < _FDS or any(self._reserve.holds(fd) for fd in fds):
                _close_all(fds)
                self.tell({"failed": request.open, "text": "the node's process has no free descriptor"})
                return
        self._on_request(self, request, fds)

    def close(self) -> None:
        """Close the connection."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
            self._sock.close()
            _close_all(self._fds)
            self._fds = []


class SupervisorSocket:
    """The listening socket. Arguments as in `SupervisorConnection`."""

    def __init__(
        self,
        path: str,
        on_request: Callable[[SupervisorConnection, SessionRequest, tuple[int, ...]], None],
        on_closed: Callable[[SupervisorConnection], None],
    ) -> None:
        self._path = path
        self._on_request = on_request
        self._on_closed = on_closed
        self._connections: set[SupervisorConnection] = set()
        with contextlib.suppress(OSError):
            os.unlink(path)
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.setblocking(False)
        self._sock.bind(path)
        os.chmod(path, 0o600)
        self._sock.listen(64)
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        """Runs while nothing is accepted, because there is no free descriptor."""
        self._accept_on()

    @property
    def is_paused(self) -> bool:
        """True while nothing is accepted."""
        return self._pause is not None

    def _accept_on(self) -> None:
        self._pause = None
        self._loop.add_reader(self._sock.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            sock, _ = self._sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:
            self._loop.remove_reader(self._sock.fileno())
            self._pause = self._loop.call_later(ACCEPT_PAUSE_S, self._accept_on)
            return
        if not peer_credentials.is_ours(sock):
            sock.close()
            return
        sock.setblocking(False)
        self._connections.add(SupervisorConnection(sock, self._on_request, self._closed))

    def _closed(self, connection: SupervisorConnection) -> None:
        self._connections.discard(connection)
        self._on_closed(connection)

    def close(self) -> None:
        """Close the socket and its connections."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        for each in self._connections:
            each.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)


def _close_all(fds: tuple[int, ...] | list[int]) -> None:
    for fd in fds:
        os.close(fd)
