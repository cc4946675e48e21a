"""Codes for the key of the web page: `POST /operator/code` makes one, `POST /operator/key` takes it.

Owns which codes are open, how long, and who may have one. A browser keeps the address that it has opened in
its history, so the address that `carpool web` prints holds a code: it counts once and for two minutes. The
page gives it for the key, which stands in no address.

Invariant: at most `MAX_CODES` are open. Knows nothing of: tokens, how secrets are made, what the key allows
(`access`). Decision: docs/decisions/0053.
"""

import hashlib
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct

from carpool.http.core.access import PAGE_PRINCIPAL
from carpool.http.core.body import INVALID_PARAMS, INVALID_REQUEST, UNREADABLE
from carpool.http.core.effects import HttpRequest, Respond, refusal
from carpool.http.core.headers import is_json
from carpool.http.core.web_page import SAFE_HEADERS

CODE_PATH: Final = "/operator/code"
KEY_PATH: Final = "/operator/key"
CODE_PREFIX: Final = "once-"
"""Tells a code from a key, also in the hands of a person."""
VALID_S: Final = 120.0
MAX_CODES: Final = 16
"""The most open codes; a further one ends the oldest."""
_HEADERS: Final = (*SAFE_HEADERS, ("Cache-Control", "no-store"))
_NEEDS_KEY: Final = (
    "only the key of the web page makes a code: `carpool web` has it, and prints an address with a code"
)
_NO_CODE: Final = (
    "this code was used before, or is more than two minutes old, or of an earlier start of carpool: say "
    "`carpool web` again"
)


class _OneCode(Struct, forbid_unknown_fields=True):
    """The body of `/operator/key`."""

    code: str


class PageCodes:
    """The open codes of one door."""

    def __init__(self, key: str = "", new_secret: Callable[[], str] = lambda: "") -> None:
        """`key`: that of the web page; empty: there is none, and no code either. `new_secret` returns another
        text at each call, which nobody can guess and which stands in an address as it is.
        """
        self._key = key
        self._new_secret = new_secret
        self._open: dict[bytes, float] = {}
        """The SHA-256 of each code, and the time at which it ends; the oldest first."""

    def has(self, path: str) -> bool:
        """True if requests to this address are about codes."""
        return bool(self._key) and path in {CODE_PATH, KEY_PATH}

    def answer(self, x: int, request: HttpRequest, principal: str, now: float) -> Respond:
        """Return a new code to the key, or the key to an open code."""
        if request.method != "POST":
            return refusal(x, 405, INVALID_REQUEST, "POST only", Allow="POST")
        if not is_json(request.headers.get("content-type")):
            return refusal(x, 415, INVALID_REQUEST, "Unsupported Media Type: POST application/json")
        if request.path == CODE_PATH:
            return self._make(x, principal, now)
        return self._take(x, request.body, now)

    def check(self) -> None:
        """Assert every invariant."""
        assert len(self._open) <= MAX_CODES

    def _make(self, x: int, principal: str, now: float) -> Respond:
        if principal != PAGE_PRINCIPAL:
            return refusal(x, 403, INVALID_REQUEST, _NEEDS_KEY)
        code = CODE_PREFIX + self._new_secret()
        while len(self._open) >= MAX_CODES:
            del self._open[next(iter(self._open))]
        self._open[_digest(code)] = now + VALID_S
        return Respond(x, 200, msgspec.json.encode({"code": code, "valid_s": VALID_S}), _HEADERS)

    def _take(self, x: int, body: bytes, now: float) -> Respond:
        try:
            code = msgspec.json.decode(body, type=_OneCode).code
            until = self._open.pop(_digest(code), None)
        except (*UNREADABLE, ValueError):
            return refusal(x, 400, INVALID_PARAMS, "the request is not as it is needed: it has `code`")
        if until is None or now >= until:
            return refusal(x, 403, INVALID_REQUEST, _NO_CODE)
        return Respond(x, 200, msgspec.json.encode({"key": self._key}), _HEADERS)


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode()).digest()  # how long a look-up takes tells nothing of a code
