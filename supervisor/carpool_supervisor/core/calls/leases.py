"""Leases: which session holds which instance, waits for one, or lost one involuntarily.

A lease is a session's exclusive hold on an instance of a pool in mode `session` (rules 14 and 15). A session
holds at most one instance of a server, whichever of the server's pools it calls. A lease ends with its
session, or after `idle_s` without a call; it has no total limit. An instance that was leased is ended and
never leased again, because no MCP method resets a server. A used lease that ends without its session leaves a
loss: the next call of that session to that server does not run but gets `LeaseLost`, once, and so do all
calls that its agent sent before it could know (`told_losses`). So losses are checked right before each call
is written, even for a call that has waited. A lease of a replaced pool lasts as long as its instance drains.
A loss belongs to a server, not to one of its pools: whichever pool serves the session's next call reports it,
however often the configuration has changed.

Invariants (`check`): an instance has at most one holder and a session at most one instance of a server; no
session waits for a server of which it holds an instance; a pool with waiting sessions has no spare; exactly
the leases without calls in flight have an idle deadline. Knows nothing of: processes, calls (except the
number in flight), clocks. Returns decisions as values. Decision: docs/decisions/0010.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable
from typing import Final

from msgspec import Struct

from carpool_protocol.ids import InstanceId, PoolKey, ServerName, SessionId
from carpool_protocol.link.messages import Call
from carpool_supervisor.core.calls.told_losses import ToldLosses
from carpool_supervisor.core.model.loss_causes import LossCause
from carpool_supervisor.core.model.timer_kinds import SupervisorTimers

IDLE_S: Final = 1800.0


class LeaseHeld(Struct, frozen=True):
    """The session's calls run on this instance."""

    instance: InstanceId
    fresh: bool
    """The lease has just begun."""


class LeaseLost(Struct, frozen=True):
    """Answer this one call `state_lost` (not delivered); the next one gets a fresh instance."""

    cause: LossCause
    is_news: bool = False
    """The session has not heard of this loss: its calls that wait elsewhere must hear of it too."""


class LeaseQueued(Struct, frozen=True):
    """No instance is free: the call waits, and the pool should grow."""

    is_new: bool = True
    """The session has not waited before this call."""


class LeaseEnded(Struct, frozen=True):
    """This lease is over: end its instance."""

    instance: InstanceId
    session: SessionId
    pool: PoolKey


class _Lease:
    __slots__ = ("in_flight", "instance", "pool", "server", "session", "used")

    def __init__(self, instance: InstanceId, pool: PoolKey, server: ServerName, session: SessionId) -> None:
        self.instance = instance
        self.pool = pool
        self.server = server
        self.session = session
        self.in_flight = 0
        self.used = False
        """A call ran on it, so there may be state to lose."""


