"""The PATH of the user's login shell: what the next terminal has, whatever was activated in this one.

Owns how that shell is asked: as an interactive login shell, in the home directory, with nothing of this
environment but who the user is, with stdin closed, for a few seconds at most. The answer stands between two
marks that are new each time, because files of a shell may print what they like. Its process group is killed
afterwards, also where it has answered.

`-i`, because many installers write to the file that only interactive shells read. stderr is discarded.

Refuses to know: the use of the PATH, the order of its entries among others (`search_path`).
"""

import contextlib
import os
import pwd
import re
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from carpool_protocol.bootstrap.trusted_places import is_own_place

LIMIT_S: Final = 5.0
_MOST_BYTES: Final = 1024 * 1024
_KEPT: Final = ("HOME", "USER", "LOGNAME", "LANG")
_PLAIN: Final = "/usr/local/bin:/usr/bin:/bin"
"""What a login begins with where nothing sets a PATH."""
_SHELLS: Final = frozenset({"sh", "bash", "zsh", "dash", "ash", "ksh", "mksh", "fish"})
"""Shells that take `-i -l -c` and the same words."""


class NoAnswerError(Exception):
    """The login shell has not said its PATH. The text is a clause about the shell."""


class ShellQuery:
    """One login shell that runs to say its PATH. `end` must be called, whatever happens."""

    def __init__(self, shell: str, environ: Mapping[str, str]) -> None:
        """`environ`: the whole environment of the shell (`shell_environment`). Raises `NoAnswerError`."""
        mark = os.urandom(8).hex()
        self._begin, self._end = f"<{mark}>".encode(), f"</{mark}>".encode()
        self._output = b""
        home = environ.get("HOME", "/")
        try:
            self._process = subprocess.Popen(
                [shell, "-i", "-l", "-c", f'printf "%s" "<{mark}>$PATH</{mark}>"'],
                env=environ,
                cwd=home if os.path.isdir(home) else "/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise NoAnswerError(f"cannot be started ({error.strerror})") from None
        assert self._process.stdout is not None  # as it was started
        self._fd = self._process.stdout.fileno()

    @property
    def fd(self) -> int:
        """Wait until this is readable, then `read`."""
        return self._fd

    def read(self) -> str | None:
        """The PATH once it was said in full, else None. Blocks while `fd` is not readable.

        What the shell has left running may keep the pipe open, so the end of the output is not waited for.
        Raises `NoAnswerError` where no answer can come any more.
        """
        piece = os.read(self._fd, 65536)
        self._output += piece
        found = re.search(re.escape(self._begin) + b"([^\n\0]+)" + re.escape(self._end), self._output)
        if found is not None:
            return found[1].decode("utf-8", "surrogateescape")
        if not piece:
            raise NoAnswerError("ended without saying its PATH")
        if len(self._output) > _MOST_BYTES:
            raise NoAnswerError("prints without end")
        return None

    def end(self) -> None:
        """Kill the shell's process group."""
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)  # also what its files have left running
        with self._process:  # closes the pipe and waits for what was just killed
            pass


def shell_of(environ: Mapping[str, str]) -> str:
    """The login shell to ask: `SHELL`, else that of the account. Raises `NoAnswerError`.

    `SHELL` that lies in a project which is not trusted does not count: a file of the project may have set it.
    """
    shell = environ.get("SHELL", "")
    if not shell or (os.path.isabs(shell) and not is_own_place(environ, shell)):
        shell = _account_shell()
    if not os.path.isabs(shell):
        raise NoAnswerError("is not named by an absolute path")
    if os.path.basename(shell) not in _SHELLS:
        raise NoAnswerError("is none that carpool can ask")
    return shell


def shell_environment(shell: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of the shell that is asked."""
    kept = {name: environ[name] for name in _KEPT if name in environ}
    return {"PATH": _PLAIN, "TERM": "dumb", "SHELL": shell, **kept}


def login_path(environ: Mapping[str, str]) -> str | None:
    """The PATH, or None where the shell does not say it. Blocks; asked once in a process."""
    try:
        shell = shell_of(environ)
    except NoAnswerError:
        return None
    return _ask_shell(shell, tuple(sorted(shell_environment(shell, environ).items())))


def _account_shell() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_shell
    except KeyError:
        return ""


@lru_cache(maxsize=4)
def _ask_shell(shell: str, environ: tuple[tuple[str, str], ...]) -> str | None:
    until = time.monotonic() + LIMIT_S
    with contextlib.suppress(NoAnswerError):
        question = ShellQuery(shell, dict(environ))
        try:
            while select.select([question.fd], [], [], max(0.0, until - time.monotonic()))[0]:
                if (said := question.read()) is not None:
                    return said
        finally:
            question.end()
    return None
