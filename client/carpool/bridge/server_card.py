"""A well-known document, read: where the MCP server of a host is.

Owns where such documents lie and the shapes they have. No version of MCP up to 2026-07-28 has one; these
are SEP-2127 (`remotes`), SEP-1649 (`transport`, `transports`) and what hosts publish as `/.well-known/mcp`
(`servers`, `endpoint`, `url`), as of 2026-11. Streamable HTTP is taken before HTTP+SSE, else the first.

Pure, and so apart from `transport_probe`, which asks. Knows nothing of: HTTP, which of the URLs may be used.
"""

from collections.abc import Iterator
from typing import Any, Final, Literal
from urllib.parse import urljoin, urlsplit

PATHS: Final = (
    "/.well-known/mcp/server-card.json",
    "/.well-known/mcp/server-card",
    "/.well-known/mcp.json",
    "/.well-known/mcp",
)
"""Below a host's root, in this order."""

Kind = Literal["http", "sse"]
Place = tuple[Kind, str]
"""A transport and its URL."""

_HTTP: Final = frozenset({"http", "streamable-http", "streamablehttp", "streamable_http", "shttp", "https"})
_NESTED: Final = ("remotes", "transports", "servers", "transport", "server", "endpoints", "mcp")
_MOST: Final = 64


def is_well_known(url: str) -> bool:
    """The URL is that of such a document itself."""
    return "/.well-known/" in urlsplit(url).path


def place_in(document: Any, base: str) -> Place | None:
    """The transport and URL that the document names. `base`: its own URL, which resolves relative ones."""
    found: list[Place] = []
    for kind, url in _places(document, depth=0):
        try:
            whole = urljoin(base, url)
            scheme = urlsplit(whole).scheme
        except ValueError:  # no URL at all, like `http://[`
            continue
        if scheme in {"http", "https"} and (kind, whole) not in found:
            found.append((kind, whole))
    return next((each for each in found if each[0] == "http"), found[0] if found else None)


def _places(value: Any, depth: int) -> Iterator[Place]:
    if depth > 3:
        return
    if isinstance(value, list):
        for each in value[:_MOST]:
            yield from _places(each, depth + 1)
    if not isinstance(value, dict):
        return
    for key in ("url", "endpoint"):
        if isinstance(value.get(key), str):
            said = value.get("type", value.get("transport", value.get("protocol", "")))
            kind = said.lower() if isinstance(said, str) else ""
            if not kind or kind in _HTTP:
                yield "http", value[key]
            elif kind == "sse":
                yield "sse", value[key]
            break
    for key in _NESTED:
        if isinstance(value.get(key), dict | list):
            yield from _places(value[key], depth + 1)
