"""Rules of access: `Host`, `Origin`, bearer tokens, the key of the web page, and the rights of operators.

MCP, basic/transports, "Security warning": a page in somebody's browser must not reach a door on loopback, so
`Host` has to be a name of this machine and `Origin`, where there is one, a page from here. With what a page
only embeds (a picture, a frame) a browser sends no `Origin`; then `Sec-Fetch-Site` (Fetch Metadata Request
Headers, W3C, 2.3) tells where that page is from. Tokens are known by their SHA-256 only, and compared in
constant time.

Knows nothing of: sessions, bodies, where the settings came from. Decision on the key: docs/decisions/0053.
"""

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final

from carpool_protocol.config.schema.model import OperatorRight

HASH_PREFIX: Final = "sha256:"
ANY_PRINCIPAL: Final = ""
"""The only principal of a door with `"tokens": false`."""
NO_PRINCIPAL: Final = "\0"
"""The principal of requests without a valid token where one is needed. No token has this name."""
GENERATED_PRINCIPAL: Final = "\0generated"
"""The principal of requests with the token that the door has made. No token of the file has this name. It is
the key of the user's programs and tells none of them from another, so for the broker they are nobody in
particular, as with `"tokens": false`.
"""
PAGE_PRINCIPAL: Final = "carpool web"
"""The principal of requests with the key of the web page, also in the audit. No token has this name."""
_LOOPBACK_NAMES: Final = frozenset({"localhost"})
_MAX_KNOWN: Final = 1024
_FROM_HERE: Final = frozenset({"same-origin", "none"})
"""`none` stands for the user, who typed the address."""
# A name with an optional port and nothing else: what a lenient reader would skip, another takes for the name.
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]{2,64}\]|[0-9A-Za-z._-]{1,255})(?::[0-9]{0,5})?")
_ORIGIN: Final = re.compile(r"https?://([^/]+)", re.IGNORECASE)


