"""The logins of OAuth on disk: one file for each server and client, for this user alone.

Owns the file of a login, and the lock under which one of several bridges renews it. Written whole or not at
all, mode 0600, in a directory of mode 0700. Files are named by a hash, since a URL may hold a secret.

Knows nothing of: HTTP, how a login comes about (`oauth_login`) or is renewed (`oauth_token`).
"""

import contextlib
import fcntl
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import trio
from msgspec import Struct

from carpool_protocol.bootstrap import paths
from carpool_protocol.carrier.remote import Remote
from carpool_protocol.files import private_files

_POLL_S = 0.05
EARLY_S = 30.0
"""Seconds before its end at which a token is renewed; a short one when a quarter of its life is left."""
LOCK_S = 40.0
"""Seconds that a bridge waits while another one renews; longer than a renewal may take."""


class OAuthLogin(Struct, frozen=True, kw_only=True):
    """An OAuth login: the tokens that the server granted, and the data to renew them."""

    access_token: str
    refresh_token: str = ""
    renew_at: float = 0.0
    """When it is to be renewed: seconds since 1970. 0: the server has not said when it ends."""
    scope: str = ""
    token_endpoint: str
    resource: str = ""
    """The resource of RFC 8707; empty: it is not sent."""
    client: dict[str, object]
    """The registration of the client (RFC 7591)."""

    def __repr__(self) -> str:
        """No field is shown: they are secret."""
        return "Login(…)"


def renew_at(lasts_s: float | None, now: float) -> float:
    """Time of the next renewal, in seconds since 1970; 0 if `lasts_s`, which the server states, is None."""
    return now + lasts_s - min(EARLY_S, lasts_s / 4) if lasts_s is not None else 0.0


class LoginStore:
    """The login of one server."""

    def __init__(self, directory: str, remote: Remote) -> None:
        """`directory`: where all logins lie."""
        named = f"{remote.url.partition('#')[0]}\0{remote.client_id}"
        # The private carpool of a probe has a link there, to the logins of the user's own.
        self._directory = os.path.realpath(directory)
        self._path = f"{self._directory}/{hashlib.blake2b(named.encode(), digest_size=16).hexdigest()}.json"

    def read(self) -> OAuthLogin | None:
        """The login; None where there is none that can be read."""
        try:
            with open(os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
                return msgspec.json.decode(file.read(), type=OAuthLogin)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def write(self, login: OAuthLogin) -> None:
        """Keep it. Raises `OSError`, `paths.NotPrivateError`."""
        paths.ensure_private(self._directory, paths.STATE_VARIABLE)
        private_files.replace(self._path, msgspec.json.encode(login))

    def delete(self) -> bool:
        """Delete the login; True if there was one. Raises `OSError`."""
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            return False
        return True

    @asynccontextmanager
    async def renewal_lock(self) -> AsyncIterator[None]:
        """Hold the lock under which one process renews this login. After `LOCK_S` go on without it."""
        descriptor = os.open(
            self._path + ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        try:
            with trio.move_on_after(LOCK_S):
                while not _locked(descriptor):  # noqa: ASYNC110 - a lock of another process sets no event
                    await trio.sleep(_POLL_S)
            yield
        finally:
            os.close(descriptor)


def _locked(descriptor: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
