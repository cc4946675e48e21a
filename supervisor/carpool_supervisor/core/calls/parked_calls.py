"""Parked calls that give way: their agents stay away while others wait for an instance (rule 14).

A call of a stateless agent is parked while its agent is asked: its request is answered, and perhaps nobody
comes back. To the server it is open, so it holds the slot of a serial instance, or one of the places of any
other. `choose_parked_calls` decides which of them end, once somebody else has waited for a while; it is
a pure function. Owns also when it is asked: while calls wait in a pool that has open asks.

Invariant (`check`): a pool in whose queue calls wait, and for which asks are open, has a timer. Knows nothing
of: how a call ends (`dispatcher`), the content of asks, agents that are asked on an open connection.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from carpool_protocol.ids import CallId, PoolKey, SessionId, whole_of
from carpool_protocol.link.messages import Call
from carpool_supervisor.core.calls.queue_timeouts import QueueTimeouts
from carpool_supervisor.core.calls.server_requests import ServerAsks
from carpool_supervisor.core.model.lifecycle import InstanceState
from carpool_supervisor.core.model.pool import Calls, Instance, Pool, PoolCall, away_limit_s
from carpool_supervisor.core.model.pool_table import Pools
from carpool_supervisor.core.model.timer_kinds import SupervisorTimers


class ParkedCall(NamedTuple):
    """A parked call that holds what another call could use."""

    call: CallId
    turn: SessionId
    """Whose it is: the principal or session with whose turns its calls wait (`fair_queue`)."""
    since: float
    """The time since which its agent is asked."""


class Choice(NamedTuple):
    """What becomes of the parked calls of a pool."""

    calls: list[CallId]
    """Those that end now."""
    due_at: float | None
    """The time at which to choose again at the latest; None: nobody waits for one of them."""


def choose_parked_calls(
    parked: Iterable[ParkedCall],
    waiting: Mapping[SessionId, float],
    now: float,
    grace_s: float,
    *,
    coming: int = 0,
) -> Choice:
    """Choose the parked calls of a pool that end now. `waiting`: whose calls wait, and since when the longest
    of each. `coming`: instances that will take a waiting call without that.

    1. A call ends only for somebody else, who has waited for the grace.
    2. It ends only if its agent has been away for the grace.
    3. One ends for each that waits, less those for whom an instance is coming.
    4. First are the calls of whoever has most of them, and of these the one whose agent is away longest.
    """
    parked = sorted(parked, key=lambda each: each.since)
    patient = {turn for turn, since in waiting.items() if since + grace_s <= now}
    away = [each for each in parked if each.since + grace_s <= now]
    counts = Counter(each.turn for each in away)
    over: list[CallId] = []
    while away:
        needed = [each for each in away if len(patient - {each.turn}) > len(over) + coming]
        if not needed:
            break
        chosen = max(needed, key=lambda each: counts[each.turn])  # of equal ones the first
        away.remove(chosen)
        counts[chosen.turn] -= 1
        over.append(chosen.call)
    first_two = sorted((since, turn) for turn, since in waiting.items())[:2]
    due = [
        max(each.since, since) + grace_s for each in parked for since, turn in first_two if turn != each.turn
    ]
    if not due:
        return Choice(over, None)
    return Choice(over, min(due) if min(due) > now else now + grace_s)


class ParkedCallWatch:
    """When the parked calls of each pool are chosen from: while others wait."""

    def __init__(
        self, pools: Pools, asks: ServerAsks, queue_timeouts: QueueTimeouts, timers: SupervisorTimers
    ) -> None:
        self._pools = pools
        self._asks = asks
        self._queue_timeouts = queue_timeouts
        self._timers = timers.of("parked_calls")

    def watch(self, pool: Pool, now: float) -> None:
        """A call of this pool has begun to wait, or to ask: choose in time, unless that is due already."""
        if pool.key not in self._timers and self._is_watched(pool):
            self._timers.arm(pool.key, now, away_limit_s(pool.policy))

    def due(self, keys: Iterable[PoolKey], calls: Calls, now: float) -> list[CallId]:
        """Choose the parked calls of these pools that end now."""
        over: list[CallId] = []
        for key in keys:
            pool = self._pools.get(key)
            if pool is None or not self._is_watched(pool):
                continue
            grace_s = away_limit_s(pool.policy)
            due_at = None
            if not pool.paused:
                chosen = choose_parked_calls(
                    self._holding(pool, calls), self._waiting(pool, calls), now, grace_s, coming=_coming(pool)
                )
                over += chosen.calls
                due_at = chosen.due_at
            self._timers.arm(key, now, grace_s if due_at is None else due_at - now)
        return over

    def _is_watched(self, pool: Pool) -> bool:
        return bool(pool.queue) and any(self._asks.open_count(each) for each in pool.instances)

    def _waiting(self, pool: Pool, calls: Calls) -> dict[SessionId, float]:
        """Whose calls wait in this pool, and since when the longest of each."""
        found: dict[SessionId, float] = {}
        for session in pool.queue.sessions():
            turn = pool.queue.turn_of(session)
            since = self._queue_timeouts.waiting_since(calls[pool.queue.head(session)], pool)
            found[turn] = min(since, found.get(turn, since))
        return found

    def _holding(self, pool: Pool, calls: Calls) -> Sequence[ParkedCall]:
        """The parked calls of this pool whose end would let another call go."""
        waiting = [calls[pool.queue.head(each)].call for each in pool.queue.next_sessions()]
        return [
            ParkedCall(each.call.call, each.turn, since)
            for instance in pool.serving
            if not instance.blocked and not instance.suspended
            for each, since in self._asks.asked_since(instance).items()
            if each.call.can is not None and _holds(each, instance, waiting)
        ]

    def check(self) -> None:
        """Assert the invariant."""
        for pool in self._pools.values():
            assert pool.key in self._timers or not self._is_watched(pool), f"{pool.key} is not watched"


def _holds(parked: PoolCall, instance: Instance, waiting: Sequence[Call]) -> bool:
    pool = instance.pool
    if pool.mode == "session":  # a lease stays with its session; one of a part ends with its call
        return whole_of(parked.call.session) != parked.call.session
    has_slot = pool.mode == "serial" and not parked.awaits_retry
    return has_slot or any(not instance.fits(each) and instance.fits(each, freed=1) for each in waiting)


def _coming(pool: Pool) -> int:
    """The number of instances that start, or whose slot is held by calls that have ended."""
    starting = sum(
        each.state in (InstanceState.SPAWNING, InstanceState.GREETING) for each in pool.instances.values()
    )
    if pool.mode != "serial":
        return starting
    return starting + sum(
        any(call.can_ask and call.has_slot for call in each.abandoned.values())
        and not any(not call.awaits_retry for call in each.in_flight.values())
        for each in pool.serving
    )
