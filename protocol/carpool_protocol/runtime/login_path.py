"""The PATH of the user's login shell: the PATH of the next terminal, without what is activated in this one.

Owns the query: an interactive login shell in the home directory, with only the user's identity in its
environment and with stdin closed, for a few seconds at most. The answer stands between two marks that are new
each time, because start-up files of a shell may print anything. The shell's process group is killed
afterwards, also if it has answered.

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
"""The PATH at the beginning of a login if nothing sets one."""
_SHELLS: Final = frozenset({"sh", "bash", "zsh", "dash", "ash", "ksh", "mksh", "fish"})
"""Shells that take `-i -l -c` and the same `printf`."""


class NoAnswerError(Exception):
    """The login shell did not give its PATH. The text is a clause about the shell."""


class ShellQuery:
    """One login shell that is asked for its PATH. `end` must always be called."""

    def __init__(self, shell: str, environ: Mapping[str, str]) -> None:
        """Start the shell. `environ`: its whole environment (`shell_environment`). Raises `NoAnswerError`."""
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
        """The descriptor of the shell's output. Wait until it is readable, then call `read`."""
        return self._fd

    def read(self) -> str | None:
        """The PATH once it is complete, else None. Blocks while `fd` is not readable.

        It does not wait for the end of the output: a program that the shell left running may keep the pipe
        open. Raises `NoAnswerError` if no answer can come any more.
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
            # also programs that its start-up files have left running
            os.killpg(self._process.pid, signal.SIGKILL)
        with self._process:  # closes the pipe and reaps the killed process
            pass


def shell_of(environ: Mapping[str, str]) -> str:
    """The login shell to ask: `SHELL`, else the one of the account. Raises `NoAnswerError`.

    A `SHELL` inside an untrusted project is ignored, because a file of the project may have set it.
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
    """The whole environment for the shell that is asked."""
    kept = {name: environ[name] for name in _KEPT if name in environ}
    return {"PATH": _PLAIN, "TERM": "dumb", "SHELL": shell, **kept}


def login_path(environ: Mapping[str, str]) -> str | None:
    """The PATH of the login shell, or None if it gives none. Blocks; each process asks once."""
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
                if (path := question.read()) is not None:
                    return path
        finally:
            question.end()
    return None
