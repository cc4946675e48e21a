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

A free instance goes to the session that waits whose turn (`fair_queue.turn_key`) holds fewest instances of
the pool, of equals to the one that waits longest. While a session waits for longer than a grace, a turn that
holds many gives one back for it (`pick_from_largest_turn`): so no bearer token keeps a pool from others.

Invariants (`check`): an instance has at most one holder and a session at most one instance of a server; no
session waits for a server of which it holds an instance; a pool with waiting sessions has no spare; exactly
the leases without calls in flight have an idle deadline. Knows nothing of: processes, calls (except the
number in flight), clocks. Returns decisions as values. Decision: docs/decisions/0010.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from msgspec import Struct

from carpool_protocol.ids import InstanceId, PoolKey, ServerName, SessionId
from carpool_protocol.link.messages import Call
from carpool_supervisor.core.calls.told_losses import ToldLosses
from carpool_supervisor.core.model.fair_queue import turn_key
from carpool_supervisor.core.model.loss_causes import LossCause
from carpool_supervisor.core.model.timer_kinds import SupervisorTimers

K = TypeVar("K")
V = TypeVar("V")

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


class TurnShares(NamedTuple):
    """How leased instances are shared out among turns (`fair_queue.turn_key`)."""

    held: Counter[SessionId]
    """The number of instances of each turn."""
    most: int
    """The largest of these numbers."""
    idle: InstanceId | None
    """Of the instances of turns with the most: the one without calls in flight that is idle for longest."""

    @property
    def can_give(self) -> bool:
        """True if a turn that holds none can get an instance of one that holds most."""
        return self.idle is not None and self.most > 1


class _Wait(NamedTuple):
    """A session's place in the line of a pool."""

    turn: SessionId
    """The principal or session whose instances count together (`fair_queue`)."""
    since: float


