"""Turns off core dumps, which would write the memory of this process to disk.

Owns the limit for processes that hold arguments, answers, environments or tokens. The servers of users get
back the limit that carpool was started with.

Knows nothing of: the caller, which data is secret.
"""

import contextlib
import resource
from typing import Final

_OFF: Final = 1
"""A limit in bytes that is smaller than any dump, so no file is written.

With 0 Linux still starts a program that collects dumps (systemd-coredump, apport); with 1 it does not
(fs/coredump.c).
"""


def turn_off() -> None:
    """Turn core dumps off for this process and for children that are started from now on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    if soft != 0 or hard != 0:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CORE, (_OFF, hard))
    _before.append(soft)


def limit_before() -> int:
    """The limit that this process was started with."""
    return _before[0] if _before else resource.getrlimit(resource.RLIMIT_CORE)[0]


_before: Final[list[int]] = []
