"""The door's listening socket and the file that agents find it by.

Owns both, and what becomes of them when the machine fails them. Invariants:

- out of descriptors we do not spin: the socket, which stays readable then, is left alone until the next
  `look`; whoever waits in its queue is let in when descriptors are free;
- a file that has vanished (a cleaner of temporary files, `rm`) is made again at the next `look`, and nobody
  who is connected notices; one that another process has put there is left alone, also by `close`;
- other users' processes are not let in;
- one process alone has at most `MAX_PROCESS_SHARE` of the descriptors that the broker may open.

Knows nothing of: what connections say, sessions.
"""

import contextlib
import logging
import os
import resource
import socket
from collections.abc import Callable
from typing import Final
from weakref import WeakSet

from carpool_protocol.bootstrap import paths, peer_credentials
from carpool_protocol.runtime.poller import ReadySet

log = logging.getLogger("carpool.broker")

BACKLOG: Final = 512
MAX_PROCESS_SHARE: Final = 0.75
"""Of the descriptors that the broker may open: the most connections of one process."""
TOO_MANY_CONNECTIONS: Final = (
    b'{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"This process has too many connections to '
    b'carpool: close some, or use one for several calls."}}\n'
)


class Listener:
    """Listens at `path` from `open` to `close`; `on_connected` gets each connection, non-blocking."""

    def __init__(self, path: str, ready: ReadySet, on_connected: Callable[[socket.socket], None]) -> None:
        self._path = path
        self._ready = ready
        self._on_connected = on_connected
        self._socket: socket.socket | None = None
        self._file = (0, 0)
        """Device and inode of the socket's file."""
        self._exhausted = False
        """The last connection could not be taken; said once."""
        self._has_warned = False
        self._by_process: dict[int, WeakSet[socket.socket]] = {}
        """Connections that were let in, by process; closed ones are dropped when they are counted."""
        self._most = int(resource.getrlimit(resource.RLIMIT_NOFILE)[0] * MAX_PROCESS_SHARE)

    def open(self) -> None:
        """Listen. A file that is there is a dead broker's: the launcher's lock says so."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        self._listen()

    def close(self) -> None:
        """Listen no more."""
        if self._socket is not None:
            self._stop_watching(self._socket)
            self._socket = None
            with contextlib.suppress(OSError):
                if self._check_file() == self._file:
                    os.unlink(self._path)

    def check(self) -> None:
        """Once a second or so: take in who had to wait, put a lost file back."""
        if self._socket is None:
            return
        if self._exhausted:
            self._ready.resume_read(self._socket.fileno())
            self._accept()
        try:
            self._check_file()
        except (FileNotFoundError, NotADirectoryError):
            self._restore_file(self._socket)
        except OSError:
            pass  # what cannot be looked at cannot be mended

    def _restore_file(self, lost: socket.socket) -> None:
        try:
            paths.ensure_private(os.path.dirname(self._path))
            self._listen()
        except (OSError, paths.NotPrivateError) as error:
            if not self._has_warned:
                self._has_warned = True
                log.error("%s has vanished and cannot be put back: %s", self._path, _accept_problem(error))  # noqa: TRY400 - the reason says all
            return
        self._has_warned = False
        self._accept_all(lost)  # who knocked while the file was there
        self._stop_watching(lost)
        log.warning("%s had vanished and is there again", self._path)

    def _listen(self) -> None:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.setblocking(False)
            old = os.umask(0o177)
            try:
                made.bind(self._path)
            finally:
                os.umask(old)
            made.listen(BACKLOG)
            self._file = self._check_file()
            self._ready.add(made.fileno(), self._accept)
        except BaseException:
            made.close()
            raise
        self._socket = made
        self._exhausted = False

    def _stop_watching(self, listener: socket.socket) -> None:
        self._ready.remove(listener.fileno())
        listener.close()

    def _check_file(self) -> tuple[int, int]:
        found = os.lstat(self._path)
        return found.st_dev, found.st_ino

    def _accept(self) -> None:
        assert self._socket is not None
        problem = self._accept_all(self._socket)
        if problem:
            self._ready.pause_read(self._socket.fileno())
            if not self._exhausted:
                log.error("no agent can be let in (%s); who waits is let in when that is over", problem)
        elif self._exhausted:
            log.info("agents are let in again")
        self._exhausted = bool(problem)

    def _accept_all(self, listener: socket.socket) -> str:
        """Whoever waits; a reason where one of them cannot be taken."""
        for _ in range(BACKLOG):
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                return ""
            except ConnectionAbortedError:
                continue  # it has gone again
            except OSError as error:
                return error.strerror or "no reason given"
            if not peer_credentials.is_ours(sock):
                log.warning("a process of another user is not let in")
                sock.close()
                continue
            sock.setblocking(False)
            if not self._has_room(sock):
                with contextlib.suppress(OSError):  # it may be gone, and is not owed more
                    sock.send(TOO_MANY_CONNECTIONS)
                sock.close()
                continue
            self._on_connected(sock)
        return ""

    def _has_room(self, sock: socket.socket) -> bool:
        """Count this connection for its process; False where that one has its share already."""
        found = peer_credentials.peer(sock)
        if found is None:
            return True
        pid = found[0]
        held = self._by_process.setdefault(pid, WeakSet())
        if len(held) >= self._most:
            held = self._by_process[pid] = WeakSet(each for each in held if each.fileno() >= 0)
            if len(held) >= self._most:
                log.warning("process %d has %d connections, and gets no more", pid, len(held))
                return False
        held.add(sock)
        if len(self._by_process) > BACKLOG:  # of processes that have all left, nothing is kept
            self._by_process = {
                each: held for each, held in self._by_process.items() if any(it.fileno() >= 0 for it in held)
            }
        return True


def _accept_problem(error: Exception) -> str:
    return (error.strerror or "no reason given") if isinstance(error, OSError) else str(error)
