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
from carpool_supervisor.core.calls.call_record import Record
from carpool_supervisor.core.calls.dispatcher import Desk
from carpool_supervisor.core.calls.leases import Leases
from carpool_supervisor.core.calls.server_requests import Asks
from carpool_supervisor.core.calls.task_holds import Held
from carpool_supervisor.core.model.effects import AnyEffect
from carpool_supervisor.core.model.pool import Pools
from carpool_supervisor.core.pools.targets import Wishes


class Handover:
    """From one broker to the next."""

    def __init__(
        self,
        record: Record,
        desk: Desk,
        asks: Asks,
        held: Held,
        *,
        pools: Pools,
        wishes: Wishes,
        leases: Leases,
        out: Callable[[AnyEffect], None],
    ) -> None:
        self._pools = pools
        self._record = record
        self._desk = desk
        self._asks = asks
        self._held = held
        self._wishes = wishes
        self._leases = leases
        self._out = out

    def broker_came(self, now: float, *, same: bool) -> None:
        """One greeted. What it is told of the record comes before everything else."""
        if same:
            self._record.cut_off()
        over = [] if same else self._record.end_fleeting()
        holders = [each for each in self._leases.holders() if each[0] not in over]
        for told in self._record.told(holders, self._desk.is_asked):
            self._out(told)
        for session in over:
            self._end(session, now)
        self._held.abandon_all(now)  # whose a task is, nobody knows but the broker that is gone
        if same:
            self._asks.abandon_all(now)
            self._desk.abandon_all(now)
            self._wishes.lost_touch(now)
        self._asks.broker_came()
        for pool in self._pools.values():
            pool.said = None
            pool.catalog_said = False
            pool.old_level = pool.old_uris = not same
            pool.operations.clear()

    def _end(self, session: SessionId, now: float) -> None:
        """It has ended with its broker: what it had is free at once."""
        for call in [call for call, each in self._desk.calls.items() if each.call.session == session]:
            self._desk.cancel(call, "the agent is gone", now)
        self._let_go(session, now)

    def session_gone(self, session: SessionId, now: float) -> None:
        """An agent is gone, and its calls are cancelled."""
        self._record.forget_session(session)
        self._let_go(session, now)

    def _let_go(self, session: SessionId, now: float) -> None:
        self._asks.session_gone(session, now)
        self._wishes.session_gone(session, now)

    def resume(self, call: CallId) -> None:
        """A call of the record is wanted again."""
        end = self._record.resumed(call)
        if end is not None:
            self._out(end)
        else:
            self._asks.say_again(self._desk.calls[call])
