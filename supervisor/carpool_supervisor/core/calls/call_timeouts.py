"""How long a call may run.

Owns the two limits of every call in flight: without progress (`timeout_s`, from the server's last output
about it) and in all (`total_at`). One of them is armed, the first that the call can reach: most calls never
reach the second and need no second deadline. Owns also when the first one stops: while the agent is asked
and while the instance is not read only the second counts, and afterwards the server has its whole idle time
again (docs/rules.md, rules 8 and 14). A call between two rounds goes on after the last answer.

Invariants (`check`): a call in flight has exactly one deadline, any other call has none. Knows nothing of:
lines, what is asked and of whom (`server_requests`), why reading stops, how a call ends whose time is over.
"""

from carpool_protocol.ids import CallId
from carpool_supervisor.core.calls.between_rounds import PendingRetries
from carpool_supervisor.core.model.pool import Calls, Instance, PoolCall
from carpool_supervisor.core.model.timer_kinds import SupervisorTimers


class CallTimeouts:
    """The limits of all calls in flight."""

    def __init__(self, timers: SupervisorTimers) -> None:
        self._idle = timers.of("idle_call")
        self._total = timers.of("running_call")

    def __len__(self) -> int:
        return len(self._idle) + len(self._total)

    def call_started(self, pool_call: PoolCall, max_total_s: float, now: float) -> None:
        """This call is written."""
        pool_call.total_at = now + max_total_s
        if pool_call.timeout_s <= max_total_s and not pool_call.is_idle_paused:
            # The total limit cannot be reached without progress.
            self._idle.arm(pool_call.call.call, now, pool_call.timeout_s)
        else:
            self._total.arm(pool_call.call.call, now, max_total_s)

    def restart_idle(self, pool_call: PoolCall, now: float) -> None:
        """There was a word of it: it may be silent for its whole time again, until the total limit comes
        first. Nothing changes while its time stands still.
        """
        if pool_call.is_idle_paused:
            return
        call = pool_call.call.call
        if now + pool_call.timeout_s <= pool_call.total_at:
            self._total.disarm(call)
            self._idle.arm(call, now, pool_call.timeout_s)
        elif self._idle.disarm(call):
            self._total.arm(call, now, pool_call.total_at - now)

    def pause_idle(self, pool_call: PoolCall, now: float) -> None:
        """Its silence does not count from here on; `restart` ends that."""
        if self._idle.disarm(pool_call.call.call):
            self._total.arm(pool_call.call.call, now, pool_call.total_at - now)

    def call_ended(self, call: CallId) -> None:
        """It runs no more."""
        if not self._idle.disarm(call):
            self._total.disarm(call)

    def check_call(self, call: CallId, pool_call: PoolCall | None) -> None:
        """Assert that it has one deadline while it runs, else none. `pool_call`: None once it is over."""
        runs = pool_call is not None and pool_call.instance is not None
        assert (call in self._idle) + (call in self._total) == runs, f"call {call} has not one deadline"

    def check(self, calls: Calls) -> None:
        """Assert every invariant."""
        in_flight = sum(1 for opened in calls.values() if opened.instance is not None)
        assert len(self) == in_flight, "a deadline of a call that is over"


class PausedTimeouts:
    """The idle limits that stand still, of all calls in flight."""

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
