"""Core dumps of this process, which would write its memory to disk.

Owns the limit that turns them off: of processes that hold arguments, answers, environments or tokens. Servers
of users get back the limit that carpool was started with.

Knows nothing of: who calls it, what is secret.
"""

import contextlib
import resource
from typing import Final

_OFF: Final = 1
"""Bytes. Less than any dump, so no file is written. With 0 Linux still starts a program that collects dumps
(systemd-coredump, apport), with 1 it does not (fs/coredump.c).
"""


def turn_off() -> None:
    """Turn core dumps off, also of children that are started from now on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    if soft != 0 or hard != 0:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CORE, (_OFF, hard))
    _before.append(soft)


def limit_before() -> int:
    """The limit that this process was started with."""
    return _before[0] if _before else resource.getrlimit(resource.RLIMIT_CORE)[0]


_before: Final[list[int]] = []
