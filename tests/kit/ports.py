"""Ports for tests that must know theirs before anybody listens, or find it again after a death.

Knows nothing of: who listens there.
"""

import os
import socket
from itertools import count

FIRST, COUNT = 20_000, 10_000
"""Below those that Linux and macOS hand out by themselves (from 32,768 and 49,152 on): whatever else connects
or listens meanwhile takes none of these.
"""
STRIDE = 101
"""Processes that test side by side have neighbouring pids, and begin so far apart."""

_tries = count(os.getpid() * STRIDE)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody uses now, and another one each time."""
    for at in _tries:
        port = FIRST + at % COUNT
        with socket.socket() as free:
            try:
                free.bind(("127.0.0.1", port))
            except OSError:  # somebody's, or was a moment ago
                continue
        return port
    raise AssertionError("count() ends")
