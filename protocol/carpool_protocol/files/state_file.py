"""A small file in the state directory that is replaced as a whole and never trusted.

Owns how such a file is read (no link, no FIFO, no other user's, not too large), set aside if it is invalid,
and written: mode 0600, in one step, so that no reader sees half of it.

Invariant: every problem is returned as a sentence; nothing here is fatal. Knows nothing of: the content of
the file.
"""

import os
import stat
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from carpool_protocol.files import private_files

Held = TypeVar("Held")

_ASIDE: Final = 9
"""Number of files that are kept aside; the last one is overwritten."""


def read_state_file(path: str, max_bytes: int) -> bytes | str:
    """The bytes of the file, or its problem as a clause. Never blocks (a FIFO) and follows no link.

    Raises OSError if it cannot be read.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if stat.S_ISLNK(os.lstat(path).st_mode):
            return "is a symbolic link"
        raise error from None
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            return "is no regular file"
        if found.st_uid != os.geteuid():
            return "belongs to another user"
        if found.st_size > max_bytes:
            return f"is larger than {max_bytes} bytes"
        with os.fdopen(os.dup(file), "rb") as stream:
            return stream.read(max_bytes)
    finally:
        os.close(file)


def load_state_file(
    path: str, max_bytes: int, decode: Callable[[bytes], Held], empty: Held, *, what: str, lost: str
) -> tuple[Held, str]:
    """The content of the file (`empty` if there is none), and a sentence for the log if there was a problem.

    `what` names the file in the sentence ("a verdicts file"), and `lost` says what is lost. `decode` raises
    what msgspec raises.
    """
    try:
        data = read_state_file(path, max_bytes)
    except FileNotFoundError:
        return empty, ""
    except OSError as error:
        return empty, f"{path} cannot be read ({error.strerror}); {lost}"
    if isinstance(data, str):
        return empty, set_aside(path, data, lost)
    try:
        return decode(data), ""
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return empty, set_aside(path, f"is not {what} of this version", lost)


def set_aside(path: str, why: str, lost: str) -> str:
    """Rename an invalid file. Returns a sentence for the log with `why`, a clause, and what is `lost`."""
    names = [f"{path}.aside-{number}" for number in range(1, _ASIDE + 1)]
    aside = next((name for name in names if not os.path.lexists(name)), names[-1])
    try:
        os.replace(path, aside)
    except OSError as error:
        return (
            f"{path} {why} and cannot be moved away ({error.strerror}); remove it, or nothing is kept there"
        )
    return f"{path} {why}; it is now {aside}, and {lost}"


def write_state_file(path: str, data: bytes) -> str:
    """Replace the file. Returns a clause about the failure (the old file is then unchanged), else an empty
    text.
    """
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        private_files.replace(path, data)
    except OSError as error:
        return f"{path} cannot be written ({error.strerror})"
    return ""
