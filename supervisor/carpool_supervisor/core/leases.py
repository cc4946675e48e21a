"""Which instance is leased to which session, who waits for one, and who has lost one without having let go.

A lease is a session's exclusive hold on an instance of a pool in mode `session` (rules 14 and 15). It dies
with its holder, or after `idle_s` without a call; there is no total limit. An instance that was leased is
ended, never leased again: no MCP method resets a server. A lease that ends underneath its holder, after it
had been used, leaves a mark: the next call of that session on that pool is not executed but told
`StateLost`, once. So every call asks right before it is written, also one that has waited.

Invariants (`check`): an instance has one holder at most and a session one instance of a pool at most;
nobody waits for a pool whose lease it holds; while anybody waits in a pool it has no spare; exactly the
leases with nothing in flight have an idle deadline.
Knows nothing of: processes, calls (but how many are in flight), clocks. Says what to do as values.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from msgspec import Struct

from carpool_protocol.deadlines import Deadlines
from carpool_protocol.ids import InstanceId, PoolKey, SessionId

IDLE_S: Final = 1800.0

Cause = Literal["crash", "idle", "reload", "restart", "needed", "supervisor"]

CAUSES: Final[Mapping[Cause, str]] = {
    "crash": "its process ended by itself",
    "idle": "it was not used for longer than the idle limit of leases",
    "reload": "its configuration was changed",
    "restart": "an operator restarted or stopped it",
    "needed": "this session waited for another server, and its idle instance had to make room",
    "supervisor": "the part of carpool that runs the servers was restarted",
}
"""For the agent: why the state is gone, as a clause after "because"."""


class Held(Struct, frozen=True):
    """The session's calls run on this instance."""

    instance: InstanceId
    fresh: bool
    """The lease began just now."""


class StateLost(Struct, frozen=True):
    """Answer this one call `state_lost` (not delivered); the next one gets a fresh instance."""

    cause: Cause


class Waits(Struct, frozen=True):
    """No instance is free: the call waits, and the pool should grow."""

    ahead: int
    """Sessions that come first."""


class Ended(Struct, frozen=True):
    """This lease is over: end the instance."""

    instance: InstanceId
    session: SessionId
    pool: PoolKey


class _Lease:
    __slots__ = ("in_flight", "instance", "pool", "session", "used")

    def __init__(self, instance: InstanceId, pool: PoolKey, session: SessionId) -> None:
        self.instance = instance
        self.pool = pool
        self.session = session
        self.in_flight = 0
        self.used = False
        """A call ran on it, so there may be state to lose."""


