"""PrincipalQuotas of the HTTP door: how many sessions and requests each principal has open.

Owns the counts. A request that waits here before it goes to the broker counts as an open one. Sessions are
shared out among principals, so that none takes all.

Knows nothing of: what is asked, streams, refusals.
"""

from collections import Counter

from carpool.http.core.effects import HttpRules


class PrincipalQuotas:
    """Open sessions and open requests, by principal."""

    def __init__(self, rules: HttpRules) -> None:
        self._principals = 1
        self.set_rules(rules)
        self._sessions: dict[str, int] = {}
        self._open: dict[str, int] = {}
        self._held: dict[int, str] = {}
        """HTTP requests that wait before they go to the broker, and their principals."""
        self.session_count = 0

    def set_rules(self, rules: HttpRules) -> None:
        """Set the bounds. What is open beyond a lower one stays open."""
        self._max_sessions = rules.max_sessions
        self._max_open = rules.max_open
        self.share_sessions(self._principals)

    def share_sessions(self, principals: int) -> None:
        """Divide the sessions among this many principals."""
        self._principals = principals
        self._sessions_per_principal = max(1, self._max_sessions // principals)

    def is_at_limit(self, principal: str) -> bool:
        """True where this principal has as many requests open as it may."""
        return self._open.get(principal, 0) >= self._max_open

    def has_no_room(self, principal: str) -> bool:
        """True where no session can be opened, for anybody or for this principal."""
        is_full = self.session_count >= self._max_sessions
        return is_full or self._sessions.get(principal, 0) >= self._sessions_per_principal

    def count_session(self, principal: str, more: int) -> None:
        """A session is opened (1) or closed (-1)."""
        self.session_count += more
        _add(self._sessions, principal, more)

    def count_request(self, principal: str, more: int) -> None:
        """A request is opened (1) or complete (-1)."""
        _add(self._open, principal, more)

    def hold_request(self, x: int, principal: str) -> None:
        """A request waits here, and nothing of it is at the broker yet."""
        self._held[x] = principal
        self.count_request(principal, 1)

    def release_request(self, x: int) -> bool:
        """The request goes to the broker. False: its client has disconnected."""
        principal = self._held.pop(x, None)
        if principal is not None:
            self.count_request(principal, -1)
        return principal is not None

    def check(self, sessions: list[str], requests: list[str]) -> None:
        """Assert that the counts are those of the open ones, given by their principals."""
        assert self._sessions == Counter(sessions)
        assert self.session_count == len(sessions)
        assert self._open == Counter([*requests, *self._held.values()])


def _add(counts: dict[str, int], principal: str, more: int) -> None:
    count = counts.get(principal, 0) + more
    if count:
        counts[principal] = count
    else:
        del counts[principal]
