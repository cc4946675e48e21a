"""Idle deadlines that stand still: of a call whose agent is asked, and of one whose server is not read.

Owns when such a deadline stops (rules 8 and 14), that the server has its whole idle time again afterwards,
and that a call between two rounds goes on after the last answer.

Knows nothing of: what is asked, whose it is (`server_requests`), how long a call may take
(`call_timeouts`), why reading stops.
"""

from carpool_supervisor.core.calls.between_rounds import PendingRetries
from carpool_supervisor.core.calls.call_timeouts import CallTimeouts
from carpool_supervisor.core.model.pool import Instance, PoolCall


class PausedTimeouts:
    """Of all calls in flight."""

    def __init__(self, limits: CallTimeouts, later: PendingRetries) -> None:
        self._timeouts = limits
        self._retries = later

    def ask_opened(self, pool_call: PoolCall, now: float, *, in_round: bool) -> None:
        """One more ask of this call is open. The total deadline does not stand still."""
        pool_call.asks += 1
        if in_round:
            self._retries.await_retry(pool_call)
        self._timeouts.pause_idle(pool_call, now)

    def ask_closed(self, pool_call: PoolCall, now: float) -> None:
        """One less is, and the call goes on: after the last one the server has its whole idle time again."""
        pool_call.asks -= 1
        if not pool_call.asks:
            self._timeouts.restart_idle(pool_call, now)
            if pool_call.awaits_retry:
                self._retries.retry(pool_call)

    def reading_paused(self, instance: Instance, now: float) -> None:
        """Answers of this instance may lie in its pipe, unread."""
        for opened in instance.in_flight.values():
            self._timeouts.pause_idle(opened, now)

    def reading_resumed(self, instance: Instance, now: float) -> None:
        """It is read again."""
        for opened in instance.in_flight.values():
            self._timeouts.restart_idle(opened, now)

    def ask_refused(self, pool_call: PoolCall) -> None:
        """Something of its round was wanted in vain: it is said again, unless more of that is open."""
        if not pool_call.asks:
            self._retries.retry(pool_call)
