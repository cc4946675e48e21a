"""The files of a process in /proc, read within a bound.

A process says itself where its arguments and its environment are (`PR_SET_MM_MAP` of prctl(2), which needs no
right), so that any program can make `environ` and `cmdline` as long as its address space. Whoever looks
through all processes reads these files of strangers, too.

Owns the bounds. Standard library only, and no `typing`: the spawner imports this. Knows nothing of: whose
process it is, what the files mean.
"""

import os

MOST_BYTES = 512 << 10
"""Of the 2 MiB that Linux usually gives arguments and environment of a program together (execve(2)). carpool
puts its marks first into the environments that it makes.
"""
MOST_VARIABLES = 1 << 14


def read_process_file(pid: int, name: str) -> bytes:
    """Return the first `MOST_BYTES` of this file of a process; empty if it is gone or may not be read."""
    try:
        fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    found = b""
    try:
        # Mostly one read and the end: parts that are put together would cost more than they save.
        while len(found) < MOST_BYTES and (part := os.read(fd, MOST_BYTES - len(found))):
            found = found + part if found else part
    except OSError:  # the process ended while we read
        return b""
    finally:
        os.close(fd)
    return found


def read_environment(pid: int) -> list[bytes]:
    """Return the variables of a process, as `NAME=VALUE`, the first `MOST_VARIABLES` of them; none if it has
    ended or may not be read.
    """
    entries = read_process_file(pid, "environ").split(b"\0", MOST_VARIABLES)
    return [entry for entry in entries[:MOST_VARIABLES] if entry]
