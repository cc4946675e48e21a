"""The limit of open descriptors of this process.

Owns how far it is raised, and how many descriptors below it are kept for operators and for the process
itself. The customary soft limit, 1024, is for programs that use `select`; up to the hard limit a process may
raise its own.

Knows nothing of: what descriptors are for.
"""

import contextlib
import os
import resource
from typing import Final

MAX_KEPT: Final = 64
KEPT_PART: Final = 8
"""One descriptor in this many is kept, at most `MAX_KEPT`."""


def raise_descriptor_limit(wished: int) -> int:
    """Raise this process's limit of open descriptors as far as allowed. Returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wished:
        wished = wished if hard == resource.RLIM_INFINITY else min(wished, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wished), hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class DescriptorReserve:
    """The last descriptors below the limit. Agents get none of them.

    A new descriptor has the lowest free number. So a connection whose number is in the reserve shows that all
    others are used up, and nothing must be counted.
    """

    @property
    def limit(self) -> int:
        """The number of descriptors that this process may have."""
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    @property
    def kept(self) -> int:
        """The number of descriptors in the reserve."""
        return _kept_of(self.limit)

    def holds(self, fd: int) -> bool:
        """True if this descriptor is one of the reserve."""
        limit = self.limit
        return fd >= limit - _kept_of(limit)

    def is_needed(self) -> bool:
        """True if a new descriptor would be one of the reserve."""
        try:
            fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return True
        os.close(fd)
        return self.holds(fd)


def _kept_of(limit: int) -> int:
    return max(1, min(MAX_KEPT, limit // KEPT_PART))
