"""The secret of pool keys, the same for every broker of one state directory.

Catalogs are kept on disk by pool key (`catalog_cache`), so a key must be the same after a restart and must
not reveal the values in it. Owns the file: 64 hex digits, mode 0600, made once. An invalid file is set aside;
a new secret changes all keys, so kept catalogs are not found again.

Knows nothing of: the content of a key.
"""

import contextlib
import os
import re
from typing import Final

from carpool_protocol.files import private_files, state_file

NAME: Final = "pool-keys"
SECRET_BYTES: Final = 32
_FORM: Final = re.compile(rb"[0-9a-f]{64}\n?")
_LOST: Final = "cached lists are read again from their servers"


def load_secret(state: str) -> tuple[bytes, str]:
    """The secret, made if there is none, and a sentence for the log about a problem (else empty).

    The secret is empty if it can be neither read nor made.
    """
    path = os.path.join(state, NAME)
    problem = ""
    for _ in range(2):
        found = _read(path)
        if isinstance(found, bytes):
            return found, problem
        if found:
            problem = state_file.set_aside(path, found, _LOST)
        try:
            _make(path)
        except OSError as error:
            return b"", f"{path} cannot be written ({error.strerror}); lists are not kept for the next start"
    return b"", problem or f"another program changes {path} all the time"


def _read(path: str) -> bytes | str:
    """The secret, or the problem of the file as a clause; empty if there is none."""
    try:
        data = state_file.read_state_file(path, 2 * SECRET_BYTES + 1)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if isinstance(data, str):
        return data
    return bytes.fromhex(data.decode()) if _FORM.fullmatch(data) else "does not hold a secret"


def _make(path: str) -> None:
    """Make a new secret, unless another broker was faster."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    part = f"{path}.new-{os.getpid()}"
    private_files.replace(part, os.urandom(SECRET_BYTES).hex().encode() + b"\n")
    try:
        with contextlib.suppress(FileExistsError):
            os.link(part, path)
    finally:
        os.unlink(part)
