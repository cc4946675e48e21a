"""The handover of the HTTP door: its listening socket and its connections, from one door to the next one.

Owns both descriptors while no door has them, and their way from a launcher that ends to the one that follows:
a Unix socket in the runtime directory, where only processes of this user get them. Invariants: `HttpHandover`
closes what it does not give away; an offer ends when a process says that it has taken everything, or after
`OFFER_S`.
Standard library only: the launcher owns it.

Also owns the lines that the launcher and the door exchange about it.

Refuses to know: HTTP, what the connections carry (`carpool.http.left_connections`), when a door is wanted.
Decision: docs/decisions/0054.
"""

import contextlib
import os
import select
import socket
import time
from collections.abc import Iterable
from typing import Final

from carpool_protocol.bootstrap import paths, peer_credentials

HOLD: Final = "hold"
"""Line of the launcher to the door: carpool is started again soon, so new requests are for the next door."""
HELD: Final = "held"
"""Its answer: all requests that it has sent to the broker have reached it."""
LISTENS: Final = "listens"
"""Line of the door with a descriptor: it listens on this socket, which is new, or which it has chosen."""
LISTENS_NOT: Final = "listens not"
"""Line of the door: it uses no socket that it was given, because its address is another one."""
LEFT: Final = "left"
"""Line of the door with a descriptor: it ends, and these are its connections."""
OFFER_S: Final = 20.0
"""A launcher that has ended waits this long for the next one."""
_TAKE_S: Final = 5.0
"""The next launcher waits this long for the descriptors, which are sent as soon as it connects."""
_MOST: Final = 3
_MOST_TAKERS: Final = 64
"""The most processes that may have connected and say nothing; the oldest gives way."""
_PAUSE_S: Final = 0.01
"""Between two tries to connect while too many others do."""


class HttpHandover:
    """The descriptors that the next HTTP door gets; -1 stands for none."""

    def __init__(self, descriptors: Iterable[int] = ()) -> None:
        """`descriptors` come from an earlier launcher or from a service manager, in any order. Those that are
        neither of the two sockets are closed. Of two listening sockets (one of a service manager's `.socket`
        unit, one that it keeps) the next door chooses one by its address.
        """
        self.listener = -1
        """The listening socket."""
        self.other_listener = -1
        """Another one, until a door has chosen."""
        self.connections = -1
        """The Unix socket in which the last door has left its connections."""
        for fd in descriptors:
            match _kind(fd):
                case "listener" if self.listener < 0:
                    self.listener = fd
                case "listener" if self.other_listener < 0:
                    self.other_listener = fd
                case "connections" if self.connections < 0:
                    self.connections = fd
                case _:
                    os.close(fd)

    @property
    def descriptors(self) -> list[int]:
        """Return the descriptors that are there."""
        return [fd for fd in (self.listener, self.other_listener, self.connections) if fd >= 0]

    @property
    def arguments(self) -> dict[str, int]:
        """Return the options of the door's process that take them."""
        named = {
            "--listener": self.listener,
            "--other-listener": self.other_listener,
            "--connections": self.connections,
        }
        return {name: fd for name, fd in named.items() if fd >= 0}

    def set_listener(self, fd: int) -> None:
        """Keep this listening socket in place of those before. -1: no door listens any more."""
        _close(self.listener)
        _close(self.other_listener)
        self.listener, self.other_listener = fd, -1

    def set_connections(self, fd: int) -> None:
        """Keep what a door has left. -1: the next door has it."""
        _close(self.connections)
        self.connections = fd

    def close(self) -> None:
        """Close everything: nothing listens any more."""
        self.set_listener(-1)
        self.set_connections(-1)


class HandoverOffer:
    """An offer of a handover to the next launcher of `directory`. The socket is there from the beginning, so
    a launcher that gets the lock afterwards finds it. Raises `OSError`.
    """

    def __init__(self, directory: str, handover: HttpHandover) -> None:
        self._path = paths.handover_socket(directory)
        self._handover = handover
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            self._sock.bind(self._path)
            os.chmod(self._path, 0o600)
            self._sock.listen(8)
            self._sock.setblocking(False)
            self._file = os.stat(self._path)
        except OSError:
            self._sock.close()
            raise

    def serve(self, wait_s: float = OFFER_S) -> bool:
        """Give everything to each process of this user that connects, until one says that it has it. Then the
        handover is closed. Returns False if none has in this time; the handover stays open then, with the
        requests that wait in it.
        """
        deadline = time.monotonic() + wait_s
        takers: list[socket.socket] = []
        try:
            while (left_s := deadline - time.monotonic()) > 0:
                ready, _, _ = select.select([self._sock, *takers], [], [], left_s)
                for taker in [each for each in takers if each in ready]:
                    if _has_taken(taker):
                        # Its own offer, at its end, stands under the same name.
                        with contextlib.suppress(OSError):
                            os.unlink(self._path)
                        self._handover.close()
                        return True
                    takers.remove(taker)
                    taker.close()
                if self._sock in ready and (new := self._give()) is not None:
                    takers.append(new)
                    if len(takers) > _MOST_TAKERS:
                        takers.pop(0).close()
        finally:
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(self._path), self._file):
                    os.unlink(self._path)
            for each in (self._sock, *takers):
                each.close()
        return False

    def _give(self) -> socket.socket | None:
        """Send everything to the next process that has connected. None: that one gets nothing."""
        try:
            taker, _ = self._sock.accept()
        except OSError:  # it has gone
            return None
        try:
            if peer_credentials.is_ours(taker):
                self._send(taker)
                return taker
        except OSError:  # it has gone
            pass
        taker.close()
        return None

    def _send(self, taker: socket.socket) -> None:
        try:
            socket.send_fds(taker, [b"\n"], self._handover.descriptors)
        except ConnectionError:
            raise
        except OSError:  # more descriptors are on their way than this process may have open
            self._handover.set_connections(-1)
            socket.send_fds(taker, [b"\n"], self._handover.descriptors)


def _has_taken(taker: socket.socket) -> bool:
    """True if this process says that it has the descriptors; False if it has gone."""
    try:
        return bool(taker.recv(1))
    except OSError:
        return False


def take_offer(directory: str) -> list[int]:
    """Return the descriptors that an ended launcher offers here; empty if none does."""
    deadline = time.monotonic() + _TAKE_S
    while time.monotonic() < deadline:
        try:
            return _take(paths.handover_socket(directory))
        except BlockingIOError:  # more connect than it accepts
            time.sleep(_PAUSE_S)
    return []


def _take(path: str) -> list[int]:
    """Take the descriptors. Raises `BlockingIOError` if that is possible a little later."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(_TAKE_S)
        try:
            sock.connect(path)
            if not peer_credentials.is_ours(sock):
                return []
            _, found, _, _ = socket.recv_fds(sock, 1, _MOST)
            if found:
                with contextlib.suppress(OSError):  # earlier launchers do not wait for it
                    sock.sendall(b"\n")
        except BlockingIOError:
            raise
        except ConnectionRefusedError:  # of a launcher that was killed
            with contextlib.suppress(OSError):
                os.unlink(path)
            return []
        except OSError:
            return []
    for fd in found:
        os.set_inheritable(fd, False)
    return list(found)


def _kind(fd: int) -> str:
    """Return which of the two sockets this is; empty if it is none of them."""
    try:
        sock = socket.socket(fileno=fd)
    except OSError:
        return ""
    try:
        if sock.family == socket.AF_UNIX:
            return "connections"
        if sock.type != socket.SOCK_STREAM:
            return ""
        return "listener" if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) else ""
    finally:
        sock.detach()


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)
