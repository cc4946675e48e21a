"""Known faults of servers, recognised by their last error and the last lines of their stderr.

Pure. Owns the patterns. A pattern is what npm, pip, uv, docker or many servers write; none of them proves the
cause, so the line is shown with the problem. Knows nothing of: how the lines are had.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from carpool_protocol.wire.capabilities import OFFERS_NOTHING
from carpool_protocol.wire.jsonrpc import NOT_A_MESSAGE


class Symptom(NamedTuple):
    """A known fault."""

    kind: str
    """The id of its problem."""
    line: str
    """The line that tells it."""


_NEWER: Final = r"or (?:higher|later|newer|above)\b.*"
_VERSION: Final = re.compile(
    r"EBADENGINE.*required:.*|Unsupported engine for .*|The engine \"node\" is incompatible.*"
    r"|(?i:requires? (?:a newer version of )?node(?:\.?js)?\b.*\d.*|unsupported node(?:\.?js)? version.*)"
    rf"|(?i:node(?:\.?js)? (?:version )?v?\d[\d.]* {_NEWER}|python \d[\d.]* {_NEWER})"
    r"|requires a different Python.*|Requires-Python.*|No interpreter found for Python.*"
    r"|(?i:requires python\b.*\d.*)"
)
_PACKAGE: Final = re.compile(
    r"npm (?:error|ERR!) 404 .*Not Found.*|npm (?:error|ERR!) 404 .*not in this registry.*"
    r"|.*not found in the package registry.*|No solution found when resolving tool dependencies.*"
    r"|No matching distribution found for .*|.*pull access denied for .*|.*manifest unknown.*"
)


def stdout_noise(last_error: str) -> str:
    """Return why a line on a server's stdout is no message; empty if it wrote none of that kind."""
    _, is_there, why = last_error.partition(f"{NOT_A_MESSAGE}: ")
    return "" if not is_there or "Content-Length" in why else why


HEADERS: Final = (
    ". It may read messages after a Content-Length header, as language servers do; MCP over stdio has one "
    "message per line and no header"
)
"""The hint for a server that never answers and speaks of such headers itself."""
SILENT_CAUSES: Final = (
    ". A first start may install packages for minutes. A server that reads messages after a Content-Length "
    "header, as language servers do, is silent too: MCP over stdio has one message per line and no header"
)
"""The possible causes for a server that has answered nothing to its greeting yet."""


def is_silent_greeting(server: Mapping[str, Any]) -> bool:
    """True if a server that is starting has answered nothing to its greeting for a while."""
    whys = {each.get("why") for each in server.get("instances") or ()}
    return server.get("state") == "starting" and bool(error := server.get("last_error")) and error in whys


def expects_headers(last_error: str, stderr: Sequence[str]) -> bool:
    """True if a server did not greet, and its own words speak of `Content-Length` headers."""
    return "did not greet" in last_error and any("content-length" in line.lower() for line in stderr)


def is_lasting(server: Mapping[str, Any]) -> bool:
    """True if the last error of a server that counts as well is still a problem.

    A server keeps its last error after it has recovered. `server`: as in the broker's status.
    """
    error, state = str(server.get("last_error") or ""), server.get("state")
    if server.get("node"):
        return bool(error) and state not in {"serving", "cold"}
    if error == OFFERS_NOTHING or is_silent_greeting(server):
        return True
    return bool(stdout_noise(error)) or (bool(error) and state == "cold")


def symptom(last_error: str, stderr: Sequence[str]) -> Symptom | None:
    """Return the known fault of a server that is not well; None if it is none of them."""
    if why := stdout_noise(last_error):
        return Symptom("stdout-noise", why)
    for kind, pattern in (("version-wrong", _VERSION), ("package-not-found", _PACKAGE)):
        for line in (*stderr, last_error):
            if (found := pattern.search(line)) is not None:
                return Symptom(kind, found[0].strip())
    return None
