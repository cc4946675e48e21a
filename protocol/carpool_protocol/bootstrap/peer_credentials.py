"""Whose process is at the other end of a Unix socket, as the kernel tells it.

Owns one rule: we speak with processes of our own user, and with root, who could do everything anyway. It
holds at both ends: the broker takes nobody else's agents, and no carrier tells an agent's words and
environment to somebody else's socket. The directory (`paths.ensure_private`) keeps strangers away; this holds
where it cannot: a directory that was swapped between two looks, a socket that was handed on.

Linux tells (unix(7), SO_PEERCRED: who connected, or who called listen). Where the system does not, the
directory alone protects.

The shim imports this: nothing but `_socket` and `os`. Refuses to know what is said on the socket.
"""

import _socket
import os
import sys

_SO_PEERCRED: int | None = getattr(_socket, "SO_PEERCRED", None)
"""None: not Linux."""

TYPE_CHECKING = False
if TYPE_CHECKING:  # more than the shim may import
    from typing import Protocol

    class Connected(Protocol):
        """A socket, of `socket` or of `_socket`."""

        def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


NOT_OURS = (
    "it belongs to another user, and an agent's words are not for him; "
    "set CARPOOL_RUNTIME_DIR to a directory of yours"
)
"""What a carrier says of a socket that is not ours to speak to, a clause."""


def peer(sock: "Connected") -> tuple[int, int] | None:
    """Process id and user id at the other end; None where the system does not tell."""
    if _SO_PEERCRED is None:
        return None
    try:
        found = sock.getsockopt(_socket.SOL_SOCKET, _SO_PEERCRED, 12)
    except OSError:
        return None
    pid, uid = (int.from_bytes(found[at : at + 4], sys.byteorder) for at in (0, 4))
    return pid, uid


def is_ours(sock: "Connected") -> bool:
    """Whether we may speak with whoever is there."""
    found = peer(sock)
    return found is None or found[1] in (os.getuid(), 0)
