"""Finds the faults of the HTTP door's address for `carpool check`.

An invalid address, and a public one with `"tokens": false`, are problems of the configuration. A port in use
is a fact of the moment, which carpool checks again by itself: it is a warning, and the verdict mentions it.
Knows nothing of: the daemon; how a door listens.
"""

from collections.abc import Callable
from urllib.parse import urlsplit

from msgspec import Struct

from carpool.http.core.access import why_without_tokens
from carpool.launcher import http_address as address
from carpool_protocol.config.schema.model import Config
from carpool_protocol.config.text.problems import ConfigProblem


class HttpAddressFaults(Struct, frozen=True):
    """The faults that keep the door from opening.

    Both are empty if there is none, or if no door is wanted.
    """

    problem: ConfigProblem | None = None
    now: str = ""
    """The reason why the door could not open at this moment."""


def http_address_faults(
    config: Config,
    listen: str,
    own_url: str,
    why_not_bound: Callable[[str, int], str],
) -> HttpAddressFaults:
    """Return the faults of the address.

    `listen`: the address that overrides the file's; empty if there is none. `own_url`: the URL of the door
    that is open here.
    """
    host, port = config.http.host, config.http.port
    if not listen and not config.http_wanted:
        return HttpAddressFaults()
    if listen:
        try:
            host, port = address.split_address(listen)
        except ValueError as error:
            return HttpAddressFaults(ConfigProblem("CARPOOL_HTTP", 0, "", str(error)))
    if why := why_without_tokens(host, needs_token=config.http.needs_token):
        if listen:
            return HttpAddressFaults(ConfigProblem("CARPOOL_HTTP", 0, "", why))
        line = config.lines.get(("http", "host"), config.lines["http",])
        return HttpAddressFaults(ConfigProblem(config.file, line, "http.host", why))
    if own_url and urlsplit(own_url).port == port:
        return HttpAddressFaults()
    return HttpAddressFaults(None, why_not_bound(host, port))


def why_not_bound(host: str, port: int) -> str:
    """Return the reason why nothing could listen there now; empty if it could."""
    try:
        address.bind(host, port).close()
    except (OSError, UnicodeError) as error:
        return address.cannot_listen(host, port, error)
    return ""
