"""Passes bytes from one process of carpool to the next over a pipe, not in its environment.

Owns the way of the operator's variables from `carpool up` to the launcher, and from there to each broker. All
programs of a user can read the environment of his processes in /proc; a pipe that was read is empty.

Standard library only: the launcher stays small. Refuses to know the meaning of the bytes.
"""

import os


def pipe_with(data: bytes) -> int:
    """The read end of a pipe that holds `data`, with the write end closed. Raises `OSError` if it does not
    fit.
    """
    hear, tell = os.pipe()
    try:
        os.set_blocking(tell, False)
        if os.write(tell, data) < len(data):
            raise BlockingIOError
    except OSError:
        os.close(hear)
        raise
    finally:
        os.close(tell)
    return hear


def read_pipe(fd: int) -> bytes:
    """All bytes of a pipe made by `pipe_with`. Closes `fd`."""
    with open(fd, "rb") as pipe:
        return pipe.read()
