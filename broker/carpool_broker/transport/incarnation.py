"""What one broker inherits from those before it, and by which their sessions prove themselves to it.

The launcher gives every broker that it starts the same secret, the broker's number (its *life*, from 0) and
the first life whose sessions may still come back (docs/decisions/0019). Owns the secrets that are made of
that, one per purpose, and which session has come back already.

Invariants: a session of an earlier life comes back once, with the very secret that this life gave it; nothing
that leaves this process tells the launcher's secret.

Not a part of `resume`: secrets of other purposes (pools, audit, switches) are made here as well.

Knows nothing of: what a session is, when it is too late for all of them.
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
    """What this broker has inherited."""

    def __init__(self, secret: bytes = b"", life: int = 0, since: int = 0) -> None:
        """Without a secret it has inherited nothing and leaves nothing."""
        self._secret = secret or os.urandom(SECRET_BYTES)
        self.epoch = life
        self._since = since
        self._claimed: set[SessionId] = set()

    def derive_key(self, purpose: str) -> bytes:
        """A secret for one purpose, the same in every life."""
        return blake2b(purpose.encode(), key=self._secret, digest_size=32).digest()

    def resume_secret(self, session: SessionId) -> str:
        """What this session can come back with, at a later broker."""
        return self._sealed(session, self.epoch)

    def public_id(self, session: SessionId) -> str:
        """What an agent shows to a door that does not know it: the same in every life."""
        mac = blake2b(session.encode(), key=self.derive_key("public"), digest_size=_MAC_BYTES)
        return urlsafe_b64encode(mac.digest()).rstrip(b"=").decode()

    def claim_session(self, session: SessionId, secret: str) -> bool:
        """Whether this session comes back rightfully: only once."""
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

    def _sealed(self, session: SessionId, life: int) -> str:
        mac = blake2b(
            f"{life} {session}".encode(errors="replace"),
            key=self.derive_key("session"),
            digest_size=_MAC_BYTES,
        )
        return f"{life}.{mac.hexdigest()}"


def read_incarnation(line: str) -> Incarnation | None:
    """`heir LIFE SINCE SECRET`, as the launcher says it; None for anything else."""
    words = line.split(" ")
    if len(words) != 4 or words[0] != "heir" or not (words[1].isdecimal() and words[2].isdecimal()):
        return None
    try:
        secret = bytes.fromhex(words[3])
    except ValueError:
        return None
    return Incarnation(secret, int(words[1]), int(words[2])) if len(secret) == SECRET_BYTES else None
