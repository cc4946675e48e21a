"""Whose process is behind a connection on this machine's loopback, as the kernel tells it.

A door with `"tokens": false` is for its own user: on loopback alone, every user of the machine could come in.
Linux tells the owner of the other end (sock_diag(7): one question about one connection, about 25 µs), for TCP
what SO_PEERCRED is for Unix sockets. It does not tell the process: only `/proc/*/fd` has that, socket by
socket.

Owns both questions and the rule. The first question, asked when the door begins, decides for its whole life
if the system tells owners. Where it does not (not Linux, a sandbox without that netlink family) nobody is
turned away by it. Where it does, each question that fails is a refusal: a shortage of descriptors or memory
lets no other user in. Knows nothing of: HTTP, tokens, when it matters.
"""

import contextlib
import errno
import os
import socket
import struct
import sys
from collections.abc import Container, Iterator
from typing import Final, NamedTuple

_TRY_S: Final = 1.0
_SOCK_DIAG: Final = 4
"""NETLINK_SOCK_DIAG."""
_BY_FAMILY, _ERROR, _REQUEST = 20, 2, 1
"""SOCK_DIAG_BY_FAMILY, NLMSG_ERROR, NLM_F_REQUEST."""
_ENOENT: Final = 2
_SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN})
_HEADER: Final = struct.Struct("=IHHII")
"""struct nlmsghdr: length, type, flags, sequence number, port."""
_ASKED: Final = struct.Struct("=BBBBI")
"""struct inet_diag_req_v2 before its `id`: family, protocol, extensions, padding, states (all)."""
_FOUND_AT: Final = _HEADER.size + 4 + 48 + 12
"""struct inet_diag_msg: 4 bytes, its `id` (48 bytes), three counters, then `uid` and `inode`."""


class SocketOwner(NamedTuple):
    """The owner of a socket."""

    uid: int
    inode: int
    """0 if no process has it any more."""


NOBODY: Final = SocketOwner(-1, 0)


def is_ours(found: SocketOwner | None) -> bool:
    """True if the socket belongs to a process of this user or of root, or if that cannot be found. A socket
    that was closed meanwhile belongs to no one: its request would be obeyed without a known owner, and
    nobody waits for the answer.
    """
    return found is None or (found.uid in (os.getuid(), 0) and found.inode != 0)


class PeerOwners:
    """Asks the kernel, over one socket that stays open as long as the door."""

    def __init__(self) -> None:
        self._kernel: socket.socket | None = None
        self._is_told: bool | None = None
        self._asked = 0

    def open(self) -> bool:
        """Decide if this system tells the owners of connections: it is asked about one of our own. Only its
        refusal to tell proves that it does not, no shortage and no failed connection. Returns the decision.
        """
        if self._is_told is None:
            self._is_told = sys.platform == "linux" and self._find_own()
        return self._is_told

    def _find_own(self) -> bool:
        with contextlib.ExitStack() as ends:
            try:
                server = ends.enter_context(socket.create_server(("127.0.0.1", 0)))
                ends.enter_context(socket.create_connection(server.getsockname(), _TRY_S))
                question = _question(ends.enter_context(server.accept()[0]))
            except OSError:
                return True
            try:
                return self._ask(question).uid == os.getuid()
            except OSError as error:
                return error.errno in _SHORTAGES

    def find(self, sock: socket.socket) -> SocketOwner | None:
        """Return the owner of the other end of an accepted connection; `NOBODY` if it cannot be found, None
        if this system tells no owners.
        """
        if not self.open():
            return None
        try:
            return self._ask(_question(sock))
        except OSError:  # it was reset, so there is no other end; or the system refuses the question now
            return NOBODY

    def _ask(self, question: bytes) -> SocketOwner:
        if self._kernel is None:
            self._kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG)
            self._kernel.setblocking(False)  # it has answered when `send` returns
        self._asked = self._asked % 0xFFFFFFFF + 1
        body = question[_HEADER.size :]
        self._kernel.send(_HEADER.pack(len(question), _BY_FAMILY, _REQUEST, self._asked, 0) + body)
        while True:  # past answers to questions that failed
            answer = self._kernel.recv(8192)
            if _HEADER.unpack_from(answer)[3] == self._asked:
                return _read(answer)

    def close(self) -> None:
        """Close the socket to the kernel."""
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None

    def __del__(self) -> None:
        self.close()


def holders(inodes: Container[int]) -> dict[int, list[int]]:
    """Return the processes that have each of these sockets open, by one scan of `/proc` as far as this
    process may read it. It takes long where many files are open, so it must not run in the event loop.
    Raises `OSError` if a shortage stops the scan.
    """
    found: dict[int, list[int]] = {}
    with _unless_short():  # there is no /proc
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with _unless_short():  # it has ended, or is another user's
                for inode in _sockets(f"/proc/{pid}/fd"):
                    if inode in inodes:
                        found.setdefault(inode, []).append(int(pid))
    return found


@contextlib.contextmanager
def _unless_short() -> Iterator[None]:
    """Suppress every error of the system but those of a shortage."""
    try:
        yield
    except OSError as error:
        if error.errno in _SHORTAGES:
            raise


def _sockets(directory: str) -> set[int]:
    """Return the inodes of the sockets among a process's descriptors, each once."""
    found = set()
    for fd in os.listdir(directory):
        with contextlib.suppress(OSError):  # it has been closed
            target = os.readlink(f"{directory}/{fd}")
            if target.startswith("socket:["):
                found.add(int(target[8:-1]))
    return found


def _question(sock: socket.socket) -> bytes:
    """Return the request for the kernel with room for its header, as seen from the other end: its port and
    address first.
    """
    theirs, ours = sock.getpeername(), sock.getsockname()
    ports = struct.pack("!HH", theirs[1], ours[1])
    addresses = b"".join(socket.inet_pton(sock.family, each[0]).ljust(16, b"\0") for each in (theirs, ours))
    body = _ASKED.pack(sock.family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF)
    body += ports + addresses + struct.pack("=I", 0) + b"\xff" * 8  # any interface, any cookie
    return bytes(_HEADER.size) + body


def _read(answer: bytes) -> SocketOwner:
    kind = _HEADER.unpack_from(answer)[1]
    if kind == _ERROR:
        (error,) = struct.unpack_from("=i", answer, _HEADER.size)
        if error == -_ENOENT:
            return NOBODY
        raise OSError(-error, os.strerror(-error))
    if kind != _BY_FAMILY or len(answer) < _FOUND_AT + 8:
        return NOBODY
    return SocketOwner(*struct.unpack_from("=II", answer, _FOUND_AT))
