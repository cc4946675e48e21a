"""A server that is reached over a URL: what the bridge child is told, and how it is told.

Owns the names of the variables in the bridge's environment, and the code by which it says that there is no
server. Everything goes into that environment and nothing onto its command line, which every user of the
machine can read: a URL and headers hold secrets. Each header is a variable of its own, so that its value is
masked like any other. Invariant: what `to_environment` writes `remote_from_environment` reads; what only a
login needs stays out.

Pure. Knows nothing of: HTTP, configuration, who starts the bridge.
"""

import re
from collections.abc import Mapping
from typing import Final, Literal, cast, get_args
from urllib.parse import urlsplit

from msgspec import Struct

Transport = Literal["http", "sse", "url"]
"""`http`: Streamable HTTP (MCP 2025-03-26 and later). `sse`: HTTP+SSE (MCP 2024-11-05). `url`: find out."""

BRIDGE: Final = "carpool.bridge"
"""What `python -m` runs."""
UNFIT_CODE: Final = 5300
"""The code of a greeting that failed before any server answered it: outside of what servers may say, so that
no era is read from it.
"""
VARIABLES: Final = "CARPOOL_REMOTE_"

_HEADER: Final = VARIABLES + "HEADER_"
_PLAIN: Final = frozenset({VARIABLES + "SERVER", VARIABLES + "TRANSPORT", VARIABLES + "LOGINS"})
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE: Final = re.compile(r"[\x20-\x7e\t]*")
_TAKEN: Final = frozenset(
    {
        *("accept", "connection", "content-length", "content-type", "host", "last-event-id"),
        *("mcp-method", "mcp-name", "mcp-protocol-version", "mcp-session-id", "transfer-encoding"),
    }
)
"""Headers that the transport itself writes."""


class Remote(Struct, frozen=True, kw_only=True):
    """One server over a URL, after expansion."""

    server: str
    """Its name here."""
    url: str
    transport: Transport = "url"
    headers: dict[str, str] = {}
    client_id: str = ""
    """Of OAuth, where the client was registered by hand; empty: it registers itself."""
    client_secret: str = ""
    scopes: tuple[str, ...] = ()
    redirect_port: int = 0
    """Of `carpool login` on 127.0.0.1; 0: any."""
    logins: str = ""
    """The directory of all logins; empty: there are none."""

    def __repr__(self) -> str:
        """Without the URL and the headers: they may hold secrets."""
        return f"Remote({self.server!r}, {host_of(self.url)!r})"

    @property
    def authorized(self) -> bool:
        """A header says who it is, or the URL (`user:password@`), so OAuth is none of ours."""
        named = any(name.lower() == "authorization" for name in self.headers)
        return named or "@" in urlsplit(self.url).netloc

    def to_environment(self) -> dict[str, str]:
        """The variables that tell the bridge."""
        said = {
            "SERVER": self.server,
            "URL": self.url,
            "TRANSPORT": self.transport,
            "CLIENT_ID": self.client_id,
            "LOGINS": self.logins,
        }
        return {
            **{VARIABLES + name: value for name, value in said.items() if value},
            **{_HEADER + name: value for name, value in self.headers.items()},
        }


def remote_from_environment(environ: Mapping[str, str]) -> Remote | None:
    """What the bridge is told. None: nothing that makes sense."""
    transport = environ.get(VARIABLES + "TRANSPORT", "url")
    url = environ.get(VARIABLES + "URL", "")
    if check_url(url) is not None or transport not in get_args(Transport):
        return None
    return Remote(
        server=environ.get(VARIABLES + "SERVER", ""),
        url=url,
        transport=cast("Transport", transport),
        headers={
            name.removeprefix(_HEADER): value for name, value in environ.items() if name.startswith(_HEADER)
        },
        client_id=environ.get(VARIABLES + "CLIENT_ID", ""),
        logins=environ.get(VARIABLES + "LOGINS", ""),
    )


def secrets_of(environ: Mapping[str, str]) -> set[str]:
    """The values of an instance's environment that may be secrets: all but what only tells a bridge where it
    is. Of a header also what follows the scheme, as `Bearer`: a server knows it without.
    """
    found = {value for name, value in environ.items() if name not in _PLAIN}
    headers = (value for name, value in environ.items() if name.startswith(_HEADER))
    return found | {value.rpartition(" ")[2] for value in headers}


def check_url(url: str) -> str | None:
    """What is wrong with a URL, as a sentence that does not repeat it; None where it can be used."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "is no URL"
    if parts.scheme.lower() not in {"http", "https"} or not parts.hostname or port == 0:
        return "must be a URL that begins with http:// or https:// and names a host"
    if not url.isprintable() or " " in url:
        return "holds a character that no URL may hold"
    return None


def check_header_name(name: str) -> str | None:
    """What is wrong with the name of a header; None where it can be used."""
    if _TOKEN.fullmatch(name) is None:
        return "is no name of a header"
    return "is a header that carpool writes itself" if name.lower() in _TAKEN else None


def check_header_value(value: str) -> str | None:
    """What is wrong with the value of a header, as a sentence that does not repeat it."""
    if _VALUE.fullmatch(value) is None or value != value.strip():
        return "holds a character that no header may hold, or blanks around its value"
    return None


def host_of(url: str) -> str:
    """Host and port for people: never user, path or query, where secrets are."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return ""
    host = f"[{host}]" if ":" in host else host
    return f"{host}:{port}" if port else host