class Leases:
    """All leases of one supervisor."""

    def __init__(self, idle_s: float = IDLE_S) -> None:
        self.idle_s = idle_s
        self._by_instance: dict[InstanceId, _Lease] = {}
        self._held: dict[tuple[SessionId, PoolKey], _Lease] = {}
        self._spares: dict[PoolKey, OrderedDict[InstanceId, None]] = {}
        self._pool_of_spare: dict[InstanceId, PoolKey] = {}
        self._waiting: dict[PoolKey, OrderedDict[SessionId, None]] = {}
        self._lost: dict[tuple[SessionId, PoolKey], Cause] = {}
        self._idle: Deadlines[InstanceId] = Deadlines()

    # --- a session comes -------------------------------------------------------------------------------

    def ask(self, session: SessionId, pool: PoolKey, now: float) -> Held | StateLost | Waits:
        """A call of this session is there. Asking again while it waits keeps its place."""
        key = (session, pool)
        cause = self._lost.pop(key, None) if self._lost else None
        if cause is not None:
            return StateLost(cause)
        lease = self._held.get(key)
        if lease is not None:
            return Held(lease.instance, fresh=False)
        spares = self._spares.get(pool)
        if spares:
            instance, _ = spares.popitem(last=False)
            del self._pool_of_spare[instance]
            self._begin(instance, pool, session, now)
            return Held(instance, fresh=True)
        line = self._waiting.setdefault(pool, OrderedDict())
        line.setdefault(session, None)
        return Waits(list(line).index(session))

    def stop_waiting(self, session: SessionId, pool: PoolKey) -> None:
        """Its last waiting call has ended."""
        line = self._waiting.get(pool)
        if line is not None:
            line.pop(session, None)
            if not line:
                del self._waiting[pool]

    def began(self, instance: InstanceId) -> None:
        """A call was written to it. No lease is idle while a call is in flight."""
        lease = self._by_instance.get(instance)
        if lease is not None:
            lease.in_flight += 1
            lease.used = True
            self._idle.disarm(instance)

    def ended(self, instance: InstanceId, now: float) -> None:
        """A call that began is no longer in flight (rule 5's sense)."""
        lease = self._by_instance.get(instance)
        if lease is not None and lease.in_flight:
            lease.in_flight -= 1
            if not lease.in_flight:
                self._idle.arm(instance, now, self.idle_s)

    # --- an instance comes -----------------------------------------------------------------------------

    def offer(self, instance: InstanceId, pool: PoolKey, now: float) -> SessionId | None:
        """An instance that never served anybody is fit: leased to who waits longest, else kept as a spare.
        The waiting calls of the session that is returned ask again.
        """
        if instance in self._by_instance or instance in self._pool_of_spare:
            return None
        line = self._waiting.get(pool)
        if not line:
            self._spares.setdefault(pool, OrderedDict())[instance] = None
            self._pool_of_spare[instance] = pool
            return None
        session = next(iter(line))
        self.stop_waiting(session, pool)
        self._begin(instance, pool, session, now)
        return session

    def _begin(self, instance: InstanceId, pool: PoolKey, session: SessionId, now: float) -> None:
        lease = _Lease(instance, pool, session)
        self._by_instance[instance] = lease
        self._held[session, pool] = lease
        self._idle.arm(instance, now, self.idle_s)

    # --- a lease ends ----------------------------------------------------------------------------------

    def release(self, session: SessionId, pool: PoolKey) -> Ended | None:
        """The session gives it back: nothing is lost."""
        lease = self._held.get((session, pool))
        return None if lease is None else self._end(lease)

    def session_ended(self, session: SessionId) -> list[Ended]:
        """The holder is gone, and its leases, marks and places in line with it."""
        for pool in [pool for pool, line in self._waiting.items() if session in line]:
            self.stop_waiting(session, pool)
        for key in [key for key in self._lost if key[0] == session]:
            del self._lost[key]
        return [self._end(lease) for lease in self._of(session)]

    def lose(self, instance: InstanceId, cause: Cause) -> Ended | None:
        """The instance has died or must end. None when nobody held it (a spare is forgotten)."""
        lease = self._by_instance.get(instance)
        if lease is not None:
            return self._lose(lease, cause)
        pool = self._pool_of_spare.pop(instance, None)
        if pool is not None:
            del self._spares[pool][instance]
            if not self._spares[pool]:
                del self._spares[pool]
        return None

    def lost_before(self, session: SessionId, pool: PoolKey, cause: Cause) -> None:
        """The broker tells of a lease that an earlier supervisor held."""
        self._lost[session, pool] = cause

    def replaced(self, old: PoolKey, new: PoolKey, cause: Cause) -> list[Ended]:
        """A reload put pool `new` in the place of `old`: who holds a lease, or has lost one, of `old` is
        told so at `new`. The caller drains the instances and spares of `old`; who waited there asks at
        `new`.
        """
        self._waiting.pop(old, None)
        for session, pool in [key for key in self._lost if key[1] == old]:
            self._lost[session, new] = self._lost.pop((session, pool))
        return [self._lose(lease, cause, new) for lease in list(self._held.values()) if lease.pool == old]

    def pool_gone(self, pool: PoolKey) -> list[Ended]:
        """The server is no longer configured: nobody can ever ask for it again."""
        self._waiting.pop(pool, None)
        for key in [key for key in self._lost if key[1] == pool]:
            del self._lost[key]
        return [self._end(lease) for lease in list(self._held.values()) if lease.pool == pool]

    def overdue(self, now: float) -> list[Ended]:
        """End the leases that were idle for too long."""
        return [self._lose(self._by_instance[instance], "idle") for instance in self._idle.due(now)]

    def next_deadline(self) -> float | None:
        """When `overdue` has something to do at the latest."""
        return self._idle.next_deadline()

    def yielding(self) -> InstanceId | None:
        """At the process cap: the lease to end first (`lose` it as `needed`). Of the sessions that wait for
        an instance while they hold one with nothing in flight, the longest idle; so two that wait for each
        other's cannot last.
        """
        waiting = {session for line in self._waiting.values() for session in line}
        idle = [
            (self._idle.deadline_of(lease.instance) or 0.0, lease.instance)
            for lease in self._by_instance.values()
            if lease.session in waiting and not lease.in_flight
        ]
        return min(idle)[1] if idle else None

    def _end(self, lease: _Lease) -> Ended:
        del self._by_instance[lease.instance]
        del self._held[lease.session, lease.pool]
        self._idle.disarm(lease.instance)
        return Ended(lease.instance, lease.session, lease.pool)

    def _lose(self, lease: _Lease, cause: Cause, told_at: PoolKey | None = None) -> Ended:
        if lease.used:
            self._lost[lease.session, told_at or lease.pool] = cause
        return self._end(lease)

    # --- who has what ----------------------------------------------------------------------------------

    def holder(self, instance: InstanceId) -> SessionId | None:
        """Whose it is, for `ps`; None for a spare and for an instance unknown here."""
        lease = self._by_instance.get(instance)
        return None if lease is None else lease.session

    def held(self, session: SessionId, pool: PoolKey) -> InstanceId | None:
        """The instance this session holds of this pool."""
        lease = self._held.get((session, pool))
        return None if lease is None else lease.instance

    def spares(self, pool: PoolKey) -> int:
        """How many warm instances nobody holds."""
        return len(self._spares.get(pool, ()))

    def waiting(self, pool: PoolKey) -> tuple[SessionId, ...]:
        """Who waits, first come first."""
        return tuple(self._waiting.get(pool, ()))

    def _of(self, session: SessionId) -> list[_Lease]:
        return [lease for (holder, _), lease in self._held.items() if holder == session]

    def check(self) -> None:
        """Assert every invariant."""
        assert len(self._by_instance) == len(self._held), "a session or an instance is in two leases"
        for (session, pool), lease in self._held.items():
            assert (lease.session, lease.pool) == (session, pool)
            assert self._by_instance[lease.instance] is lease
            assert (lease.instance in self._idle) == (lease.in_flight == 0), "idle means nothing in flight"
            assert lease.used or not lease.in_flight
        assert len(self._idle) == _count(not lease.in_flight for lease in self._by_instance.values())
        assert not self._by_instance.keys() & self._pool_of_spare.keys(), "a spare has a holder"
        for pool, line in self._waiting.items():
            assert line, "an empty line is kept"
            assert not self._spares.get(pool), "somebody waits beside a spare"
            for session in line:
                assert (session, pool) not in self._held, "a holder waits for what it has"
        spares = {instance: pool for pool, each in self._spares.items() for instance in each}
        assert spares == self._pool_of_spare
        self._idle.check()


def _count(each: Iterable[bool]) -> int:
    return sum(each)
