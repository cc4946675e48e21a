"""The mark by which the HTTP door knows the bridges of its own user's carpool.

Owns the header and its proof. A server of the configuration that leads to carpool's own door would give each
agent all servers, whatever its profile, and list its own tools under its own name without end. So each
bridge sends a random number and a keyed hash of it, and the door refuses a request whose hash it can compute
itself. The key is that of the pool keys in the state directory: a stranger's server can neither tell the user
nor link two bridges by the header.

Knows nothing of: HTTP, who sends the header, what is refused.
"""

import hashlib
import hmac
import os
from typing import Final

from carpool_protocol.files import state_file

HEADER: Final = "carpool-bridge"
_KEY_FILE: Final = "pool-keys"
"""In the state directory; made by the broker before a bridge or a door is started (`pool_secret`)."""
_KEY_BYTES: Final = 65


def headers_of(logins: str) -> dict[str, str]:
    """The header of a bridge with this directory of logins; none where there is no key."""
    # The directory of a probe's logins is a link to those of the user's own carpool.
    key = _key(os.path.dirname(os.path.realpath(logins))) if logins else b""
    number = os.urandom(16).hex()
    return {HEADER: f"{number}.{_proof(key, number)}"} if key else {}


class OwnBridges:
    """Recognizes the bridges of one state directory."""

    def __init__(self, state: str) -> None:
        self._state = state
        self._key = b""

    def __contains__(self, value: object) -> bool:
        """The value of the header is that of such a bridge."""
        assert isinstance(value, str)
        self._key = self._key or _key(self._state)
        number, _, proof = value.partition(".")
        return bool(self._key) and hmac.compare_digest(proof.encode(), _proof(self._key, number).encode())


def _proof(key: bytes, number: str) -> str:
    return hmac.new(key, b"carpool bridge\0" + number.encode(), hashlib.sha256).hexdigest()


def _key(state: str) -> bytes:
    try:
        found = state_file.read_state_file(os.path.join(state, _KEY_FILE), _KEY_BYTES)
    except OSError:
        return b""
    return found.strip() if isinstance(found, bytes) else b""
