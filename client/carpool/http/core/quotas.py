"""PrincipalQuotas of the HTTP door: how many sessions and requests each principal has open.

Owns the counts. A request that waits here before it goes to the broker counts as an open one. One whose
client has gone without a cancel counts until it is answered: its call runs. Sessions are shared out among
principals, so that none takes all.

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

    def has_room_for(self, principal: str, requests: int) -> bool:
        """True where this principal may open so many requests more."""
        return self._open.get(principal, 0) + requests <= self._max_open

    def has_no_room(self, principal: str) -> bool:
        """True where no session can be opened, for anybody or for this principal."""
        is_full = self.session_count >= self._max_sessions
        return is_full or self._sessions.get(principal, 0) >= self._sessions_per_principal

    def count_session(self, principal: str, more: int) -> None:
        """A session is opened (1) or closed (-1)."""
        self.session_count += more
        count = self._sessions.get(principal, 0) + more
        if count:
            self._sessions[principal] = count
        else:
            del self._sessions[principal]

    def count_request(self, principal: str, more: int) -> None:
        """Requests are opened, or complete (negative)."""
        count = self._open.get(principal, 0) + more
        if count:
            self._open[principal] = count
        else:
            del self._open[principal]

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

    def check(self, sessions: list[str], requests: Counter[str]) -> None:
        """Assert that the counts are those of the open ones, given by their principals."""
        assert self._sessions == Counter(sessions)
        assert self.session_count == len(sessions)
        assert self._open == +(requests + Counter(self._held.values()))
