"""Connections of clients that a door leaves to the next one: their descriptors, and bytes without an answer.

Owns the form in which they wait between two doors (docs/decisions/0054): one Unix socket, in which the
descriptors lie as SCM_RIGHTS; the first is a file in memory with the bytes. Whoever keeps that socket keeps
all of them, without a descriptor of its own for each. Invariants: a connection is left between two requests,
so its bytes are whole requests or the beginning of the next one; no more than `MOST` are left, because the
kernel counts descriptors on their way against the limit of each process of the user (unix(7), ETOOMANYREFS).

`python -m carpool.http.left_connections FD LISTENER` ends those in one such socket, and those that wait at a
listening socket (`launcher.http_refusal`); -1 stands for none.

Knows nothing of: HTTP, which connections are left, how the socket gets to the next door (`launcher`).
"""

import contextlib
import errno
import os
import socket
import stat
import sys
import tempfile
from typing import Final, NamedTuple

import msgspec

from carpool.http.log import warn

MOST: Final = 768
"""Under the soft limit of 1,024 descriptors that most systems have."""
_FORM: Final = 2
_BATCH: Final = 128
_TEXT: Final = b"no HTTP door serves this address any more; this request was not delivered"
_NO_LONGER: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nRetry-After: 1\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(_TEXT), _TEXT)
)
_READ_BYTES: Final = 1 << 20
_MOST_WAITING: Final = 4096
"""As many as the backlog of a listening socket holds on most systems."""
_FULL: Final = "this process may have no more descriptors open (`ulimit -n`)"


class LeftConnection(NamedTuple):
    """One connection. Whoever has it owns the descriptor."""

    fd: int
    data: bytes
    """The bytes that came on it and are not answered."""
    owner: str = ""
    """The principal that it has shown a token of; empty if it has shown none."""


class _Contents(msgspec.Struct, array_like=True):
    """The content of the file."""

    form: int
    data: list[bytes]
    """For each descriptor after the file's, in their order."""
    owners: list[str]
    """The same. A name and no token: each request is asked for its own."""


def pack(connections: list[LeftConnection]) -> socket.socket:
    """Return the socket that has all of them; their descriptors here are closed. Raises `OSError`."""
    file = -1
    theirs, ours = socket.socketpair()
    try:
        with theirs:
            theirs.setblocking(False)
            data, owners = [each.data for each in connections], [each.owner for each in connections]
            file = _memory_file(msgspec.msgpack.encode(_Contents(_FORM, data, owners)))
            fds = [file, *(each.fd for each in connections)]
            for at in range(0, len(fds), _BATCH):
                socket.send_fds(theirs, [b"\n"], fds[at : at + _BATCH])
    except OSError:
        ours.close()
        raise
    finally:
        for fd in (file, *(each.fd for each in connections)):
            if fd >= 0:
                os.close(fd)
    return ours


def unpack(sock: socket.socket) -> list[LeftConnection]:
    """Return the connections that an earlier door has left, and close the socket. Those that cannot be read
    end, and so do those for which this process may open no more descriptors.
    """
    fds: list[int] = []
    is_cut = False
    with sock, contextlib.suppress(OSError):
        sock.setblocking(False)
        while not is_cut:  # what came before it is whole
            data, found, flags, _ = socket.recv_fds(sock, 1, _BATCH)
            fds += found
            if not data:
                break
            is_cut = bool(flags & socket.MSG_CTRUNC)
    for fd in fds:
        os.set_inheritable(fd, False)
    if not fds:
        if is_cut:
            warn(f"all connections of the earlier door end: {_FULL}")
        return []
    file, *connections = fds
    try:
        contents = msgspec.msgpack.decode(_read(file), type=_Contents)
    except (OSError, msgspec.MsgspecError):
        contents = _Contents(0, [], [])
    finally:
        os.close(file)
    lost = len(contents.data) - len(connections)
    if contents.form == _FORM and is_cut and lost > 0:
        warn(f"{lost} connections of the earlier door end: {_FULL}")
    elif contents.form != _FORM or lost or len(contents.owners) != len(contents.data):
        warn(f"{len(connections)} connections of the earlier door end: it left them in another form")
        for fd in connections:
            os.close(fd)
        return []
    rows = zip(connections, contents.data, contents.owners, strict=not is_cut)
    return [LeftConnection(*row) for row in rows]


def end_unserved(fd: int) -> None:
    """End the connections in this socket, because no door serves them. -1: there are none."""
    if fd >= 0:
        end_connections(unpack(socket.socket(fileno=fd)))


def end_connections(connections: list[LeftConnection]) -> None:
    """End connections that no door goes on with. Clients that wait for an answer get one."""
    for each in connections:
        with socket.socket(fileno=each.fd) as sock:
            _end(sock, waits=bool(each.data))


def end_backlog(listener: int) -> None:
    """End the connections that wait at this listening socket, and close it. -1: there is none."""
    if listener < 0:
        return
    with socket.socket(fileno=listener) as sock, contextlib.suppress(OSError):  # `BlockingIOError`: no more
        sock.setblocking(False)
        for _ in range(_MOST_WAITING):
            with sock.accept()[0] as waiting:
                _end(waiting)


def _end(sock: socket.socket, *, waits: bool = False) -> None:
    """End one connection; a client that waits for an answer, or has sent anything since, gets one."""
    with contextlib.suppress(OSError):
        sock.setblocking(False)
        waits |= _has_read(sock)
        if waits:
            sock.send(_NO_LONGER)


def _has_read(sock: socket.socket) -> bool:
    """Read what lies there, and return whether there was anything. A socket that is closed with unread bytes
    resets the connection, and its client may never read the answer.
    """
    size = 0
    with contextlib.suppress(BlockingIOError):
        while size < _READ_BYTES and (part := sock.recv(_READ_BYTES)):
            size += len(part)
    return size > 0


def _memory_file(data: bytes) -> int:
    """Return a file without a name that holds the data. Raises `OSError`."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("carpool-left-connections")
    else:  # macOS
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.lseek(fd, 0, os.SEEK_SET)
    except OSError:
        os.close(fd)
        raise
    return fd


def _read(fd: int) -> bytes:
    """Read the whole file. Raises `OSError` if it is none: only a file has an end that is there now."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    parts = []
    while part := os.read(fd, _READ_BYTES):
        parts.append(part)
    return b"".join(parts)


if __name__ == "__main__":
    # A launcher of an earlier version names no listening socket.
    end_backlog(int(sys.argv[2]) if len(sys.argv) > 2 else -1)
    end_unserved(int(sys.argv[1]))
