"""Decides when a carpool that nobody uses may end (`idle_exit_s`).

Owns the time since which nobody has used it. Pure: time is a parameter.

Refuses to know: what counts as use, who started carpool, how it ends (the launcher ends only a carpool that
an agent has started).
"""


class IdleExit:
    """The idle time of one broker."""

    def __init__(self) -> None:
        self._idle_since: float | None = None

    def is_due(self, now: float, limit_s: float, *, is_used: bool) -> bool:
        """True if nobody has used carpool for `limit_s` (0: for ever). Must be called regularly."""
        if is_used or not limit_s:
            self._idle_since = None
            return False
        if self._idle_since is None:
            self._idle_since = now
        return now - self._idle_since >= limit_s
