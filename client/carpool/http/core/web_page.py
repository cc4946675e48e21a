"""The files of the web page: HTML, style, script, and the explanations of errors.

Owns their addresses and headers. The page is the same for everybody and holds no figure, so it needs no
token; what it shows it asks for (`live_streams`, `operator_requests`). Its policy (Content Security Policy
Level 3, W3C) lets it load and ask from its own door alone, run no script but its own, and make no element out
of text (Trusted Types).

Knows nothing of: tokens, what the page shows, where the files are kept. Decision: docs/decisions/0053.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from carpool.http.core.body import INVALID_REQUEST
from carpool.http.core.effects import JSON, HttpRequest, Respond, refusal
from carpool_protocol.faults.kinds import KINDS

PAGE: Final = "/web/"
"""The page, also where MCP is spoken at `/`."""
ERRORS: Final = "/web/errors.json"
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
SAFE_HEADERS: Final = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
"""The headers of every answer that a browser reads."""
_PAGE_HEADERS: Final = (
    *SAFE_HEADERS,
    ("Content-Security-Policy", _POLICY),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Permissions-Policy", "camera=(), geolocation=(), microphone=()"),
    ("X-Frame-Options", "DENY"),
    ("Cache-Control", "no-cache"),
)


class WebFile(NamedTuple):
    """One file of the page."""

    media: str
    body: bytes


class WebPage:
    """Answers requests for the files of the page. `files`: by their names in the folder `web`."""

    def __init__(self, files: Mapping[str, WebFile]) -> None:
        self._files = {f"/web/{name}": file for name, file in files.items()}
        if (page := files.get("index.html")) is not None:
            self._files |= {"/": page, PAGE: page, ERRORS: WebFile(JSON, _explanations())}

    def has(self, path: str) -> bool:
        """True if a file has this address."""
        return path in self._files

    def answer(self, x: int, request: HttpRequest) -> Respond:
        """Return the file."""
        if request.method not in {"GET", "HEAD"}:
            return refusal(x, 405, INVALID_REQUEST, "GET only", Allow="GET, HEAD")
        file = self._files[request.path]
        return Respond(x, 200, file.body, _PAGE_HEADERS, file.media)


def _explanations() -> bytes:
    """Return what the page of errors says of each code (docs/errors.md), as JSON."""
    return msgspec.json.encode(
        {
            kind.slug: {
                "family": kind.family,
                "delivered": kind.delivered,
                "what": kind.what,
                "advice": kind.advice,
            }
            for kind in KINDS.values()
        }
    )
