"""The idle and total timeouts of calls in flight.

Owns the two limits of each call: without progress (`timeout_s`, since the server's last message about it) and
in all (`total_at`). Only the limit that can be reached first is armed: most calls never reach the second and
need no second timer. The idle timeout is paused while the agent is asked and while the instance is not read;
afterwards the server has its full idle time again (docs/rules.md, rules 8 and 14). A call between two rounds
continues after the last answer.

Invariants (`check`): a call in flight has exactly one deadline, any other call has none. Knows nothing of:
queues, the content of asks (`server_requests`), why reading stops, the end of a call that timed out.
"""

from carpool_protocol.ids import CallId
from carpool_supervisor.core.calls.between_rounds import PendingRetries
from carpool_supervisor.core.model.pool import Calls, Instance, PoolCall
from carpool_supervisor.core.model.timer_kinds import SupervisorTimers


class CallTimeouts:
    """The timeouts of all calls in flight."""

    def __init__(self, timers: SupervisorTimers) -> None:
        self._idle = timers.of("idle_call")
        self._total = timers.of("running_call")

    def __len__(self) -> int:
        return len(self._idle) + len(self._total)

    def call_started(self, pool_call: PoolCall, max_total_s: float, now: float) -> None:
        """Arm the limit of a call that was just written."""
        pool_call.total_at = now + max_total_s
        if pool_call.timeout_s <= max_total_s and not pool_call.is_idle_paused:
            # The total limit cannot be reached without progress.
            self._idle.arm(pool_call.call.call, now, pool_call.timeout_s)
        else:
            self._total.arm(pool_call.call.call, now, max_total_s)

    def restart_idle(self, pool_call: PoolCall, now: float) -> None:
        """The server sent a message about the call: its idle time starts again, unless the total limit comes
        first. Changes nothing while the idle timeout is paused.
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
        """Stop counting its silence; `restart_idle` continues."""
        if self._idle.disarm(pool_call.call.call):
            self._total.arm(pool_call.call.call, now, pool_call.total_at - now)

    def call_ended(self, call: CallId) -> None:
        """Disarm the limit of a call that has ended."""
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
    """The paused idle timeouts of all calls in flight."""

    def __init__(self, timeouts: CallTimeouts, retries: PendingRetries) -> None:
        self._timeouts = timeouts
        self._retries = retries

    def ask_opened(self, pool_call: PoolCall, now: float, *, in_round: bool) -> None:
        """The call has one more open ask. The total timeout continues."""
        pool_call.asks += 1
        if in_round:
            self._retries.await_retry(pool_call)
        self._timeouts.pause_idle(pool_call, now)

    def ask_closed(self, pool_call: PoolCall, now: float) -> None:
        """The call has one open ask less. After the last one the server has its full idle time again."""
        pool_call.asks -= 1
        if not pool_call.asks:
            self._timeouts.restart_idle(pool_call, now)
            if pool_call.awaits_retry:
                self._retries.retry(pool_call)

    def reading_paused(self, instance: Instance, now: float) -> None:
        """Pause its calls: answers of this instance may lie unread in its pipe."""
        for opened in instance.in_flight.values():
            self._timeouts.pause_idle(opened, now)

    def reading_resumed(self, instance: Instance, now: float) -> None:
        """Restart the idle timeouts of its calls."""
        for opened in instance.in_flight.values():
            self._timeouts.restart_idle(opened, now)

    def ask_refused(self, pool_call: PoolCall) -> None:
        """A required input was refused: the call is sent again, unless other asks are open."""
        if not pool_call.asks:
            self._retries.retry(pool_call)
