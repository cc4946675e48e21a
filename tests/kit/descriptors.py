"""A shortage of descriptors in this process, for tests. Knows nothing of carpool."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """This process can open so many descriptors more, and no others."""
    free = (at for at in range(4096) if not _is_open(at))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = next(at for found, at in enumerate(free) if found == count)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
