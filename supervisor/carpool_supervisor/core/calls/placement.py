"""Which instance takes a call where instances are not all alike: lanes, leases, a pool that was replaced.

A plain pool (`Pool.plain`) never comes here: any of its instances will do (`Pool.pick`). Else, in this order:
the word that a lease was lost; the instance that the session holds of this server, be it of a pool before
this one, while that drains (rule 15), or of one after it; a new lease; in mode `serial` an instance with a
free lane (rule 5). So all versions of a server are one to a session: it holds one instance of them, and what
it loses at one it is told at any. A call about a task has but one place, whatever its pool (`pinned`).

Knows nothing of: waiting, deadlines, how instances start and end.
"""

from carpool_protocol.ids import PoolKey, ServerName, SessionId
from carpool_protocol.link.messages import Call, Failed
from carpool_supervisor.core.calls.leases import Held, Leases, StateLost
from carpool_supervisor.core.model.attribution import CAN_ASK
from carpool_supervisor.core.model.lifecycle import State
from carpool_supervisor.core.model.pool import Calls, Instance, Pool, Pools, not_plain
from carpool_supervisor.core.model.sharing import admits


def find(call: Call, pool: Pool, pools: Pools, leases: Leases, now: float) -> Instance | StateLost | None:
    """Where this call runs now. None: it waits, and its session has a place in the line for leases where
    those decide.
    """
    session = call.session
    if leases.any_lost:
        lost = _lost(call, pool.server, leases)
        if lost is not None:
            return lost
    mine = _held(session, pool.server, pools, leases)
    if mine is not None:
        return mine if mine.has_room() else None
    if pool.mode != "session":
        return free_lane(pool, can_ask=call.method in CAN_ASK)
    found = leases.ask(session, pool.key, now)
    if not isinstance(found, Held):
        return None
    not_plain(pool.server, pools)
    instance = pool.instances[found.instance]
    return instance if instance.has_room() else None


def pinned(call: Call, pools: Pools, leases: Leases) -> Instance | Failed:
    """Where a call about a task runs: where that does, also while that drains."""
    pool = pools.get(call.key)
    instance = None if pool is None else pool.instances.get(call.instance)
    if instance is None or leases.holder(instance.id) not in (None, call.session):
        return Failed(call.call, "unknown_task", "no", "")
    if instance.state not in (State.SERVING, State.DRAINING):
        return Failed(call.call, "unknown_task", "no", "")
    return instance if instance.has_room() else Failed(call.call, "unavailable", "no", "", 1.0)


def could_go(call: Call, pool: Pool, pools: Pools, leases: Leases) -> bool:
    """Whether `find` would have something for it. Changes nothing: for `check`."""
    if leases.has_lost(call.session, pool.server) or leases.told.hears(call, pool.server) is not None:
        return True
    mine = _held(call.session, pool.server, pools, leases)
    if mine is not None:
        return mine.has_room()
    if pool.mode == "session":
        return leases.spares(pool.key) > 0
    return free_lane(pool, can_ask=call.method in CAN_ASK) is not None


def only_lanes_decide(pool: Pool, leases: Leases) -> bool:
    """Whether where a call of this pool goes depends on nothing but free lanes, so for all of a kind alike:
    nobody holds or has lost an instance of its server.
    """
    return pool.mode != "session" and not leases.concern(pool.server)


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
        askers = [each for each in instance.in_flight.values() if each.asks and not each.resting]
        sessions = {each.call.session for each in askers}
        if instance.state is State.SERVING and not sessions:
            return []
        if instance.state in (State.SPAWNING, State.GREETING):
            return []
        if instance.state is State.SERVING:
            asked |= sessions
    return [session for session in pool.waiting.sessions() if session in asked]


def stranded(pool: Pool, pools: Pools, leases: Leases) -> list[SessionId]:
    """Sessions in the line of a pool that is not wanted, for which nothing is left there: no instance starts
    any more, and those that are there are none they could have.
    """
    states = {each.state for each in pool.instances.values()}
    if states & {State.SPAWNING, State.GREETING} or (pool.mode != "session" and State.SERVING in states):
        return []
    return [each for each in pool.waiting.sessions() if _held(each, pool.server, pools, leases) is None]


def heirs(pool: Pool, pools: Pools) -> tuple[PoolKey, ...]:
    """The pools in its place (two, where its agents are told apart now): those that are wanted, else those
    that still have a line.
    """
    after = [each for each in pools.values() if pool.key in each.older]
    after = [each for each in after if each.wanted] or [each for each in after if each.waiting]
    return tuple(each.key for each in after)


def check_head(pool: Pool) -> None:
    """Assert that nobody waits where all instances are alike and one has room."""
    assert not (pool.plain and pool.waiting and pool.pick()), f"{pool.key} has a line and room"


def check_line(pool: Pool, calls: Calls, pools: Pools, leases: Leases) -> None:
    """Assert that nobody in this line could go."""
    pool.waiting.check()
    check_head(pool)
    if pool.plain:
        return
    for session in pool.waiting.sessions():
        head = calls[pool.waiting.head(session)].call
        assert not could_go(head, pool, pools, leases), f"{session} waits and could go"


def _lost(call: Call, server: ServerName, leases: Leases) -> StateLost | None:
    """What this call is told instead of being run: a loss that is news to its session, or one that its agent
    could not know of yet.
    """
    lost = leases.tell(call.session, server)
    if lost is not None:
        leases.told.tell(call, server, lost.cause)
        return lost
    cause = leases.told.hears(call, server)
    if cause is None:
        return None
    leases.told.tell_too(call, server)
    return StateLost(cause)


def _held(session: SessionId, server: ServerName, pools: Pools, leases: Leases) -> Instance | None:
    """The instance of any version of this server that is this session's."""
    place = leases.place(session, server)
    return None if place is None else pools[place[0]].instances[place[1]]
