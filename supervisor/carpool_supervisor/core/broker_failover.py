"""A broker comes: what goes on for it, and what is over.

Owns the difference between two cases. Another broker takes over what one that died has begun: it is told
the record, and calls, leases and questions go on, but for those of sessions that end with their broker. The
same broker that lost touch has ended all its calls by itself and wants none of them: they end here as well,
and sessions that live on are told what they lost. The record is told all the same: it may hold calls of
brokers before, whose agents are not back yet.

Knows nothing of: what is remembered and how long (`call_record`).
"""

from collections.abc import Callable

from carpool_protocol.ids import CallId, SessionId
from carpool_supervisor.core.calls.call_record import CallRecord
from carpool_supervisor.core.calls.dispatcher import Dispatcher
from carpool_supervisor.core.calls.leases import Leases
from carpool_supervisor.core.calls.server_requests import ServerAsks
from carpool_supervisor.core.calls.task_holds import TaskHolds
from carpool_supervisor.core.model.effects import AnyEffect
from carpool_supervisor.core.model.pool import Pools
from carpool_supervisor.core.pools.targets import PoolTargets


class BrokerFailover:
    """From one broker to the next."""

    def __init__(
        self,
        record: CallRecord,
        desk: Dispatcher,
        asks: ServerAsks,
        held: TaskHolds,
        *,
        pools: Pools,
        targets: PoolTargets,
        leases: Leases,
        out: Callable[[AnyEffect], None],
    ) -> None:
        self._pools = pools
        self._record = record
        self._dispatcher = desk
        self._asks = asks
        self._task_holds = held
        self._targets = targets
        self._leases = leases
        self._emit = out

    def broker_connected(self, now: float, *, same: bool) -> None:
        """One greeted. What it is told of the record comes before everything else."""
        if same:
            self._record.mark_open_cancelled()
        over = [] if same else self._record.end_unresumable()
        holders = [each for each in self._leases.holders() if each[0] not in over]
        for told in self._record.as_messages(holders, self._dispatcher.is_asked):
            self._emit(told)
        for session in over:
            self._end_session(session, now)
        self._task_holds.abandon_all(now)  # whose a task is, nobody knows but the broker that is gone
        if same:
            self._asks.abandon_all(now)
            self._dispatcher.abandon_all(now)
            self._targets.sessions_unknown(now)
        self._asks.broker_connected()
        for pool in self._pools.values():
            pool.announced = None
            pool.is_catalog_sent = False
            pool.is_level_stale = pool.are_uris_stale = not same
            pool.operations.clear()

    def _end_session(self, session: SessionId, now: float) -> None:
        """It has ended with its broker: what it had is free at once."""
        for call in [call for call, each in self._dispatcher.calls.items() if each.call.session == session]:
            self._dispatcher.cancel_call(call, "the agent is gone", now)
        self._release_session(session, now)

    def session_closed(self, session: SessionId, now: float) -> None:
        """An agent is gone, and its calls are cancelled."""
        self._record.session_closed(session)
        self._release_session(session, now)

    def _release_session(self, session: SessionId, now: float) -> None:
        self._asks.session_closed(session, now)
        self._targets.session_closed(session, now)

    def resume_call(self, call: CallId) -> None:
        """A call of the record is wanted again."""
        end = self._record.end_of_call(call)
        if end is not None:
            self._emit(end)
        else:
            self._asks.announce_again(self._dispatcher.calls[call])
