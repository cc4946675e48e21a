"""The agent server's listening socket and its file.

Owns both, and the reaction to failures of the machine. Invariants:

- without free descriptors it does not spin: the socket, which stays readable then, is ignored until the next
  `check`; waiting connections are accepted when descriptors are free;
- a file that has vanished (a cleaner of temporary files, `rm`) is made again at the next `check`, without
  effect on existing connections; a file of another process is left alone, also by `close`;
- processes of other users are refused;
- one process has at most `MAX_PROCESS_SHARE` of the descriptors that the broker may open;
- the last descriptors are kept for operators: a connection that gets one of them is marked as refused, and
  the attach dialogue tells its agent why;
- refused connections are logged with their number, at most one line for a reason in `LOG_EVERY_S`.

Knows nothing of: the input of connections, sessions.
"""

import contextlib
import logging
import os
import socket
from collections.abc import Callable
from typing import Final
from weakref import WeakSet

import trio

from carpool_protocol.bootstrap import paths, peer_credentials
from carpool_protocol.runtime.descriptor_limit import DescriptorReserve
from carpool_protocol.runtime.poller import ReadySet

log = logging.getLogger("carpool.broker")

BACKLOG: Final = 512
MAX_PROCESS_SHARE: Final = 0.75
"""Maximum number of connections of one process, as a share of the descriptors that the broker may open."""
LOG_EVERY_S: Final = 60.0
TOO_MANY_CONNECTIONS: Final = (
    "This process has too many connections to carpool: close some, or use one for several calls."
)
NO_DESCRIPTOR: Final = (
    "Carpool has no descriptor left for another agent: end some of those that are connected "
    "(`carpool status` shows them, `carpool disconnect SESSION` ends one), or raise the limit of open files "
    "(`ulimit -n`) and run `carpool restart --all`."
)


class RefusedConnections:
    """The log of refused connections: the first of a reason at once, then one line with the number."""

    def __init__(self) -> None:
        self.total = 0
        """Refused connections of this user's processes."""
        self._unsaid: dict[str, int] = {}
        """By the text of a reason: how many were refused since it was last logged."""
        self._said_at: dict[str, float] = {}

    def add(self, text: str, now: float) -> None:
        """A connection is refused. `text`: the reason, as a clause."""
        self._unsaid[text] = self._unsaid.get(text, 0) + 1
        if text not in self._said_at:
            self._say(text, now)

    def check(self, now: float) -> None:
        """Log the numbers whose time has come."""
        for text, at in list(self._said_at.items()):
            if now - at >= LOG_EVERY_S:
                if text in self._unsaid:
                    self._say(text, now)
                else:
                    del self._said_at[text]

    def _say(self, text: str, now: float) -> None:
        count = self._unsaid.pop(text)
        self._said_at[text] = now
        log.warning(
            "%s refused: %s", "a connection is" if count == 1 else f"{count} more connections are", text
        )


class Listener:
    """Listens at `path` from `open` to `close`. `on_connected` gets each connection, non-blocking, and the
    reason for which it is refused (`TOO_MANY_CONNECTIONS`, `NO_DESCRIPTOR`) or an empty text.
    """

    def __init__(
        self,
        path: str,
        ready: ReadySet,
        on_connected: Callable[[socket.socket, str], None],
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self.reserve = DescriptorReserve()
        self.refused = RefusedConnections()
        self._clock = clock
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
        self._most = int(self.reserve.limit * MAX_PROCESS_SHARE)

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
        """Accept waiting connections and put a lost file back. Called at the broker's pace."""
        if self._socket is None:
            return
        self.refused.check(self._clock())
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
                self.refused.add("it is one of another user's process", self._clock())
                sock.close()
                continue
            sock.setblocking(False)
            self._on_connected(sock, self._why_refused(sock))
        return ""

    def _why_refused(self, sock: socket.socket) -> str:
        found = peer_credentials.peer(sock)
        if found is not None and not self._has_room(sock, found[0]):
            self.refused.total += 1
            self.refused.add(
                f"process {found[0]} has {self._most} connections and gets no more", self._clock()
            )
            return TOO_MANY_CONNECTIONS
        return NO_DESCRIPTOR if self.reserve.holds(sock.fileno()) else ""

    def agent_refused(self) -> None:
        """An agent was refused because only descriptors of the reserve are left."""
        self.refused.total += 1
        text = (
            f"{self.reserve.limit - self.reserve.kept} descriptors are in use, and the rest is for operators"
        )
        self.refused.add(text, self._clock())

    def _has_room(self, sock: socket.socket, pid: int) -> bool:
        """Count this connection for its process. False if the process has its share already."""
        held = self._by_process.setdefault(pid, WeakSet())
        if len(held) >= self._most:
            held = self._by_process[pid] = WeakSet(each for each in held if each.fileno() >= 0)
            if len(held) >= self._most:
                return False
        held.add(sock)
        if len(self._by_process) > BACKLOG:  # forget processes without connections
            self._by_process = {
                each: held for each, held in self._by_process.items() if any(it.fileno() >= 0 for it in held)
            }
        return True


def _accept_problem(error: Exception) -> str:
    return (error.strerror or "no reason given") if isinstance(error, OSError) else str(error)
