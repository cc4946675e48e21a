"""PrincipalQuotas of the HTTP door: how many sessions and requests each principal has open.

Owns the counts, and the requests that wait here before they go to the broker. Such a request counts as an
open one, and its bytes in a budget that principals share; it is forgotten at once when its client goes. One
whose client has gone without a cancel after it was sent counts until it is answered: its call runs. Sessions
are shared out among principals, so that none takes all.

Knows nothing of: what is asked, what a request waits for, streams, refusals.
"""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from carpool.http.core.effects import HttpRules
from carpool.http.core.pending import MAX_WAITING_BYTES
from carpool.http.core.shared_budgets import SharedBudget


class _HeldRequest(NamedTuple):
    """A request that waits here: whose it is, the bytes that are kept for it, and how it goes on."""

    principal: str
    size: int
    go_on: Callable[[float], None] | None


class PrincipalQuotas:
    """Open sessions and open requests, by principal."""

    def __init__(self, rules: HttpRules) -> None:
        self._principals = 1
        self.set_rules(rules)
        self._sessions: dict[str, int] = {}
        self._open: dict[str, int] = {}
        self._held: dict[int, _HeldRequest] = {}
        """HTTP requests that wait before they go to the broker."""
        self._held_bytes = SharedBudget(MAX_WAITING_BYTES)
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

    def hold_request(
        self, x: int, principal: str, size: int = 0, go_on: Callable[[float], None] | None = None
    ) -> bool:
        """Let a request wait here: nothing of it is at the broker yet. `size`: the bytes that are kept for
        it. `go_on`: what `resume_request` calls. Returns False if there is no room for these bytes.
        """
        if size and not self._held_bytes.share_of(principal).reserve(size):
            return False
        self._held[x] = _HeldRequest(principal, size, go_on)
        self.count_request(principal, 1)
        return True

    def release_request(self, x: int) -> bool:
        """The request waits no longer. Returns False if its client has disconnected."""
        return self._take_held(x) is not None

    def resume_request(self, x: int, now: float) -> None:
        """Let the request go on, unless its client has disconnected."""
        held = self._take_held(x)
        if held is not None and held.go_on is not None:
            held.go_on(now)

    def _take_held(self, x: int) -> _HeldRequest | None:
        held = self._held.pop(x, None)
        if held is not None:
            self._held_bytes.share_of(held.principal).release(held.size)
            self.count_request(held.principal, -1)
        return held

    def check(self, sessions: list[str], requests: Counter[str]) -> None:
        """Assert that the counts are those of the open ones, given by their principals."""
        assert self._sessions == Counter(sessions)
        assert self.session_count == len(sessions)
        assert self._open == +(requests + Counter(each.principal for each in self._held.values()))
        sizes: Counter[str] = Counter()
        for each in self._held.values():
            sizes[each.principal] += each.size
        self._held_bytes.check(sizes)
