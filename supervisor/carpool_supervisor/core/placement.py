"""Which instance takes a call where instances are not all alike: lanes, leases, a pool that was replaced.

A plain pool (`Pool.plain`) never comes here: any of its instances will do (`Pool.pick`). Else, in this order:
the instance that the session holds of a pool in whose place this one stands, while that drains (rule 15);
its lease, or the word that it was lost; in mode `serial` an instance with a free lane (rule 5).

Knows nothing of: waiting, deadlines, how instances start and end.
"""

from carpool_protocol.ids import PoolKey, SessionId
from carpool_protocol.messages import Call
from carpool_supervisor.core.attribution import CAN_ASK
from carpool_supervisor.core.leases import Held, Leases, StateLost
from carpool_supervisor.core.lifecycle import State
from carpool_supervisor.core.pool import Instance, Pool, Pools
from carpool_supervisor.core.sharing import admits


def find(call: Call, pool: Pool, pools: Pools, leases: Leases, now: float) -> Instance | StateLost | None:
    """Where this call runs now. None: it waits, and its session has a place in the line for leases where
    those decide.
    """
    old = _kept(call.session, pool, pools, leases)
    if old is not None:
        return old if old.has_room() else None
    if pool.mode == "session" or leases.concerns(call.session, pool.key):
        found = leases.ask(call.session, pool.key, now)
        if not isinstance(found, Held):
            return found if isinstance(found, StateLost) else None
        instance = pool.instances[found.instance]
        return instance if instance.has_room() else None
    return free_lane(pool, can_ask=call.method in CAN_ASK)


def could_go(call: Call, pool: Pool, pools: Pools, leases: Leases) -> bool:
    """Whether `find` would have something for it. Changes nothing: for `check`."""
    held = leases.held(call.session, pool.key)
    mine = _kept(call.session, pool, pools, leases) or (pool.instances[held] if held is not None else None)
    if mine is not None:
        return mine.has_room()
    if pool.mode == "session" or leases.concerns(call.session, pool.key):
        return leases.may_go(call.session, pool.key)
    return free_lane(pool, can_ask=call.method in CAN_ASK) is not None


def free_lane(pool: Pool, *, can_ask: bool) -> Instance | None:
    """The instance with the fewest unanswered calls that this mode lets take one more."""
    free = [
        each
        for each in pool.serving
        if each.has_room() and admits(pool.mode, can_ask=can_ask, asking_in_flight=int(each.has_asker()))
    ]
    return min(free, key=lambda each: len(each.in_flight), default=None)


def waiting_for_themselves(pool: Pool) -> list[SessionId]:
    """Sessions in line for a lane of which one is held by an asking call of their own, while no lane comes
    free unless an agent answers (rule 14). An agent that calls the server in order to answer it would wait
    for itself.
    """
    if pool.mode != "serial" or not pool.waiting:
        return []
    asked: set[SessionId] = set()
    for instance in pool.instances.values():
        sessions = {each.call.session for each in instance.in_flight.values() if each.asks}
        if instance.state is State.SERVING and not sessions:
            return []
        if instance.state in (State.SPAWNING, State.GREETING):
            return []
        if instance.state is State.SERVING:
            asked |= sessions
    return [session for session in pool.waiting.sessions() if session in asked]


def heirs(pool: Pool, pools: Pools) -> tuple[PoolKey, ...]:
    """The pools in its place (two, where its agents are told apart now): those that are wanted, else those
    that still have a line.
    """
    after = [each for each in pools.values() if pool.key in each.older]
    after = [each for each in after if each.wanted] or [each for each in after if each.waiting]
    return tuple(each.key for each in after)


def _kept(session: SessionId, pool: Pool, pools: Pools, leases: Leases) -> Instance | None:
    for key in pool.older:
        held = leases.held(session, key)
        if held is not None:
            return pools[key].instances[held]
    return None
