"""What `carpool check` finds wrong with the address of the HTTP door.

An address that is none, and a public one without tokens, are problems of what is written. A port in use is
a fact of this moment, after which carpool looks again by itself: a warning, and the verdict tells it.

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
    """What keeps the door from opening. Both empty: nothing, or no door is wanted."""

    problem: ConfigProblem | None = None
    now: str = ""
    """Why it could not open at this moment."""


def http_address_faults(
    config: Config,
    listen: str,
    own_url: str,
    why_not_bound: Callable[[str, int], str],
) -> HttpAddressFaults:
    """`listen`: the address that goes above the file's; empty: none. `own_url`: of the door open here."""
    host, port = config.http.host, config.http.port
    if not listen and not config.http_wanted:
        return HttpAddressFaults()
    if listen:
        try:
            host, port = address.split_address(listen)
        except ValueError as error:
            return HttpAddressFaults(ConfigProblem("CARPOOL_HTTP", 0, "", str(error)))
    if why := why_without_tokens(host, has_tokens=bool(config.http.tokens)):
        if listen:
            return HttpAddressFaults(ConfigProblem("CARPOOL_HTTP", 0, "", why))
        line = config.lines.get(("http", "host"), config.lines["http",])
        return HttpAddressFaults(ConfigProblem(config.file, line, "http.host", why))
    if own_url and urlsplit(own_url).port == port:
        return HttpAddressFaults()
    return HttpAddressFaults(None, why_not_bound(host, port))


def why_not_bound(host: str, port: int) -> str:
    """Why nothing could listen there now; empty: it could."""
    try:
        address.bind(host, port).close()
    except (OSError, UnicodeError) as error:
        return address.cannot_listen(host, port, error)
    return ""
