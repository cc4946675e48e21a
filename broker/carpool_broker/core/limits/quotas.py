"""Quotas of profiles: calls at once, calls per minute, and different servers.

Owns which session has which quota (`session.Quota`), and how long a quota lives. A session with a profile
has a quota of its own. Sessions with one bearer token and one profile share a quota; otherwise an agent
would get a new one by opening another session. A quota lives as long as one of its sessions; that of a token
lives one minute longer than its last call, so that an agent gets no new one by closing its session. Another
broker begins with new quotas.

Invariants (`check`): a quota counts the calls that its sessions have sent, and knows which of them have
queued calls; sessions without a profile have none. Refuses to know: what the profile permits
(`compiled_profile`), which calls are queued (`admission`).
"""

from collections.abc import Iterable, Mapping
from typing import Final

from carpool_broker.core.model.bounds import ProfileLimits
from carpool_broker.core.model.session import Quota, Session
from carpool_protocol.ids import SessionId

NO_LIMITS = ProfileLimits()
_SHARED_PREFIX: Final = "token "


class Quotas:
    """The quotas of all sessions."""

    def __init__(self) -> None:
        self._quotas: dict[tuple[str, str], Quota] = {}
        """Quotas by holder. Those of tokens stay: there are at most as many as tokens and profiles in the
        configuration.
        """

    def session_opened(self, session: Session, profiles: Mapping[str, ProfileLimits], now: float) -> None:
        """A session was opened: give it a quota if its profile has limits."""
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
        """The session was closed, after all its calls."""
        quota = session.quota
        if quota is not None:
            del quota.sessions[session.id]
            if not quota.sessions and not session.principal:
                del self._quotas[quota.holder]

    def set_limits(self, profiles: Mapping[str, ProfileLimits]) -> None:
        """These limits hold from now on."""
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
            assert quota.queued == {each.id: each for each in quota.sessions.values() if each.waiting}
            held |= quota.sessions
        assert held == {each.id: each for each in sessions if each.profile}
