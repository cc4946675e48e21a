"""Warnings of `carpool check` about secrets that go over the network unencrypted.

Owns one judgement: an `http://` URL to another machine, with a header or a login that holds a secret.
Loopback is not the network. No sentence repeats a value.

Knows nothing of: terminals, what a server answers.
"""

from collections.abc import Callable
from urllib.parse import urlsplit

from carpool.http.core.access import is_loopback
from carpool_protocol.carrier.secret_texts import is_secret_name
from carpool_protocol.config.schema.model import Config, ServerConfig
from carpool_protocol.config.text.problems import ConfigProblem, render_path

Expand = Callable[[ServerConfig, str], str | None]
"""Returns a text of a server with its variables filled in; None if one is missing."""


def url_warnings(config: Config, expand: Expand) -> list[str]:
    """Return a warning for each enabled server whose secret could be read on the network."""
    found: list[str] = []
    for server in config.servers.values():
        if server.url is None or server.disabled or not _is_open(expand(server, server.url) or server.url):
            continue
        secrets = [name for name in server.headers if is_secret_name(name)]
        if server.oauth_client_id is not None or server.oauth_client_secret is not None:
            secrets.append("its login")
        if secrets:
            text = (
                f"{', '.join(secrets)} would cross the network unencrypted, for "
                "everybody on the way to read: use https://"
            )
            line = server.lines.get(("url",), server.lines[()])
            found.append(ConfigProblem(server.file, line, render_path((*server.under, "url")), text).render())
    return found


def _is_open(url: str) -> bool:
    """True for plain HTTP to another machine. A host that only a variable names counts as another machine."""
    if not url.lower().startswith("http://"):
        return False
    try:
        host = urlsplit(url).hostname
    except ValueError:  # `check_url` says it
        return False
    return host is not None and not is_loopback(host)
