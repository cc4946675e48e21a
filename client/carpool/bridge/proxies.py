"""The proxies that the environment names, as far as people are told of them.

Owns whether they can be used at all, and whether one is between us and a host: what fails there is not the
host's fault. Which one is used is the HTTP client's business, which reads the same variables.

Apart from `http_client`, because `error_mapping` under it asks as well. Knows nothing of: requests.
"""

from importlib.util import find_spec
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from carpool.bridge.error_texts import RequestTrouble
from carpool_protocol.bootstrap.install_method import add_packages_command

_PLAIN: Final = frozenset({"http", "https"})
_SOCKS: Final = frozenset({"socks5", "socks5h"})


def unusable() -> RequestTrouble | None:
    """Why no connection at all can be made with them; None: they can be used, or there are none."""
    named = getproxies()
    if named.get("no") == "*":
        return None
    for scheme in ("http", "https", "all"):
        said = named.get(scheme, "")
        kind = said.partition("://")[0].lower() if "://" in said else "http"
        if kind in _SOCKS and find_spec("socksio") is None:
            return RequestTrouble(
                f"{scheme.upper()}_PROXY names a SOCKS proxy, which needs more than is installed: run "
                f"`{add_packages_command(['socksio'])}`"
            )
        if kind not in _PLAIN | _SOCKS:
            return RequestTrouble(f"{scheme.upper()}_PROXY names a proxy of a kind that cannot be used")
    return None


def is_between(url: str) -> bool:
    """There is one on the way to this URL."""
    parts, named = urlsplit(url), getproxies()
    return bool(named.get(parts.scheme) or named.get("all")) and not proxy_bypass(parts.hostname or "")
