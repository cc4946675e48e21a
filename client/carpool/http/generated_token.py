"""The bearer token that the HTTP door makes where the configuration names none.

Owns the file in the state directory that holds it, mode 0600, and the rule that the file is the truth: where
it is missing, damaged or readable for others, another token is made and the one before is worth nothing. A
shortage of descriptors or memory, or a disk that fails, says nothing of the file: it is not replaced then.

Knows nothing of: when a token is needed, who shows it.
"""

import contextlib
import os
import re
import secrets
import stat
from typing import Final

from carpool_protocol.files import private_files, state_file

_TOKEN_BYTES: Final = 32
_FORM: Final = re.compile(rb"[A-Za-z0-9_-]{43}\n?")
_MAX_BYTES: Final = 64


def read_generated_token(path: str) -> str:
    """Return the token that is kept here; empty if there is none that may be used."""
    with contextlib.suppress(OSError):
        return _read(path)
    return ""


def _read(path: str) -> str:
    """As `read_generated_token`. Raises `OSError` if it cannot be told what the file holds."""
    try:
        if stat.S_IMODE(os.lstat(path).st_mode) & 0o077:
            return ""
        data = state_file.read_state_file(path, _MAX_BYTES)
    except (FileNotFoundError, PermissionError):
        return ""
    return data.decode().strip() if isinstance(data, bytes) and _FORM.fullmatch(data) else ""


def keep_generated_token(path: str) -> str:
    """Return the token that is kept here; make one if there is none. Raises `OSError`."""
    if found := _read(path):
        return found
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    fresh = secrets.token_urlsafe(_TOKEN_BYTES)
    private_files.replace(path, fresh.encode() + b"\n")
    return fresh


def replace_generated_token(path: str) -> bool:
    """Make another token in place of the one that is kept here. False: there is none. Raises `OSError`."""
    if not os.path.lexists(path):
        return False
    os.unlink(path)
    keep_generated_token(path)
    return True
