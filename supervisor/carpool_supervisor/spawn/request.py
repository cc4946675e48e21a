"""A request to start a process: checks it, encodes it, and makes the three pipes for it.

Owns the form of requests to the spawner. Pure except for `make_pipes`. Texts name variables, never their
values, nor argument values. Knows nothing of: the socket, the outcome of the request.
"""

import marshal
import os

from msgspec import Struct


class Pipes(Struct, frozen=True):
    """Our ends of an instance's pipes: non-blocking, close-on-exec. The receiver closes them."""

    stdin_fd: int
    stdout_fd: int
    stderr_fd: int


class SpawnRefusedError(Exception):
    """The request cannot be carried out, so it was not tried. The text says why, for people."""


class AtLimitError(SpawnRefusedError):
    """Carpool has no free descriptor for this request; the request itself is valid."""


def make_pipes() -> tuple[tuple[int, int, int], Pipes]:
    """Make the pipes: the process's ends and ours. Raises `AtLimitError` if no descriptor is free."""
    made: list[int] = []
    try:
        for _ in range(3):
            made += os.pipe()
    except OSError as error:
        close_all(made)
        raise AtLimitError(f"no pipe could be made ({os.strerror(error.errno or 0)})") from None
    stdin_read, stdin_write, stdout_read, stdout_write, stderr_read, stderr_write = made
    for fd in (stdin_write, stdout_read, stderr_read):
        os.set_blocking(fd, False)
    return (stdin_read, stdout_write, stderr_write), Pipes(stdin_write, stdout_read, stderr_read)


def close_all(fds: tuple[int, ...] | list[int]) -> None:
    for fd in fds:
        os.close(fd)


def encode(message: tuple[object, ...]) -> bytes:
    """The wire form of a request: length, then the body. `spawner_process` describes the messages."""
    body = marshal.dumps(message)  # type: ignore[arg-type]  # ints, strings, bytes, lists and dicts of them
    return len(body).to_bytes(4, "little") + body


def checked_argv(argv: list[str]) -> list[bytes]:
    if not argv or not argv[0]:
        raise SpawnRefusedError("the command is empty")
    return [_checked("an argument" if at else "the command", each) for at, each in enumerate(argv)]


def checked_env(env: dict[str, str]) -> dict[bytes, bytes]:
    for name in env:
        if not name or "=" in name:
            raise SpawnRefusedError("an environment variable has an empty name or one with '=' in it")
    return {
        _checked("the name of an environment variable", name): _checked(f"the variable {name}", env[name])
        for name in env
    }


def checked_cwd(cwd: str) -> bytes:
    if not cwd:
        raise SpawnRefusedError("the directory is empty")
    return _checked("the directory", cwd)


def _checked(what: str, text: str) -> bytes:
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError:
        raise SpawnRefusedError(f"{what} holds a character that cannot be passed to a process") from None
    if b"\0" in encoded:
        raise SpawnRefusedError(f"{what} holds a NUL character")
    return encoded
