"""Secrets shared by successive brokers, and the check that a returning session belonged to one of them.

The launcher gives every broker that it starts the same secret, the broker's number (its *life*, from 0) and
the first life whose sessions may still resume (docs/decisions/0019). Owns the keys derived from that, one per
purpose, and which sessions have resumed already.

Invariants: a session of an earlier life resumes once, with exactly the secret that this life gave it; nothing
that leaves this process reveals the launcher's secret.

Not a part of `resume`: keys for other purposes (pools, audit log, overrides) are derived here as well.

Knows nothing of: sessions themselves, the end of the time to resume.
"""

import hmac
import os
from base64 import urlsafe_b64encode
from hashlib import blake2b
from typing import Final

from carpool_protocol.ids import SessionId

SECRET_BYTES: Final = 32
_MAC_BYTES: Final = 16


class Incarnation:
    """The secret and number that this broker has inherited."""

    def __init__(self, secret: bytes = b"", life: int = 0, since: int = 0) -> None:
        """`secret`: empty: nothing is inherited and nothing is passed on."""
        self._secret = secret or os.urandom(SECRET_BYTES)
        self.epoch = life
        self._since = since
        self._claimed: set[SessionId] = set()

    def derive_key(self, purpose: str) -> bytes:
        """A key for one purpose, the same in every life."""
        return blake2b(purpose.encode(), key=self._secret, digest_size=32).digest()

    def resume_secret(self, session: SessionId) -> str:
        """The secret with which this session can resume at a later broker."""
        return self._sealed(session, self.epoch)

    def public_id(self, session: SessionId) -> str:
        """The id with which an agent shows its session to a new door, the same in every life."""
        mac = blake2b(session.encode(), key=self.derive_key("public"), digest_size=_MAC_BYTES)
        return urlsafe_b64encode(mac.digest()).rstrip(b"=").decode()

    def claim_session(self, session: SessionId, secret: str) -> bool:
        """True if this session may resume with this secret. Only once."""
        number, _, _ = secret.partition(".")
        if not (number.isascii() and number.isdecimal() and len(number) < 10):
            return False
        life = int(number)
        if not self._since <= life < self.epoch or session in self._claimed:
            return False
        if not hmac.compare_digest(self._sealed(session, life).encode(), secret.encode(errors="replace")):
            return False
        self._claimed.add(session)
        return True

    def has_own_secret(self, session: SessionId, secret: str) -> bool:
        """True if this broker itself gave this session this secret."""
        return hmac.compare_digest(self.resume_secret(session).encode(), secret.encode(errors="replace"))

    def _sealed(self, session: SessionId, life: int) -> str:
        mac = blake2b(
            f"{life} {session}".encode(errors="replace"),
            key=self.derive_key("session"),
            digest_size=_MAC_BYTES,
        )
        return f"{life}.{mac.hexdigest()}"


def read_incarnation(line: str) -> Incarnation | None:
    """Parse the launcher's line `heir LIFE SINCE SECRET`; None for any other line."""
    words = line.split(" ")
    if len(words) != 4 or words[0] != "heir" or not (words[1].isdecimal() and words[2].isdecimal()):
        return None
    try:
        secret = bytes.fromhex(words[3])
    except ValueError:
        return None
    return Incarnation(secret, int(words[1]), int(words[2])) if len(secret) == SECRET_BYTES else None
