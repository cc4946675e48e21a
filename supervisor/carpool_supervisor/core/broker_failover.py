"""Broker failover: decides what a broker that has just connected takes over.

Owns two cases. A new broker takes over from one that died: it gets the record, and calls, leases and asks
continue, except those of sessions that ended with their broker. The same broker that lost the link has ended
all its calls itself: they end here too, and sessions that live on are told what they lost. It gets the record
all the same, because that may hold calls of earlier brokers whose agents are not back yet.

Knows nothing of: the content and limits of the record (`call_record`).
"""

from collections.abc import Callable

from carpool_protocol.ids import CallId, SessionId
from carpool_supervisor.core.calls.call_record import CallRecord
from carpool_supervisor.core.calls.dispatcher import Dispatcher
from carpool_supervisor.core.calls.leases import Leases
from carpool_supervisor.core.calls.server_requests import ServerAsks
from carpool_supervisor.core.calls.task_holds import TaskHolds
from carpool_supervisor.core.model.effects import AnyEffect
from carpool_supervisor.core.model.pool_table import Pools
from carpool_supervisor.core.pools.targets import PoolTargets


class BrokerFailover:
    """The change from one broker to the next."""

    def __init__(
        self,
        record: CallRecord,
        dispatcher: Dispatcher,
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
        self._dispatcher = dispatcher
        self._asks = asks
        self._task_holds = held
        self._targets = targets
        self._leases = leases
        self._emit = out

    def broker_connected(self, now: float, *, same: bool) -> None:
        """A broker greeted. It gets the record before everything else."""
        if same:
            self._record.mark_open_cancelled()
        over = [] if same else self._record.end_unresumable()
        holders = [each for each in self._leases.state_holders() if each[0] not in over]
        for told in self._record.as_messages(holders, self._dispatcher.is_asked):
            self._emit(told)
        for session in over:
            self._end_session(session, now)
        self._task_holds.abandon_all(now)  # only the broker that is gone knew the owners of tasks
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
        """End a session that ended with its broker: release everything that it had."""
        for call in [call for call, each in self._dispatcher.calls.items() if each.call.session == session]:
            self._dispatcher.cancel_call(call, "the agent is gone", now)
        self._release_session(session, now)

    def session_closed(self, session: SessionId, now: float) -> None:
        """Release everything of a session whose agent is gone. Its calls were cancelled one by one before."""
        self._record.session_closed(session)
        self._release_session(session, now)

    def _release_session(self, session: SessionId, now: float) -> None:
        self._asks.session_closed(session, now)
        self._targets.session_closed(session, now)

    def resume_call(self, call: CallId) -> None:
        """The broker resumes a call of the record."""
        end = self._record.end_of_call(call)
        if end is not None:
            self._emit(end)
        else:
            self._dispatcher.announce_node(call)
            self._asks.announce_again(self._dispatcher.calls[call])
