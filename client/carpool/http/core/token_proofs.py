"""Proof of the HTTP door's identity to the web page: `POST /operator/proof`.

Owns the proof that this door knows the token which a page is about to send. After the end of carpool another
program may listen at the same port, and an open page would send its token there. So the page asks first: it
names the token by a hint, and the door answers with a keyed hash of the page's nonce. Neither tells the token
or its hash, and without the right hint there is no answer to guess at.

    hash = SHA-256(token)
    hint = SHA-256("carpool hint" hash)
    proof = HMAC-SHA-256(hash, "carpool proof" nonce)

Knows nothing of: what a token allows (`access`). Decision: docs/decisions/0053.
"""

import hashlib
import hmac
from collections.abc import Iterable
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from carpool.http.core.body import INVALID_PARAMS, INVALID_REQUEST, UNREADABLE
from carpool.http.core.effects import HttpRequest, Respond, refusal
from carpool.http.core.headers import is_json
from carpool.http.core.web_page import SAFE_HEADERS

PROOF_PATH: Final = "/operator/proof"
_Digits = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
_HEADERS: Final = (*SAFE_HEADERS, ("Cache-Control", "no-store"))
_UNKNOWN: Final = (
    "this door knows no such token, or it has expired; `carpool token add NAME --operator read` makes one"
)


class _Challenge(Struct, forbid_unknown_fields=True):
    """The body of `/operator/proof`: 64 hexadecimal digits each."""

    hint: _Digits
    nonce: _Digits


def hint_of(token_hash: bytes) -> str:
    """Return the hint that names a token. `token_hash`: its SHA-256."""
    return hashlib.sha256(b"carpool hint" + token_hash).hexdigest()


def proof_of(token_hash: bytes, nonce: str) -> str:
    """Return the proof that somebody knows the hash of a token."""
    return hmac.new(token_hash, b"carpool proof" + nonce.encode(), hashlib.sha256).hexdigest()


def answer_challenge(x: int, request: HttpRequest, token_hashes: Iterable[bytes]) -> Respond:
    """Return the proof for the token that the page names. `token_hashes`: those of all valid tokens."""
    if request.method != "POST":
        return refusal(x, 405, INVALID_REQUEST, "POST only", Allow="POST")
    if not is_json(request.headers.get("content-type")):
        return refusal(x, 415, INVALID_REQUEST, "Unsupported Media Type: POST application/json")
    try:
        challenge = msgspec.json.decode(request.body, type=_Challenge)
    except (*UNREADABLE, ValueError):
        text = "the request is not as it is needed: it has `hint` and `nonce`, 64 hexadecimal digits each"
        return refusal(x, 400, INVALID_PARAMS, text)
    found = [each for each in token_hashes if hmac.compare_digest(hint_of(each), challenge.hint)]
    if not found:
        return refusal(x, 401, INVALID_REQUEST, _UNKNOWN)
    return Respond(x, 200, msgspec.json.encode({"proof": proof_of(found[0], challenge.nonce)}), _HEADERS)
