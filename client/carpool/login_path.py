"""The PATH of the user's login shell: what the next terminal has, whatever was activated in this one.

Owns how that shell is asked: in the home directory, with nothing of this environment but who the user is,
with stdin closed, for a few seconds at most. All that it has started is ended then. Its files may print what
they like.

Knows nothing of: what the PATH is used for.
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

LIMIT_S: Final = 5.0
_MOST_BYTES: Final = 1024 * 1024
_MARK: Final = "carpool-login-path"
_KEPT: Final = ("HOME", "USER", "LOGNAME", "LANG", "TMPDIR", "XDG_RUNTIME_DIR")
_PLAIN: Final = "/usr/local/bin:/usr/bin:/bin"
"""What a login begins with where nothing sets a PATH."""
_SHELLS: Final = frozenset({"sh", "bash", "zsh", "dash", "ash", "ksh", "mksh", "fish"})
"""Shells that take `-l -c` and the same words."""


def login_path(environ: Mapping[str, str]) -> str | None:
    """It, or None where it cannot be asked for. It is asked for once in a process."""
    shell = environ.get("SHELL") or _of_account()
    if os.path.basename(shell) not in _SHELLS or not os.path.isabs(shell):
        return None
    kept = tuple((name, environ[name]) for name in _KEPT if name in environ)
    return _asked(shell, kept)


def _of_account() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_shell
    except KeyError:
        return ""


@lru_cache(maxsize=4)
def _asked(shell: str, kept: tuple[tuple[str, str], ...]) -> str | None:
    environ = {"PATH": _PLAIN, "TERM": "dumb", "SHELL": shell, **dict(kept)}
    home = environ.get("HOME", "/")
    try:
        process = subprocess.Popen(
            [shell, "-l", "-c", f'printf "%s" "<{_MARK}>$PATH</{_MARK}>"'],
            env=environ,
            cwd=home if os.path.isdir(home) else "/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return None
    with process:
        try:
            said = _read(process)
        finally:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)  # also what its files have left running
    found = re.search(f"<{_MARK}>(.+)</{_MARK}>", said.decode("utf-8", "replace"))
    return found[1] if found is not None else None


def _read(process: subprocess.Popen[bytes]) -> bytes:
    """Its output up to the answer. What its files have left running may keep the pipe open."""
    assert process.stdout is not None  # as it was started
    descriptor, said = process.stdout.fileno(), b""
    until = time.monotonic() + LIMIT_S
    while f"</{_MARK}>".encode() not in said and len(said) < _MOST_BYTES:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, until - time.monotonic()))
        piece = os.read(descriptor, _MOST_BYTES) if ready else b""
        if not piece:
            break
        said += piece
    return said
