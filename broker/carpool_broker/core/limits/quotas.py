"""What agents with a profile may use: calls at once, calls in a minute, different servers.

Owns who has which account (`session.Quota`), and how long it lasts. A holder is a session; all sessions
that came with one bearer token and have the same profile are one, else an agent would have as much again by
opening another session. An account lives as long as one of its sessions, that of a token a minute longer
than its last call, else an agent would have as much again by ending its session. It begins anew at another
broker.

Invariants (`check`): the account counts what its sessions have sent; sessions without a profile have none.
Knows nothing of: what the profile permits (`compiled_profile`), what is in line (`admission`).
"""

from collections.abc import Iterable, Mapping
from typing import Final

from carpool_broker.core.model.bounds import ProfileLimits
from carpool_broker.core.model.session import Quota, Session
from carpool_protocol.ids import SessionId

NO_LIMITS = ProfileLimits()
_SHARED_PREFIX: Final = "token "


class Quotas:
    """All accounts."""

    def __init__(self) -> None:
        self._quotas: dict[tuple[str, str], Quota] = {}
        """Those of tokens stay: there are no more of them than the configuration has tokens and profiles."""

    def session_opened(self, session: Session, profiles: Mapping[str, ProfileLimits], now: float) -> None:
        """A new session."""
        if not session.profile:
            return
        whose = f"{_SHARED_PREFIX}{session.principal}" if session.principal else f"session {session.id}"
        holder = (whose, session.profile)
        quota = self._quotas.get(holder)
        if quota is None or quota.is_unused(now):
            quota = self._quotas[holder] = Quota(holder, profiles.get(session.profile, NO_LIMITS))
        quota.sessions[session.id] = session
        session.quota = quota

    def session_closed(self, session: Session) -> None:
        """It is over, and has no call any more."""
        quota = session.quota
        if quota is not None:
            del quota.sessions[session.id]
            if not quota.sessions and not session.principal:
                del self._quotas[quota.holder]

    def set_limits(self, profiles: Mapping[str, ProfileLimits]) -> None:
        """These bounds hold from now on."""
        for quota in self._quotas.values():
            quota.set_limits(profiles.get(quota.holder[1], NO_LIMITS))

    def check(self, sessions: Iterable[Session]) -> None:
        """Assert every invariant."""
        held: dict[SessionId, Session] = {}
        for holder, quota in self._quotas.items():
            assert quota.holder == holder
            assert quota.sessions or holder[0].startswith(_SHARED_PREFIX), "an account of nobody"
            assert quota.sent == sum(each.sent for each in quota.sessions.values()), "a call is not counted"
            assert all(each.quota is quota for each in quota.sessions.values())
            held |= quota.sessions
        assert held == {each.id: each for each in sessions if each.profile}
