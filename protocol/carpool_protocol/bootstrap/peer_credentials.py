"""The user id of the process at the other end of a Unix socket, from the kernel.

Owns one rule: carpool speaks only with processes of its own user and of root, who could do everything anyway.
The rule holds at both ends: the broker accepts no agents of other users, and no carrier sends an agent's
messages and environment to a socket of another user. The mode of the directory (`paths.ensure_private`)
normally keeps others out; this check also covers a directory that was swapped and a socket that was passed
on.

Linux gives the ids (unix(7), SO_PEERCRED: the process that connected, or that called listen). On other
systems only the directory protects.

The shim imports this: nothing but `_socket` and `os`. Refuses to know the messages on the socket.
"""

import _socket
import os
import sys

_SO_PEERCRED: int | None = getattr(_socket, "SO_PEERCRED", None)
"""None on systems other than Linux."""

TYPE_CHECKING = False
if TYPE_CHECKING:  # more than the shim may import
    from typing import Protocol

    class Connected(Protocol):
        """A socket of `socket` or of `_socket`."""

        def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


NOT_OURS = (
    "it belongs to another user, who must not read an agent's messages; "
    "set CARPOOL_RUNTIME_DIR to a directory of yours"
)
"""Clause for a carrier's error about a socket of another user."""


def peer(sock: "Connected") -> tuple[int, int] | None:
    """Process id and user id at the other end. None if the system does not tell."""
    if _SO_PEERCRED is None:
        return None
    try:
        found = sock.getsockopt(_socket.SOL_SOCKET, _SO_PEERCRED, 12)
    except OSError:
        return None
    pid, uid = (int.from_bytes(found[at : at + 4], sys.byteorder) for at in (0, 4))
    return pid, uid


def is_ours(sock: "Connected") -> bool:
    """True if the process at the other end belongs to this user or root, or on systems that tell no owners.

    Where they are told, an owner that cannot be found is not ours.
    """
    found = peer(sock)
    return _SO_PEERCRED is None if found is None else found[1] in (os.getuid(), 0)