class AccessRules:
    """The rules of one door. `hosts` and `origins`: allowed beside those of loopback.

    `tokens`: the name of a principal → `sha256:` and 64 hex digits. If none is needed, everybody is
    nobody in particular: the principal is empty. `needs_token`: tokens are needed though none is valid, as
    when all have expired. `profiles`: of principals that have one, whatever the URL. `workspaces`: those that
    a principal is bound to.
    `operators`: the rights of principals that are operators; they are no agents.
    `own_bridges`: the values of `bridge_mark.HEADER` that bridges of this carpool send.
    `page_key`: the SHA-256 of the key that `carpool web` prints; it has the full right of an operator.
    `knows_owners`: the system tells whose a connection is, so without tokens only processes of this user
    come in.
    """

    def __init__(
        self,
        hosts: Iterable[str] = (),
        origins: Iterable[str] = (),
        tokens: Mapping[str, str] | None = None,
        profiles: Mapping[str, str] | None = None,
        *,
        workspaces: Mapping[str, Sequence[str]] | None = None,
        operators: Mapping[str, OperatorRight] | None = None,
        needs_token: bool = False,
        own_bridges: Container[str] = (),
        page_key: bytes = b"",
        knows_owners: bool = False,
    ) -> None:
        self._hosts = {each.lower() for each in hosts}
        self._origins = {each.lower().rstrip("/") for each in origins}
        self._tokens = {
            name: bytes.fromhex(each[len(HASH_PREFIX) :])
            for name, each in (tokens or {}).items()
            if name != PAGE_PRINCIPAL  # a token of that name is not let in
        }
        self.is_open = not self._tokens and not needs_token
        """True if no token is needed."""
        self.has_one_user = self.is_open or GENERATED_PRINCIPAL in self._tokens
        """True if all that come in are programs of one user, and none of them is told from another."""
        self._profiles = dict(profiles or {})
        self._workspaces = {name: tuple(each) for name, each in (workspaces or {}).items()}
        self.binds_workspaces = bool(self._workspaces)
        """True if at least one principal is bound to workspaces."""
        self._operators = dict(operators or {})
        self._own_bridges = own_bridges
        self._page_key = page_key
        self._knows_owners = knows_owners
        self._good_hosts: set[str] = set()
        """Values that were found valid: agents send the same ones again."""

    @property
    def principals(self) -> int:
        """The number of principals that share the door's connections; 1 without tokens."""
        return max(1, len(self._tokens))

    @property
    def agent_principals(self) -> int:
        """The number of principals that share the sessions: all but operators; at least 1."""
        return max(1, len(self._tokens) - len(self._operators))

    def host_allowed(self, value: str | None) -> bool:
        """True if a `Host` header names this machine; its port does not count."""
        if value is None:
            return False
        if value in self._good_hosts:
            return True
        name = host_name(value)
        good = bool(name) and (is_loopback(name) or "*" in self._hosts or name in self._hosts)
        if good and len(self._good_hosts) < _MAX_KNOWN:
            self._good_hosts.add(value)
        return good

    def origin_allowed(self, value: str | None, site: str | None = None) -> bool:
        """True if a page of this origin may send requests. Without `Origin` and `Sec-Fetch-Site` (`site`)
        the request is from no page.
        """
        if "*" in self._origins:
            return True
        if value is None:
            return site is None or site.lower() in _FROM_HERE
        if value.lower() in self._origins:
            return True
        found = _ORIGIN.fullmatch(value)
        return found is not None and is_loopback(host_name(found[1]))

    def is_own_bridge(self, mark: str | None) -> bool:
        """True if the request comes from this carpool itself: the URL of one of its servers
        leads back here.
        """
        return mark is not None and mark in self._own_bridges

    def principal(self, authorization: str | None) -> str | None:
        """Return the principal of this token; None if the token is unknown, or missing where
        one is needed.
        """
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return ANY_PRINCIPAL if self.is_open else None
        digest = hashlib.sha256(token.strip().encode()).digest()
        if self._page_key and hmac.compare_digest(digest, self._page_key):
            return PAGE_PRINCIPAL
        if self.is_open:
            return ANY_PRINCIPAL
        found = None
        for name, known in self._tokens.items():  # all of them: time must not tell which is near
            if hmac.compare_digest(digest, known):
                found = name
        return found

    @property
    def token_hashes(self) -> list[bytes]:
        """The SHA-256 of each token that is let in, and of the key of the web page."""
        return [*self._tokens.values(), *([self._page_key] if self._page_key else [])]

    def access_key(self, principal: str) -> bytes | None:
        """Return the key to what this principal may reach; None if it may reach nothing."""
        if principal == PAGE_PRINCIPAL:
            return self._page_key or None
        if self.is_open:
            return None if principal else b""
        key = self._tokens.get(principal)
        if key is None:
            return None
        bound_to = self.workspaces_of(principal)
        rights = f"{self.operator_right(principal)} {self.profile_of(principal)} {bound_to}"
        return key + rights.encode()

    def profile_of(self, principal: str) -> str:
        """Return the profile that this principal always has; empty if the URL may name one."""
        return self._profiles.get(principal, "")

    def workspaces_of(self, principal: str) -> tuple[str, ...]:
        """Return the workspaces that this principal may work in; empty: any."""
        return self._workspaces.get(principal, ())

    def sees_all(self, principal: str) -> bool:
        """True if nothing that runs is hidden from this principal."""
        is_bound = bool(self.profile_of(principal) or self.workspaces_of(principal))
        return principal != NO_PRINCIPAL and not is_bound

    def operator_right(self, principal: str) -> OperatorRight:
        """Return what this principal may do as an operator; empty if it is none. Without tokens and the key
        nobody acts over HTTP: a page of this machine in a browser could act for its user.
        """
        return "full" if principal == PAGE_PRINCIPAL else self._operators.get(principal, "")

    def browser_right(self, principal: str, headers: Mapping[str, str]) -> OperatorRight:
        """Return the right of a request without token and key: a page of this very door, in a browser of the
        user that the door is for, may read. `Sec-Fetch-Site` is a header that no page can write.

        The page must come from an address, because a name such as `localhost` has several: a page that
        another program has served at one of them counts as of the same origin.
        """
        is_same_origin = headers.get("sec-fetch-site", "").lower() == "same-origin"
        is_own_page = is_same_origin and _is_address(host_name(headers.get("host", "")))
        is_users = self.is_open and principal == ANY_PRINCIPAL and self._knows_owners
        return "read" if is_own_page and is_users else ""


def is_page_visit(headers: Mapping[str, str]) -> bool:
    """True if a browser opens a page of its own for this, as when the user follows a link: the page where the
    link was does not see what comes.
    """
    is_new_page = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return is_new_page and "origin" not in headers


def host_name(value: str) -> str:
    """Return the name in a `Host` header, lower case, without port and brackets; empty if the header is
    invalid.
    """
    found = _HOST.fullmatch(value)
    if found is None:
        return ""
    name = found[1].lower()
    return name[1:-1] if name.startswith("[") else name.removesuffix(".")


def is_loopback(name: str) -> bool:
    """True if a host name or address means this machine alone."""
    if name in _LOOPBACK_NAMES or name.endswith(".localhost"):
        return True
    return _is_address(name) and ipaddress.ip_address(name).is_loopback


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def hash_of(token: str) -> str:
    """Return the hash of a token as it stands in the configuration."""
    return HASH_PREFIX + hashlib.sha256(token.encode()).hexdigest()


def host_name_of(host: str) -> str:
    """Return the host of an address to listen on, as it stands in a `Host` header."""
    return host.lower() if ":" in host else host_name(host)


def why_without_tokens(host: str, *, needs_token: bool) -> str:
    """Return why a door that needs no token may not listen on `host`; empty if it may."""
    if needs_token or is_loopback(host_name_of(host)):
        return ""
    return (
        f"the HTTP door does not listen on {host} without tokens: anybody could use every "
        'server; take `"tokens": false` out of `http`, or listen on 127.0.0.1'
    )
