"""Sends messages with descriptors over a Unix socket, in order, and never waits.

Owns what the socket has not taken, and the descriptors of messages until they are sent: then, or when nothing
can be sent any more, it closes them.

Knows nothing of: what a message says, what is read from the socket.
"""

import array
import socket
from collections import deque

from carpool_protocol.runtime.poller import ReadySet
from carpool_supervisor.spawn.request import close_all


class DescriptorSender:
    """The sending end of one socket, which is in the `ReadySet`."""

    def __init__(self, ready: ReadySet, sock: socket.socket) -> None:
        self._ready = ready
        self._sock = sock
        self._unsent: deque[tuple[memoryview, tuple[int, ...]]] = deque()

    def send(self, body: bytes, fds: tuple[int, ...] = ()) -> None:
        """Send a message, now or when the socket has room."""
        self._unsent.append((memoryview(body), fds))
        if len(self._unsent) == 1:
            self._flush()

    def discard(self) -> None:
        """Send nothing any more."""
        for _, fds in self._unsent:
            close_all(fds)
        self._unsent.clear()

    def _flush(self) -> None:
        while self._unsent:
            data, fds = self._unsent[0]
            passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
            try:
                sent = self._sock.sendmsg([data], passed)
            except BlockingIOError:
                self._ready.want_write(self._sock.fileno(), self._flush)
                return
            except OSError:  # the other end is gone: the end of file that is read next shows it
                self.discard()
                break
            close_all(fds)
            if sent < len(data):
                self._unsent[0] = (data[sent:], ())
            else:
                self._unsent.popleft()
        self._ready.want_write(self._sock.fileno(), None)
