"""Turns a configured server with a URL, its variables filled in, into the settings of a bridge.

Owns the check of URLs and headers that contain variables. Used by the broker for the bridge and by `carpool
login`. No sentence repeats a value.

Pure. Knows nothing of: environments, HTTP.
"""

from collections.abc import Mapping

from carpool_protocol.carrier.remote import Remote, Transport, check_header_value, check_url
from carpool_protocol.config.schema.model import ServerConfig
from carpool_protocol.config.text.problems import KeyPath


def remote_of(
    server: ServerConfig, filled: Mapping[KeyPath, str], logins: str
) -> Remote | list[tuple[KeyPath, str]]:
    """The settings of the server, or its problems, each with its place below the server.

    `filled`: its expanded templates; those of `oauth` as far as they are known. `logins`: the directory of
    logins.
    """
    problems: list[tuple[KeyPath, str]] = []
    url = filled["url",]
    if (why := check_url(url)) is not None:
        problems.append((("url",), why))
    headers = {name: filled["headers", name] for name in server.headers}
    for name, value in headers.items():
        if (why := check_header_value(value)) is not None:
            problems.append((("headers", name), why))
    if problems:
        return problems
    transport: Transport = "url"
    if server.transport is not None and server.transport != "stdio":
        transport = server.transport
    return Remote(
        server=server.name,
        url=url,
        transport=transport,
        headers=headers,
        client_id=filled.get(("oauth", "client_id"), ""),
        client_secret=filled.get(("oauth", "client_secret"), ""),
        scopes=server.oauth_scopes,
        redirect_port=server.oauth_redirect_port,
        logins=logins,
    )
