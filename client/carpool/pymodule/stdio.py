"""The child's stdin and stdout, kept for the protocol alone.

Owns the two descriptors. Invariant: from `claim` on, descriptor 0 is the null device and 1 is stderr, so that
neither the module nor a process that it starts can read a message or write between two of them.

Apart from `server`, because it is done before the SDK is imported. Knows nothing of: messages.
"""

import fcntl
import os
import sys
from io import TextIOWrapper
from typing import TextIO


def claim() -> tuple[TextIO, TextIO]:
    """Take both away from everybody else. What is read from, what is written to."""
    source, sink = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in (0, 1))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    if isinstance(sys.stdout, TextIOWrapper):
        # It goes to a log now: a line in time is worth more than a full buffer.
        sys.stdout.reconfigure(line_buffering=True)
    # As servers on the SDK read and write. The end of the process closes them and nothing earlier, so that a
    # slow end does not look like a closed stdout.
    return (
        open(source, encoding="utf-8", errors="replace", closefd=False),
        open(sink, "w", encoding="utf-8", newline="\n", closefd=False),
    )