class Leases:
    """All leases of one supervisor."""

    def __init__(self, timers: SupervisorTimers) -> None:
        self._limits: dict[PoolKey, float] = {}
        """The longest time without a call for leases of this pool, in seconds."""
        self._stateless: set[PoolKey] = set()
        """Pools whose leases lose nothing when they end."""
        self._by_instance: dict[InstanceId, _Lease] = {}
        self._held: dict[tuple[SessionId, ServerName], _Lease] = {}
        self._spares: dict[PoolKey, OrderedDict[InstanceId, None]] = {}
        self._pool_of_spare: dict[InstanceId, PoolKey] = {}
        self._waiting: dict[PoolKey, OrderedDict[SessionId, None]] = {}
        self._servers: dict[PoolKey, ServerName] = {}
        """The server of each pool."""
        self._lost: dict[tuple[SessionId, ServerName], LossCause] = {}
        self.told_losses: ToldLosses[LossCause] = ToldLosses()
        """Losses that were told, and the calls that must hear of them too."""
        self.idle_timers = timers.of("idle_lease")

    def pool_wanted(
        self, pool: PoolKey, server: ServerName, idle_s: float = IDLE_S, *, keeps_state: bool = True
    ) -> None:
        """This pool of this server may lease instances; from now on its leases end after this time without a
        call. `keeps_state`: False if the end of a lease loses nothing.
        """
        self._servers[pool] = server
        self._limits[pool] = idle_s
        (self._stateless.discard if keeps_state else self._stateless.add)(pool)

    # --- a session needs an instance -------------------------------------------------------------------

    def acquire(self, session: SessionId, pool: PoolKey, now: float) -> LeaseHeld | LeaseLost | LeaseQueued:
        """A call of this session needs an instance. A session that waits keeps its place if this is
        repeated.
        """
        server = self._servers[pool]
        loss = self.take_loss(session, server)
        if loss is not None:
            return loss
        lease = self._held.get((session, server))
        if lease is not None:
            return LeaseHeld(lease.instance, fresh=False)
        spares = self._spares.get(pool)
        if spares:
            instance, _ = spares.popitem(last=False)
            del self._pool_of_spare[instance]
            self._begin(instance, pool, session, now)
            return LeaseHeld(instance, fresh=True)
        waiting = self._waiting.setdefault(pool, OrderedDict())
        is_new = session not in waiting
        waiting[session] = None
        return LeaseQueued(is_new)

    def take_loss(self, session: SessionId, server: ServerName) -> LeaseLost | None:
        """Take the untold loss of this session at this server, if there is one."""
        cause = self._lost.pop((session, server), None)
        return None if cause is None else LeaseLost(cause, is_news=True)

    def loss_reported_by_server(self, call: Call, server: ServerName) -> None:
        """Carpool's own bridge answered this call that its server no longer knows the session."""
        if self.told_losses.cause_for_call(call, server) is None:
            self.told_losses.loss_told(call, server, "remote")
        else:
            self.told_losses.add_call(call, server)

    def stop_waiting(self, session: SessionId, pool: PoolKey) -> None:
        """The last waiting call of the session has ended."""
        line = self._waiting.get(pool)
        if line is not None:
            line.pop(session, None)
            if not line:
                del self._waiting[pool]

    def call_started(self, instance: InstanceId) -> None:
        """A call was written to the instance. No lease is idle while a call is in flight."""
        lease = self._by_instance.get(instance)
        if lease is not None:
            lease.in_flight += 1
            lease.used = True
            self.idle_timers.disarm(instance)

    def call_ended(self, instance: InstanceId, now: float) -> None:
        """A call has ended for its agent. (Counting as rule 5 does would be wrong: a conforming server never
        answers a cancelled call, so one cancel would make a lease last for ever.)
        """
        lease = self._by_instance.get(instance)
        if lease is not None and lease.in_flight:
            lease.in_flight -= 1
            if not lease.in_flight:
                self._arm(lease, now)

    # --- an instance is fit ----------------------------------------------------------------------------

    def instance_offered(self, instance: InstanceId, pool: PoolKey, now: float) -> SessionId | None:
        """An unused instance is fit: lease it to the session that has waited longest, or keep it as a spare.
        The waiting calls of the returned session must be placed again.
        """
        if instance in self._by_instance or instance in self._pool_of_spare:
            return None
        line = self._waiting.get(pool)
        if not line:
            self._spares.setdefault(pool, OrderedDict())[instance] = None
            self._pool_of_spare[instance] = pool
            return None
        session = next(iter(line))
        self._begin(instance, pool, session, now)
        return session

    def _begin(self, instance: InstanceId, pool: PoolKey, session: SessionId, now: float) -> None:
        server = self._servers[pool]
        for each in [each for each in self._waiting if self._servers[each] == server]:
            self.stop_waiting(session, each)
        lease = _Lease(instance, pool, server, session)
        self._by_instance[instance] = lease
        self._held[session, server] = lease
        self._arm(lease, now)

    def _arm(self, lease: _Lease, now: float) -> None:
        self.idle_timers.arm(lease.instance, now, self._limits[lease.pool])

    # --- a lease ends ----------------------------------------------------------------------------------

    def session_closed(self, session: SessionId) -> list[LeaseEnded]:
        """The session has ended, and with it its leases, losses and places in queues."""
        for pool in [pool for pool, line in self._waiting.items() if session in line]:
            self.stop_waiting(session, pool)
        for key in [key for key in self._lost if key[0] == session]:
            del self._lost[key]
        self.told_losses.session_closed(session)
        return [self._end(lease) for lease in self._of_session(session)]

    def sessions(self) -> set[SessionId]:
        """All sessions that hold, have lost or wait for an instance."""
        known = {session for session, _ in (*self._held, *self._lost)}
        return known.union(self.told_losses.sessions(), *self._waiting.values())

    def holders(self) -> set[tuple[SessionId, ServerName]]:
        """All sessions that hold an instance of a server, or must be told that one is lost."""
        return {*self._held, *self._lost}

    def state_holders(self) -> set[tuple[SessionId, ServerName]]:
        """The same without those that lose nothing with their instance."""
        with_state = {key for key, lease in self._held.items() if lease.pool not in self._stateless}
        return with_state | self._lost.keys()

    def all_lost(self, cause: LossCause) -> list[LeaseEnded]:
        """End all leases: the sessions live on, but it is unknown which."""
        return [
            ended
            for each in list(self._by_instance)
            if (ended := self.instance_lost(each, cause)) is not None
        ]

    def mark_unused(self, instance: InstanceId) -> None:
        """No call that began was delivered, so there is no state to lose."""
        lease = self._by_instance.get(instance)
        if lease is not None:
            lease.used = False

    def instance_lost(self, instance: InstanceId, cause: LossCause) -> LeaseEnded | None:
        """The instance has died or must end. Returns None if no session held it (a spare is forgotten)."""
        lease = self._by_instance.get(instance)
        if lease is not None:
            if lease.used and lease.pool not in self._stateless:
                self._lost[lease.session, lease.server] = cause
            return self._end(lease)
        spare_of = self._pool_of_spare.pop(instance, None)
        if spare_of is not None:
            del self._spares[spare_of][instance]
            if not self._spares[spare_of]:
                del self._spares[spare_of]
        return None

    def loss_reported_by_broker(self, session: SessionId, server: ServerName, cause: LossCause) -> None:
        """The broker reports the loss of a lease that this supervisor does not have."""
        self._lost[session, server] = cause

    def withdraw_pool(self, pool: PoolKey) -> None:
        """The pool leases no instances any more: its spares become ordinary instances, and no session waits
        for a lease.
        """
        self._waiting.pop(pool, None)
        for instance in self._spares.pop(pool, ()):
            del self._pool_of_spare[instance]

    def pool_removed(self, pool: PoolKey) -> list[LeaseEnded]:
        """The server is no longer configured: its leases end. If it returns, sessions that lost one are told
        so.
        """
        self.withdraw_pool(pool)
        over = [
            self.instance_lost(lease.instance, "reload")
            for lease in list(self._held.values())
            if lease.pool == pool
        ]
        return [ended for ended in over if ended is not None]

    def pool_gone(self, pool: PoolKey) -> list[LeaseEnded]:
        """The pool is gone; only the losses of sessions remain."""
        over = self.pool_removed(pool)
        self._limits.pop(pool, None)
        self._servers.pop(pool, None)
        return over

    def end_idle(self, instances: Iterable[InstanceId]) -> list[LeaseEnded]:
        """End the leases of these instances, which were idle for too long."""
        over = [self.instance_lost(instance, "idle") for instance in instances]
        return [ended for ended in over if ended is not None]

    def pick_victim(self, waiting: Collection[SessionId]) -> InstanceId | None:
        """The lease to end first at the process cap (`instance_lost` with cause `needed`). Among the sessions
        that wait for an instance of any pool and hold one without calls in flight, the longest idle. So two
        sessions cannot wait for each other's instance for ever.
        """
        idle = [
            (self.idle_timers.deadline_of(lease.instance) or 0.0, lease.instance)
            for lease in self._by_instance.values()
            if lease.session in waiting and not lease.in_flight
        ]
        return min(idle)[1] if idle else None

    def is_busy(self, instance: InstanceId) -> bool:
        """True if a call of its holder is in flight on it."""
        lease = self._by_instance.get(instance)
        return lease is not None and lease.in_flight > 0

    def _end(self, lease: _Lease) -> LeaseEnded:
        del self._by_instance[lease.instance]
        del self._held[lease.session, lease.server]
        self.idle_timers.disarm(lease.instance)
        return LeaseEnded(lease.instance, lease.session, lease.pool)

    # --- queries ---------------------------------------------------------------------------------------

    def is_used(self, instance: InstanceId) -> bool:
        """True if a session holds it and has called it."""
        lease = self._by_instance.get(instance)
        return lease is not None and lease.used

    def holder(self, instance: InstanceId) -> SessionId | None:
        """The session that holds it; None for a spare and for an unknown instance."""
        lease = self._by_instance.get(instance)
        return None if lease is None else lease.session

    def held_instance(self, session: SessionId, server: ServerName) -> tuple[PoolKey, InstanceId] | None:
        """The instance of this server that this session holds, with its pool."""
        lease = self._held.get((session, server))
        return None if lease is None else (lease.pool, lease.instance)

    @property
    def any_lost(self) -> bool:
        """True if any session must be told of a loss."""
        return bool(self._lost) or bool(self.told_losses)

    def has_lost(self, session: SessionId, server: ServerName) -> bool:
        """True if `take_loss` would return a loss."""
        return (session, server) in self._lost

    def concerns_server(self, server: ServerName) -> bool:
        """True if a session holds an instance of this server, or must be told that one is lost."""
        held = any(each == server for held in (self._held, self._lost) for _, each in held)
        return held or self.told_losses.concerns_server(server)

    def knows_instance(self, instance: InstanceId) -> bool:
        """True if it is leased or a spare."""
        return instance in self._by_instance or instance in self._pool_of_spare

    def is_spare(self, instance: InstanceId) -> bool:
        """True if it is kept warm for the next session."""
        return instance in self._pool_of_spare

    def spare_count(self, pool: PoolKey) -> int:
        """The number of warm instances without a holder."""
        return len(self._spares.get(pool, ()))

    def waiting_sessions(self, pool: PoolKey) -> tuple[SessionId, ...]:
        """The waiting sessions, first come first."""
        return tuple(self._waiting.get(pool, ()))

    def waiting_count(self, pool: PoolKey) -> int:
        """The number of waiting sessions."""
        return len(self._waiting.get(pool, ()))

    def _of_session(self, session: SessionId) -> list[_Lease]:
        return [lease for (holder, _), lease in self._held.items() if holder == session]

    def check(self) -> None:
        """Assert every invariant."""
        assert len(self._by_instance) == len(self._held), "a session or an instance is in two leases"
        assert self._servers.keys() == self._limits.keys()
        for (session, server), lease in self._held.items():
            assert (lease.session, lease.server) == (session, server)
            assert self._servers[lease.pool] == server
            assert self._by_instance[lease.instance] is lease
            assert (lease.instance in self.idle_timers) == (lease.in_flight == 0), (
                "idle means nothing in flight"
            )
            assert lease.used or not lease.in_flight
        assert len(self.idle_timers) == _count(not lease.in_flight for lease in self._by_instance.values())
        assert not self._by_instance.keys() & self._pool_of_spare.keys(), "a spare has a holder"
        for pool, line in self._waiting.items():
            assert line, "an empty line is kept"
            assert not self._spares.get(pool), "somebody waits beside a spare"
            for session in line:
                assert (session, self._servers[pool]) not in self._held, "a holder waits for what it has"
        spares = {instance: pool for pool, each in self._spares.items() for instance in each}
        assert spares == self._pool_of_spare
        self.told_losses.check()


def _count(each: Iterable[bool]) -> int:
    return sum(each)
