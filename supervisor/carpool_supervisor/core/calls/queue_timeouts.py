"""The timeouts of queued calls, and the progress messages to their agents.

Owns the deadlines of waiting calls (`wait_s`) and the notices about them. An agent that asked for progress
hears of its place at once and every `NOTICE_S`. MCP (2025-11-25, basic/utilities/progress) requires
`progress` to increase with each notification of a token, and a server's own values start at 0 or above. So
carpool's values are the seconds left, negative, and rise towards 0.

Invariants (`check`): a call with notices has a limit; its values only increase. Knows nothing of: instances,
the order of the queue (`fair_queue`, `leases`).
"""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from carpool_protocol.ids import CallId, RawJson
from carpool_protocol.link.messages import CallProgressed
from carpool_supervisor.core.calls.leases import Leases
from carpool_supervisor.core.model.effects import AnyEffect
from carpool_supervisor.core.model.pool import Calls, Pool, PoolCall
from carpool_supervisor.core.model.pool_table import Pools
from carpool_supervisor.core.model.timer_kinds import SupervisorTimers

NOTICE_S: Final = 5.0
"""The interval of notices to a waiting agent."""


class QueueTimeouts:
    """The timeouts of all queued calls."""

    def __init__(
        self, pools: Pools, leases: Leases, timers: SupervisorTimers, out: Callable[[AnyEffect], None]
    ) -> None:
        self._pools = pools
        self._leases = leases
        self._emit = out
        self._limits = timers.of("queued_call")
        self._notices = timers.of("queue_notice")

    def __contains__(self, call: CallId) -> bool:
        return call in self._limits

    def __len__(self) -> int:
        return len(self._limits)

    def call_queued(self, pool_call: PoolCall, pool: Pool, now: float) -> None:
        """Arm the limit of a call that was just queued."""
        self._limits.arm(pool_call.call.call, now, pool.policy.wait_s)
        if pool_call.call.wants_progress:
            self._send_notice(pool_call, pool, now)

    def call_left_queue(self, call: CallId) -> None:
        """Disarm the limit of a call that has left the queue."""
        self._limits.disarm(call)
        self._notices.disarm(call)

    def waiting_since(self, pool_call: PoolCall, pool: Pool) -> float:
        """The time since which a queued call waits."""
        limit = self._limits.deadline_of(pool_call.call.call)
        assert limit is not None
        return limit - pool.policy.wait_s

    def send_notices(self, due: Iterable[CallId], calls: Calls, now: float) -> None:
        """Tell the agents of these calls again that they wait."""
        for call in due:
            opened = calls[call]
            self._send_notice(opened, self._pools[opened.call.key], now)

    def _send_notice(self, pool_call: PoolCall, pool: Pool, now: float) -> None:
        call = pool_call.call
        self._notices.arm(call.call, now, NOTICE_S)
        left_s = (self._limits.deadline_of(call.call) or now) - now
        if left_s <= 0 or (pool_call.announced_wait_s is not None and left_s >= pool_call.announced_wait_s):
            return  # it waits for the second time: the value must not decrease
        pool_call.announced_wait_s = left_s
        text = f"{self._reason(pool_call, pool)}, at most {left_s:.0f} s more."
        self._emit(
            CallProgressed(call.call, RawJson(msgspec.json.encode({"progress": -left_s, "message": text})))
        )

    def _reason(self, pool_call: PoolCall, pool: Pool) -> str:
        if pool.paused:
            return f"Waiting because an operator has paused {pool.server}"
        return f"Waiting for an instance of {pool.server}: {self._count_ahead(pool_call, pool)} ahead"

    def _count_ahead(self, pool_call: PoolCall, pool: Pool) -> str:
        session = pool_call.call.session
        if session in (line := self._leases.waiting_sessions(pool.key)):
            agents = line.index(session)
            return f"{agents} agent{'' if agents == 1 else 's'}"
        calls = pool.queue.count_ahead(session, pool_call.call.call)
        return f"{calls} call{'' if calls == 1 else 's'}"

    def check(self, calls: Calls) -> None:
        """Assert every invariant."""
        waiting = sum(1 for opened in calls.values() if opened.instance is None)
        assert len(self._limits) == waiting, "a limit of a call that does not wait"
        assert len(self._notices) <= waiting, "a notice to an agent that does not wait"

    def check_call(self, call: CallId, pool_call: PoolCall | None) -> None:
        """Assert that it waits with a limit and with notices, or has neither. `pool_call`: None once it is
        over.
        """
        if pool_call is None or pool_call.instance is not None:
            assert call not in self._limits, f"call {call} waits no more and has a limit"
            assert call not in self._notices, f"call {call} waits no more and is told that it does"
        else:
            assert call in self._limits, f"call {call} waits without a limit"
            if pool_call.call.wants_progress:
                assert call in self._notices, f"call {call} waits and is not told"
