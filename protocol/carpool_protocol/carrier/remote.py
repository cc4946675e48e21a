"""The settings of a server over a URL, and their form in the environment of the bridge process.

Owns the names of the variables in the bridge's environment, and the error code by which the bridge says that
it has no server. All settings go into that environment and none onto the command line, which every user of
the machine can read: a URL and headers hold secrets. Each header is a variable of its own, so that its value
is masked like any other. Invariant: `remote_from_environment` reads what `to_environment` writes; settings
that only a login needs are left out.

Pure. Knows nothing of: HTTP, configuration, the process that starts the bridge.
"""

import re
from collections.abc import Mapping
from typing import Final, Literal, cast, get_args
from urllib.parse import urlsplit

from msgspec import Struct

from carpool_protocol.carrier.secret_texts import holds_secret

Transport = Literal["http", "sse", "url"]
"""`http`: Streamable HTTP (MCP 2025-03-26 and later). `sse`: HTTP+SSE (MCP 2024-11-05). `url`: try both."""

BRIDGE: Final = "carpool.bridge"
"""The module that `python -m` runs."""
UNFIT_CODE: Final = 5300
"""Error code of a greeting that failed before any server answered.

It lies outside the codes that servers use, so that it says nothing about the server's era.
"""
VARIABLES: Final = "CARPOOL_REMOTE_"
REMOTE_URL: Final = VARIABLES + "URL"

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
"""Headers that the transport itself writes, in lower case."""


class Remote(Struct, frozen=True, kw_only=True):
    """One server over a URL, after expansion."""

    server: str
    """Its name here."""
    url: str
    transport: Transport = "url"
    headers: dict[str, str] = {}
    client_id: str = ""
    """The OAuth client id, if the client was registered by hand; empty: the client registers itself."""
    client_secret: str = ""
    scopes: tuple[str, ...] = ()
    redirect_port: int = 0
    """The port of `carpool login` on 127.0.0.1; 0: any free port."""
    logins: str = ""
    """The directory of all logins; empty: no logins are stored."""

    def __repr__(self) -> str:
        """Name and host, without the rest of the URL and the headers: they may hold secrets."""
        return f"Remote({self.server!r}, {host_of(self.url)!r})"

    @property
    def authorized(self) -> bool:
        """True if a header or the URL (`user:password@`) holds credentials, so no OAuth login is needed."""
        named = any(name.lower() == "authorization" for name in self.headers)
        return named or "@" in urlsplit(self.url).netloc

    def to_environment(self) -> dict[str, str]:
        """The environment variables from which the bridge reads these settings."""
        settings = {
            "SERVER": self.server,
            "URL": self.url,
            "TRANSPORT": self.transport,
            "CLIENT_ID": self.client_id,
            "LOGINS": self.logins,
        }
        return {
            **{VARIABLES + name: value for name, value in settings.items() if value},
            **{_HEADER + name: value for name, value in self.headers.items()},
        }


def remote_from_environment(environ: Mapping[str, str]) -> Remote | None:
    """The bridge's settings from its environment. None if they are missing or invalid."""
    transport = environ.get(VARIABLES + "TRANSPORT", "url")
    url = environ.get(REMOTE_URL, "")
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
    """Values of an instance's environment that may be secret: those with the name or the look of one, and all
    headers and URLs of the bridge. Values that came from variables are known elsewhere and not judged here.

    A header also gives the part after its scheme: `Bearer abc` → `Bearer abc` and `abc`.
    """
    found = {
        value
        for name, value in environ.items()
        if name not in _PLAIN and (name.startswith(VARIABLES) or holds_secret(name, value))
    }
    headers = (value for name, value in environ.items() if name.startswith(_HEADER))
    return found | {value.rpartition(" ")[2] for value in headers}


def check_url(url: str) -> str | None:
    """The problem of a URL, as a clause that does not repeat the URL. None if it can be used."""
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
    """The problem of a header name, as a clause. None if it can be used."""
    if _TOKEN.fullmatch(name) is None:
        return "is no name of a header"
    return "is a header that carpool writes itself" if name.lower() in _TAKEN else None


def check_header_value(value: str) -> str | None:
    """The problem of a header value, as a clause that does not repeat it. None if it can be used."""
    if _VALUE.fullmatch(value) is None or value != value.strip():
        return "holds a character that no header may hold, or blanks around its value"
    return None


def host_of(url: str) -> str:
    """Host and port for people. User, path and query are left out: they may hold secrets."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return ""
    host = f"[{host}]" if ":" in host else host
    return f"{host}:{port}" if port else host
