"""Whose process is behind a connection on this machine's loopback, as the kernel tells it.

A door without tokens is for its own user: on loopback alone, every user of the machine could come in. Linux
tells the owner of the other end (sock_diag(7): one question about one connection, about 25 µs), for TCP what
SO_PEERCRED is for Unix sockets. It does not tell the process: only `/proc/*/fd` has that, socket by socket.

Owns both questions and the rule. Where the system cannot be asked (not Linux, a sandbox without that netlink
family) nobody is turned away by it. Knows nothing of: HTTP, tokens, when it matters.
"""

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Container
from typing import Final, NamedTuple

_TRY_S: Final = 1.0
_SOCK_DIAG: Final = 4
"""NETLINK_SOCK_DIAG."""
_BY_FAMILY, _ERROR, _REQUEST = 20, 2, 1
"""SOCK_DIAG_BY_FAMILY, NLMSG_ERROR, NLM_F_REQUEST."""
_ENOENT: Final = 2
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


def socket_owner(sock: socket.socket) -> SocketOwner | None:
    """Return the owner of the other end of an accepted connection; None if it cannot be found here."""
    if sys.platform != "linux":
        return None
    try:
        question = _question(sock)
    except OSError:  # it was reset: there is no other end
        return NOBODY
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as kernel:
            kernel.setblocking(False)  # it has answered when `send` returns
            kernel.send(question)
            return _read(kernel.recv(8192))
    except OSError:
        return None


def can_tell_owners() -> bool:
    """Return whether this system tells the owners of connections: it is asked about one of our own."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), _TRY_S),
            server.accept()[0] as accepted,
        ):
            found = socket_owner(accepted)
    except OSError:
        return False
    return found is not None and found.uid == os.getuid()


def holders(inodes: Container[int]) -> dict[int, list[int]]:
    """Return the processes that have each of these sockets open, by one scan of `/proc` as far as this
    process may read it. It takes long where many files are open, so it must not run in the event loop.
    """
    found: dict[int, list[int]] = {}
    with contextlib.suppress(OSError):  # there is no /proc
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                for inode in _sockets(f"/proc/{pid}/fd"):
                    if inode in inodes:
                        found.setdefault(inode, []).append(int(pid))
    return found


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
    """Return the request for the kernel, as seen from the other end: its port and address first."""
    theirs, ours = sock.getpeername(), sock.getsockname()
    ports = struct.pack("!HH", theirs[1], ours[1])
    addresses = b"".join(socket.inet_pton(sock.family, each[0]).ljust(16, b"\0") for each in (theirs, ours))
    body = _ASKED.pack(sock.family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF)
    body += ports + addresses + struct.pack("=I", 0) + b"\xff" * 8  # any interface, any cookie
    return _HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST, 1, 0) + body


def _read(answer: bytes) -> SocketOwner | None:
    kind = _HEADER.unpack_from(answer)[1]
    if kind == _ERROR:
        (error,) = struct.unpack_from("=i", answer, _HEADER.size)
        return NOBODY if error == -_ENOENT else None
    if kind != _BY_FAMILY or len(answer) < _FOUND_AT + 8:
        return None
    return SocketOwner(*struct.unpack_from("=II", answer, _FOUND_AT))
