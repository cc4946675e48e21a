"""What agents with a profile may use: calls at once, calls in a minute, different servers.

Owns the account of each holder. A holder is a session; all sessions that came with one bearer token and have
the same profile are one, else an agent would have as much again by opening another session. An account lives
as long as one of its sessions, that of a token a minute longer than its last call, else an agent would have
as much again by ending its session. It begins anew at another broker.

Calls in a minute are a bucket: it holds as many as the bound says and fills evenly, so that after a pause all
of them may come at once.

Invariants (`check`): the account counts what its sessions have sent; sessions without a profile have none.
Knows nothing of: what the profile permits (`rights`), what is in line (`admission`).
"""

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from carpool_broker.core.bounds import Limits
from carpool_broker.core.session import Owed, Session
from carpool_protocol.ids import ServerName, SessionId

NO_LIMITS = Limits()
KEPT_S: Final = 60.0
"""By then all calls of a minute may come at once again, whoever they are of."""


class Excess(Struct, frozen=True):
    """Why a call is one too many."""

    fault: str
    detail: str
    retry_after_s: float | None = None


class Quota:
    """One account."""

    __slots__ = ("_at", "_called", "_left", "holder", "limits", "sent", "servers", "sessions")

    def __init__(self, holder: tuple[str, str], limits: Limits) -> None:
        self.holder = holder
        self.limits = limits
        self.sessions: dict[SessionId, Session] = {}
        """Whose calls wait is next in this order, the first one first."""
        self.sent = 0
        """Calls of all of them that are at servers."""
        self.servers: set[ServerName] = set()
        """What they have called."""
        self._left = float(limits.calls_per_minute or 0)
        self._at: float | None = None
        """When that was so; None: nothing was taken yet."""
        self._called = float("-inf")
        """When the last call came that was not one too many."""

    def limit(self, limits: Limits) -> None:
        """These bounds hold from now on."""
        if limits.calls_per_minute != self.limits.calls_per_minute:
            self._left, self._at = float(limits.calls_per_minute or 0), None
        self.limits = limits

    @property
    def has_room(self) -> bool:
        """Whether one more call may go to a server now."""
        most = self.limits.max_in_flight
        return most is None or self.sent < most

    def may_use(self, server: ServerName) -> bool:
        """Whether this server may be called: it was, or there is room for one more."""
        most = self.limits.max_servers
        return most is None or server in self.servers or len(self.servers) < most

    def excess(self, owed: Owed, now: float) -> Excess | None:
        """Why this call is one too many; None: it is not, and it counts from now on. What is about a task is
        part of the call that began it.
        """
        if owed.task:
            return None
        profile, limits = self.holder[1], self.limits
        if not self.may_use(owed.server):
            detail = f"The profile {profile} allows {limits.max_servers} of them."
            return Excess("too_many_servers", detail)
        retry_after_s = self.take(now)
        if retry_after_s:
            detail = f"The profile {profile} allows {limits.calls_per_minute}."
            return Excess("too_many_a_minute", detail, retry_after_s)
        self.servers.add(owed.server)
        self._called = now
        return None

    def take(self, now: float) -> float:
        """Take one call out of this minute's. 0: it is taken; else so many seconds until there is one."""
        most = self.limits.calls_per_minute
        if most is None:
            return 0.0
        per_s = most / 60.0
        if self._at is not None:
            self._left = min(float(most), self._left + max(now - self._at, 0.0) * per_s)
        self._at = now
        if self._left < 1.0:
            return (1.0 - self._left) / per_s
        self._left -= 1.0
        return 0.0

    def is_over(self, now: float) -> bool:
        """Whether nobody has it and nothing that was called counts any more."""
        return not self.sessions and now - self._called >= KEPT_S

    def last(self, session: Session) -> None:
        """It has had its turn."""
        self.sessions[session.id] = self.sessions.pop(session.id)


_SHARED: Final = "token "


class Quotas:
    """All accounts."""

    def __init__(self) -> None:
        self._quotas: dict[tuple[str, str], Quota] = {}
        """Those of tokens stay: there are no more of them than the configuration has tokens and profiles."""

    def enter(self, session: Session, profiles: Mapping[str, Limits], now: float) -> None:
        """A new session."""
        if not session.profile:
            return
        whose = f"{_SHARED}{session.principal}" if session.principal else f"session {session.id}"
        holder = (whose, session.profile)
        quota = self._quotas.get(holder)
        if quota is None or quota.is_over(now):
            quota = self._quotas[holder] = Quota(holder, profiles.get(session.profile, NO_LIMITS))
        quota.sessions[session.id] = session
        session.quota = quota

    def leave(self, session: Session) -> None:
        """It is over, and has no call any more."""
        quota = session.quota
        if quota is not None:
            del quota.sessions[session.id]
            if not quota.sessions and not session.principal:
                del self._quotas[quota.holder]

    def limit(self, profiles: Mapping[str, Limits]) -> None:
        """These bounds hold from now on."""
        for quota in self._quotas.values():
            quota.limit(profiles.get(quota.holder[1], NO_LIMITS))

    def check(self, sessions: Iterable[Session]) -> None:
        """Assert every invariant."""
        held: dict[SessionId, Session] = {}
        for holder, quota in self._quotas.items():
            assert quota.holder == holder
            assert quota.sessions or holder[0].startswith(_SHARED), "an account of nobody"
            assert quota.sent == sum(each.sent for each in quota.sessions.values()), "a call is not counted"
            assert all(each.quota is quota for each in quota.sessions.values())
            held |= quota.sessions
        assert held == {each.id: each for each in sessions if each.profile}
