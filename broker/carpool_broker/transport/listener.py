"""The agent server's listening socket and its file.

Owns both, and the reaction to failures of the machine. Invariants:

- without free descriptors it does not spin: the socket, which stays readable then, is ignored until the next
  `check`; waiting connections are accepted when descriptors are free;
- a file that has vanished (a cleaner of temporary files, `rm`) is made again at the next `check`, without
  effect on existing connections; a file of another process is left alone, also by `close`;
- processes of other users are refused;
- one process has at most `MAX_PROCESS_SHARE` of the descriptors that the broker may open.

Knows nothing of: the input of connections, sessions.
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
"""Maximum number of connections of one process, as a share of the descriptors that the broker may open."""
TOO_MANY_CONNECTIONS: Final = (
    b'{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"This process has too many connections to '
    b'carpool: close some, or use one for several calls."}}\n'
)


class Listener:
    """Listens at `path` from `open` to `close`. `on_connected` gets each connection, non-blocking."""

    def __init__(self, path: str, ready: ReadySet, on_connected: Callable[[socket.socket], None]) -> None:
        self._path = path
        self._ready = ready
        self._on_connected = on_connected
        self._socket: socket.socket | None = None
        self._file = (0, 0)
        """Device and inode of the socket's file."""
        self._exhausted = False
        """True: the last connection could not be accepted. Logged once."""
        self._has_warned = False
        self._by_process: dict[int, WeakSet[socket.socket]] = {}
        """Accepted connections by process. Closed ones are removed when they are counted."""
        self._most = int(resource.getrlimit(resource.RLIMIT_NOFILE)[0] * MAX_PROCESS_SHARE)

    def open(self) -> None:
        """Listen. An existing file belongs to a dead broker, because the launcher holds its lock."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        self._listen()

    def close(self) -> None:
        """Stop listening."""
        if self._socket is not None:
            self._stop_watching(self._socket)
            self._socket = None
            with contextlib.suppress(OSError):
                if self._check_file() == self._file:
                    os.unlink(self._path)

    def check(self) -> None:
        """Accept waiting connections and put a lost file back. Called about every second."""
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
            pass  # a file that cannot be read cannot be repaired

    def _restore_file(self, lost: socket.socket) -> None:
        try:
            paths.ensure_private(os.path.dirname(self._path))
            self._listen()
        except (OSError, paths.NotPrivateError) as error:
            if not self._has_warned:
                self._has_warned = True
                log.error("%s has vanished and cannot be put back: %s", self._path, _accept_problem(error))  # noqa: TRY400 - see its text
            return
        self._has_warned = False
        self._accept_all(lost)  # connections that were made to the lost file
        self._stop_watching(lost)
        log.warning("%s had vanished and has been made again", self._path)

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
                log.error("no connection can be accepted (%s); agents wait until that is over", problem)
        elif self._exhausted:
            log.info("connections are accepted again")
        self._exhausted = bool(problem)

    def _accept_all(self, listener: socket.socket) -> str:
        """Accept all waiting connections. Returns a reason if one cannot be accepted, else an empty text."""
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
                log.warning("a connection of another user's process is refused")
                sock.close()
                continue
            sock.setblocking(False)
            if not self._has_room(sock):
                with contextlib.suppress(OSError):  # it may be gone, which does not matter
                    sock.send(TOO_MANY_CONNECTIONS)
                sock.close()
                continue
            self._on_connected(sock)
        return ""

    def _has_room(self, sock: socket.socket) -> bool:
        """Count this connection for its process. False if the process has its share already."""
        found = peer_credentials.peer(sock)
        if found is None:
            return True
        pid = found[0]
        held = self._by_process.setdefault(pid, WeakSet())
        if len(held) >= self._most:
            held = self._by_process[pid] = WeakSet(each for each in held if each.fileno() >= 0)
            if len(held) >= self._most:
                log.warning("process %d has %d connections and gets no more", pid, len(held))
                return False
        held.add(sock)
        if len(self._by_process) > BACKLOG:  # forget processes without connections
            self._by_process = {
                each: held for each, held in self._by_process.items() if any(it.fileno() >= 0 for it in held)
            }
        return True


def _accept_problem(error: Exception) -> str:
    return (error.strerror or "no reason given") if isinstance(error, OSError) else str(error)