class _Lease:
    __slots__ = ("in_flight", "instance", "pool", "server", "session", "turn", "used")

    def __init__(
        self, instance: InstanceId, pool: PoolKey, server: ServerName, session: SessionId, turn: SessionId
    ) -> None:
        self.instance = instance
        self.pool = pool
        self.server = server
        self.session = session
        self.turn = turn
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
        self._waiting: dict[PoolKey, OrderedDict[SessionId, _Wait]] = {}
        self._servers: dict[PoolKey, ServerName] = {}
        """The server of each pool."""
        self._waits_of: dict[SessionId, dict[PoolKey, None]] = {}
        """The pools in whose lines a session stands."""
        self._lost: dict[tuple[SessionId, ServerName], LossCause] = {}
        self._held_of: dict[SessionId, dict[ServerName, None]] = {}
        """The servers of which a session holds an instance."""
        self._lost_of: dict[SessionId, dict[ServerName, None]] = {}
        """The servers of which a session has lost one."""
        self._leases_of: dict[PoolKey, dict[InstanceId, None]] = {}
        """The leased instances of a pool."""
        self._concerned: dict[ServerName, int] = {}
        """The number of held and of lost instances of a server."""
        self._absent: set[SessionId] = set()
        """Sessions whose agents have no open connection."""
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

    def acquire(
        self, session: SessionId, pool: PoolKey, now: float, principal: str = ""
    ) -> LeaseHeld | LeaseLost | LeaseQueued:
        """A call of this session needs an instance. A session that waits keeps its place if this is
        repeated. `principal`: as in `fair_queue`.
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
            self._begin(instance, pool, session, turn_key(session, principal), now)
            return LeaseHeld(instance, fresh=True)
        waiting = self._waiting.setdefault(pool, OrderedDict())
        is_new = session not in waiting
        if is_new:
            waiting[session] = _Wait(turn_key(session, principal), now)
        self._waits_of.setdefault(session, {})[pool] = None
        return LeaseQueued(is_new)

    def take_loss(self, session: SessionId, server: ServerName) -> LeaseLost | None:
        """Take the untold loss of this session at this server, if there is one."""
        cause = self._lost.pop((session, server), None)
        if cause is None:
            return None
        _drop(self._lost_of, session, server)
        self._count(server, -1)
        return LeaseLost(cause, is_news=True)

    def _lose(self, session: SessionId, server: ServerName, cause: LossCause) -> None:
        if (session, server) not in self._lost:
            self._lost_of.setdefault(session, {})[server] = None
            self._count(server, 1)
        self._lost[session, server] = cause

    def _count(self, server: ServerName, more: int) -> None:
        """Count a held or lost instance of this server, or one less."""
        count = self._concerned.get(server, 0) + more
        if count:
            self._concerned[server] = count
        else:
            del self._concerned[server]

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
            _drop(self._waits_of, session, pool)
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
        """An unused instance is fit: lease it to the first session in line, or keep it as a spare. The
        waiting calls of the returned session must be placed again.
        """
        if instance in self._by_instance or instance in self._pool_of_spare:
            return None
        line = self._waiting.get(pool)
        if not line:
            self._spares.setdefault(pool, OrderedDict())[instance] = None
            self._pool_of_spare[instance] = pool
            return None
        session = self.waiting_sessions(pool)[0]
        self._begin(instance, pool, session, line[session].turn, now)
        return session

    def _begin(
        self, instance: InstanceId, pool: PoolKey, session: SessionId, turn: SessionId, now: float
    ) -> None:
        server = self._servers[pool]
        for each in [each for each in self._waits_of.get(session, ()) if self._servers[each] == server]:
            self.stop_waiting(session, each)
        lease = _Lease(instance, pool, server, session, turn)
        self._by_instance[instance] = lease
        self._held[session, server] = lease
        self._held_of.setdefault(session, {})[server] = None
        self._leases_of.setdefault(pool, {})[instance] = None
        self._count(server, 1)
        self._arm(lease, now)

    def _arm(self, lease: _Lease, now: float) -> None:
        self.idle_timers.arm(lease.instance, now, self._limits[lease.pool])

    # --- a lease ends ----------------------------------------------------------------------------------

    def session_closed(self, session: SessionId) -> list[LeaseEnded]:
        """The session has ended, and with it its leases, losses and places in queues."""
        for pool in list(self._waits_of.get(session, ())):
            self.stop_waiting(session, pool)
        for server in list(self._lost_of.get(session, ())):
            self.take_loss(session, server)
        self._absent.discard(session)
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
                self._lose(lease.session, lease.server, cause)
            return self._end(lease)
        spare_of = self._pool_of_spare.pop(instance, None)
        if spare_of is not None:
            del self._spares[spare_of][instance]
            if not self._spares[spare_of]:
                del self._spares[spare_of]
        return None

    def loss_reported_by_broker(self, session: SessionId, server: ServerName, cause: LossCause) -> None:
        """The broker reports the loss of a lease that this supervisor does not have."""
        self._lose(session, server, cause)

    def withdraw_pool(self, pool: PoolKey) -> None:
        """The pool leases no instances any more: its spares become ordinary instances, and no session waits
        for a lease.
        """
        for session in self._waiting.pop(pool, ()):
            _drop(self._waits_of, session, pool)
        for instance in self._spares.pop(pool, ()):
            del self._pool_of_spare[instance]

    def pool_removed(self, pool: PoolKey) -> list[LeaseEnded]:
        """The server is no longer configured: its leases end. If it returns, sessions that lost one are told
        so.
        """
        self.withdraw_pool(pool)
        over = [self.instance_lost(instance, "reload") for instance in list(self._leases_of.get(pool, ()))]
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

    def set_absent(self, session: SessionId, *, absent: bool) -> None:
        """The agent of this session has no open connection; or it is there again."""
        (self._absent.add if absent else self._absent.discard)(session)

    def pools_waited_for(self) -> list[PoolKey]:
        """Return the pools in whose lines sessions stand."""
        return [pool for pool, line in self._waiting.items() if line]

    def pick_absent(self, pool: PoolKey) -> InstanceId | None:
        """The lease of this pool to end first where another session waits: that of an absent session, without
        calls in flight, the longest idle. None: there is none.
        """
        if not self._absent:
            return None
        idle = [
            (self.idle_timers.deadline_of(lease.instance) or 0.0, lease.instance)
            for lease in map(self._by_instance.__getitem__, self._leases_of.get(pool, ()))
            if lease.session in self._absent and not lease.in_flight
        ]
        return min(idle)[1] if idle else None

    def turn_shares(self, pools: Iterable[PoolKey]) -> TurnShares:
        """How the instances of these pools are shared out now."""
        leases = [self._by_instance[each] for key in pools for each in self._leases_of.get(key, ())]
        held = Counter(lease.turn for lease in leases)
        most = max(held.values(), default=0)
        idle = [
            (self.idle_timers.deadline_of(lease.instance) or 0.0, lease.instance)
            for lease in leases
            if held[lease.turn] == most and not lease.in_flight
        ]
        return TurnShares(held, most, min(idle)[1] if idle else None)

    def pick_from_largest_turn(
        self,
        pool: PoolKey,
        turn_shares: Callable[[], TurnShares],
        *,
        coming: int,
        now: float,
        grace_s: float,
    ) -> InstanceId | None:
        """The lease to end first for a session that waits for this pool: of the turn that holds most
        instances, without calls in flight, the longest idle. `coming`: the number of instances that sessions
        in the line will get without that. `turn_shares`: those among whom it is shared. None: there is none.

        1. The session has waited for the grace.
        2. The other turn holds more instances than its own plus one, which counts those that are coming to
           it: sessions that hold one each keep it.
        3. If calls are in flight on all instances of that turn, no lease ends.
        """
        if not self.has_waited(pool, grace_s, now):
            return None
        shares = turn_shares()
        if not shares.can_give:
            return None
        line = self._waiting[pool]
        more: Counter[SessionId] = Counter()
        for number, session in enumerate(self.waiting_sessions(pool)):
            turn, since = line[session]
            will_hold = shares.held[turn] + more[turn] + 1
            if number >= coming and since + grace_s <= now and will_hold < shares.most:
                return shares.idle
            more[turn] += 1
        return None

    def has_waited(self, pool: PoolKey, grace_s: float, now: float) -> bool:
        """True if a session has waited for this pool for the grace."""
        line = self._waiting.get(pool)
        # In a line the first session has waited longest.
        return line is not None and next(iter(line.values())).since + grace_s <= now

    def next_to_wait_for(self, pool: PoolKey, grace_s: float, now: float) -> float | None:
        """The next time at which a session will have waited for this pool for the grace. None: there is
        none.
        """
        line = self._waiting.get(pool)
        times = (each.since + grace_s for each in line.values()) if line else ()
        return min((each for each in times if each > now), default=None)

    def is_busy(self, instance: InstanceId) -> bool:
        """True if a call of its holder is in flight on it."""
        lease = self._by_instance.get(instance)
        return lease is not None and lease.in_flight > 0

    def _end(self, lease: _Lease) -> LeaseEnded:
        del self._by_instance[lease.instance]
        del self._held[lease.session, lease.server]
        _drop(self._held_of, lease.session, lease.server)
        _drop(self._leases_of, lease.pool, lease.instance)
        self._count(lease.server, -1)
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
        return server in self._concerned or self.told_losses.concerns_server(server)

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
        """The waiting sessions, in the order in which they get instances."""
        line = self._waiting.get(pool)
        if line is None:
            return ()
        held = Counter(self._by_instance[each].turn for each in self._leases_of.get(pool, ()))
        places: list[tuple[int, int, SessionId]] = []
        for number, (session, wait) in enumerate(line.items()):
            places.append((held[wait.turn], number, session))
            held[wait.turn] += 1
        return tuple(session for _, _, session in sorted(places))

    def waiting_count(self, pool: PoolKey) -> int:
        """The number of waiting sessions."""
        return len(self._waiting.get(pool, ()))

    def _of_session(self, session: SessionId) -> list[_Lease]:
        return [self._held[session, server] for server in self._held_of.get(session, ())]

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
        assert _pairs(self._held_of) == set(self._held)
        assert _pairs(self._lost_of) == set(self._lost)
        assert _pairs(self._leases_of) == {(each.pool, each.instance) for each in self._by_instance.values()}
        assert {(pool, session) for session, pool in _pairs(self._waits_of)} == _pairs(self._waiting)
        concerned = Counter(server for _, server in (*self._held, *self._lost))
        assert concerned == self._concerned
        self.told_losses.check()


def _drop(index: dict[K, dict[V, None]], key: K, value: V) -> None:
    """Remove a pair from an index; an empty entry is not kept."""
    values = index.get(key)
    if values is not None:
        values.pop(value, None)
        if not values:
            del index[key]


def _pairs(index: Mapping[K, Iterable[V]]) -> set[tuple[K, V]]:
    return {(key, value) for key, values in index.items() for value in values}


def _count(each: Iterable[bool]) -> int:
    return sum(each)
