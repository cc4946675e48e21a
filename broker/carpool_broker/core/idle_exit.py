"""Decides when an idle carpool may end (`idle_exit_s`).

Owns what counts as use, and since when there was none. Pure: time is a parameter.

Refuses to know: who started carpool, how it ends (the launcher ends only a carpool that an agent started).
"""


class IdleExit:
    """The idle time of one broker."""

    def __init__(self) -> None:
        self._idle_since: float | None = None

    def is_due(
        self,
        now: float,
        limit_s: float,
        *,
        agents: int,
        awaits_sessions: bool,
        has_http_door: bool,
        keeps_servers: bool,
    ) -> bool:
        """True if nobody has used carpool for `limit_s` (0: for ever). Must be called regularly.

        In use: `agents` have sessions, or some of an earlier broker may come back (`awaits_sessions`). Agents
        over HTTP cannot start carpool again (`has_http_door`), and some servers run without agents
        (`keeps_servers`): such a carpool is in use, too.
        """
        if not limit_s or agents or awaits_sessions or has_http_door or keeps_servers:
            self._idle_since = None
            return False
        if self._idle_since is None:
            self._idle_since = now
        return now - self._idle_since >= limit_s
