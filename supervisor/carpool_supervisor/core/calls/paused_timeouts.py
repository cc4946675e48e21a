"""Idle deadlines that stand still: of a call whose agent is asked, and of one whose server is not read.

Owns when such a deadline stops (rules 8 and 14), that the server has its whole idle time again afterwards,
and that a call between two rounds goes on after the last answer.

Knows nothing of: what is asked, whose it is (`server_requests`), how long a call may take
(`call_timeouts`), why reading stops.
"""

from carpool_supervisor.core.calls.between_rounds import Later
from carpool_supervisor.core.calls.call_timeouts import Limits
from carpool_supervisor.core.model.pool import Instance, OpenCall


class Standstill:
    """Of all calls in flight."""

    def __init__(self, limits: Limits, later: Later) -> None:
        self._limits = limits
        self._later = later

    def ask_opened(self, opened: OpenCall, now: float, *, in_round: bool) -> None:
        """One more ask of this call is open. The total deadline does not stand still."""
        opened.asks += 1
        if in_round:
            self._later.rest(opened)
        self._limits.stand_still(opened, now)

    def ask_closed(self, opened: OpenCall, now: float) -> None:
        """One less is, and the call goes on: after the last one the server has its whole idle time again."""
        opened.asks -= 1
        if not opened.asks:
            self._limits.restart(opened, now)
            if opened.resting:
                self._later.again(opened)

    def reading_paused(self, instance: Instance, now: float) -> None:
        """Answers of this instance may lie in its pipe, unread."""
        for opened in instance.in_flight.values():
            self._limits.stand_still(opened, now)

    def reading_resumed(self, instance: Instance, now: float) -> None:
        """It is read again."""
        for opened in instance.in_flight.values():
            self._limits.restart(opened, now)

    def ask_refused(self, opened: OpenCall) -> None:
        """Something of its round was wanted in vain: it is said again, unless more of that is open."""
        if not opened.asks:
            self._later.again(opened)
