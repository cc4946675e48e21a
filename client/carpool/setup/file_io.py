"""Reads and writes the files of `carpool setup`.

Owns the decision which file is touched at all: a regular file of this user that is neither read-only nor
huge. A link of the user's own is followed, because people keep such files elsewhere. A link in a project is
not followed: the author of the project could have any file of the user rewritten. A file is written whole or
not at all, and keeps its mode. Knows nothing of: what is in them.
"""

import contextlib
import glob
import os
import stat
from collections.abc import Iterable, Iterator

from carpool.setup.client_files import ClientFilePath
from carpool.setup.model import ClientFile, KeptInPlace
from carpool_protocol.files import private_files

MAX_BYTES = 8 * 1024 * 1024


def read_client_files(
    candidates: Iterable[ClientFilePath], named: Iterable[str] = ()
) -> tuple[list[ClientFile], list[KeptInPlace]]:
    """Return the files that exist, read, and the reasons why others are left alone.

    A program in `named` always has a file: if none exists, its first place counts as an empty one.
    """
    sources: list[ClientFile] = []
    left: list[KeptInPlace] = []
    seen: set[str] = set()
    first: dict[str, ClientFilePath] = {}
    for candidate in candidates:
        if candidate.is_main and "*" not in candidate.path:
            first.setdefault(candidate.client.id, candidate)
        for path in sorted(glob.glob(candidate.path)) if "*" in candidate.path else [candidate.path]:
            if not os.path.lexists(path):
                continue
            real = os.path.realpath(path)
            if real in seen:
                continue
            seen.add(real)
            text = readable(path, real, follow=candidate.scope == "user")
            if isinstance(text, KeptInPlace):
                left.append(text)
            else:
                sources.append(ClientFile(candidate, real, text))
    there = {each.candidate.client.id for each in sources if each.candidate.is_main}
    for client in named:
        if client not in there and client in first and not os.path.lexists(first[client].path):
            text = "" if first[client].client.form == "codex" else "{}\n"
            sources.append(ClientFile(first[client], first[client].path, text, existed=False))
    return sources, left


def readable(path: str, real: str, *, follow: bool) -> str | KeptInPlace:
    """Return the content of a file that may be rewritten, or the reason why it is not touched."""
    if real != path and not follow:  # a directory above it may be the link
        return KeptInPlace(path, "is a link in a project; it is left as it is")
    try:
        data = _read(real)
    except OSError as error:
        return KeptInPlace(path, f"cannot be read ({error.strerror}); it is left as it is")
    if isinstance(data, str):
        return KeptInPlace(path, f"{data}; it is left as it is")
    try:
        return data.decode()
    except UnicodeDecodeError:
        return KeptInPlace(path, "is not UTF-8; it is left as it is")


def _read(path: str) -> bytes | str:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, descriptor)
        held = os.fstat(descriptor)
        if not stat.S_ISREG(held.st_mode):
            return "is no regular file"
        if held.st_uid != os.geteuid():
            return "belongs to another user"
        if not held.st_mode & 0o200 or not os.access(os.path.dirname(path), os.W_OK):
            return "is read-only"
        if held.st_size > MAX_BYTES:
            return f"is larger than {MAX_BYTES} bytes"
        with os.fdopen(os.dup(descriptor), "rb") as file:
            return file.read(MAX_BYTES + 1)


def texts_of(pattern: str) -> Iterator[tuple[str, str]]:
    """Yield the paths and texts of files that are only looked into.

    The pattern may hold `*`. A file that cannot be read is skipped.
    """
    for path in sorted(glob.glob(pattern)) if "*" in pattern else [pattern]:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                held = os.fstat(descriptor)
                if stat.S_ISREG(held.st_mode) and held.st_size <= MAX_BYTES:
                    yield path, file.read(MAX_BYTES).decode("utf-8", "replace")


def bytes_of(path: str) -> bytes | None:
    """Return the content of one of carpool's files, or of a file that setup has rewritten; None if there is
    none.

    Raises `OSError`.
    """
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def mode_of(path: str) -> int | None:
    """Return the permission bits of a file; None if there is no such file."""
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        return None


def missing_directories(path: str) -> list[str]:
    """Return the missing directories above a file, the outermost first."""
    missing: list[str] = []
    at = os.path.dirname(path)
    while at and not os.path.isdir(at):
        missing.insert(0, at)
        at = os.path.dirname(at)
    return missing


def write(path: str, data: bytes, mode: int) -> None:
    """Write a file; missing directories are made for this user alone. Raises `OSError`."""
    for directory in missing_directories(path):
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o700)
    private_files.replace(path, data, mode)


def remove(path: str, made: Iterable[str]) -> None:
    """Remove a file, and the directories made for it if they are empty. Raises `OSError`."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    for directory in sorted(made, key=len, reverse=True):
        with contextlib.suppress(OSError):
            os.rmdir(directory)


def sweep_parts(path: str) -> None:
    """Remove the partial files that a killed writer has left beside a file."""
    for part in _parts(path):
        with contextlib.suppress(OSError):
            os.unlink(part)


def _parts(path: str) -> Iterator[str]:
    for each in glob.glob(f"{glob.escape(path)}.part-*"):
        if each.rpartition("-")[2].isdecimal():
            yield each
