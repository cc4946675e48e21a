"""Placement: which instance takes a call.

`place_call` has the whole decision about a call that has just come, and `find_instance` the part of it that
is repeated while a call waits in a pool whose instances are not all alike. Such a pool has slots (mode
`serial`; docs/rules.md, rule 5), leases, or replaced another pool (rule 15); in a plain pool
(`Pool.plain`) any instance will do. All versions of a server are one to a session: it holds one instance of
them, and what it loses at one of them it is told at any.

Refuses to know: queues and time-outs (`dispatcher`), how instances start and end.
"""

from carpool_protocol.ids import ServerName, SessionId
from carpool_protocol.link.messages import Call, CallFailed
from carpool_supervisor.core.calls.leases import LeaseHeld, LeaseLost, LeaseQueued, Leases
from carpool_supervisor.core.calls.refusals import refused_call
from carpool_supervisor.core.model.attribution import CAN_ASK
from carpool_supervisor.core.model.lifecycle import InstanceState
from carpool_supervisor.core.model.pool import Calls, Instance, Pool
from carpool_supervisor.core.model.pool_table import Pools
from carpool_supervisor.core.model.sharing import may_take_call


def place_call(
    call: Call, pools: Pools, leases: Leases, now: float
) -> Instance | LeaseLost | CallFailed | None:
    """Decide which instance takes a call that has just come. None: it waits. The first rule counts.

    1. A call about a task runs where the task runs, at once or not at all.
    2. The pool is gone or stopped, or it has no instance and starts none: the call is refused.
    3. An operator has paused the server: it waits.
    4. Calls wait before it (in a plain pool those of its turn, else those of its session): it waits behind
       them. So in a plain pool all calls that wait are of turns that hold many places (`Instance.fits`).
    5. In a plain pool the instance with the fewest calls takes it, if one has room for it.
    6. In any other pool `find_instance` decides.
    """
    if call.instance:
        return _place_task_call(call, pools, leases)
    pool = pools.get(call.key)
    refusal = refused_call(call.call, pool, now)
    if pool is None or refusal is not None:
        return refusal
    if pool.paused:
        return None
    if pool.plain:
        if pool.queue and pool.queue.has_turn(call.session, call.principal):
            return None
        return pool.pick_instance(call)
    if pool.queue.has_session(call.session):
        return None
    return find_instance(call, pool, pools, leases, now)


def find_instance(
    call: Call, pool: Pool, pools: Pools, leases: Leases, now: float
) -> Instance | LeaseLost | None:
    """Decide which instance takes a call where instances are not all alike. The first rule counts.

    1. The session has lost its instance of this server and was not told: this call tells it.
    2. The session holds an instance of the server, of this pool or of one that it replaced: that takes it.
    3. In a pool without leases the instance with the fewest calls and a free slot takes it.
    4. In a pool with leases the session leases an instance, or gets a place in the line for one.

    None: no instance has room, and the call waits.
    """
    session = call.session
    if leases.any_lost:
        lost = _loss_for_call(call, pool.server, leases)
        if lost is not None:
            return lost
    held = _held_by_session(session, pool.server, pools, leases)
    if held is not None:
        return held if held.has_room() else None
    if pool.mode != "session":
        return instance_with_free_slot(pool, call)
    found = leases.acquire(session, pool.key, now, call.principal)
    if not isinstance(found, LeaseHeld):
        pool.counts.lease_waits += isinstance(found, LeaseQueued) and found.is_new
        return None
    pools.mark_not_plain(pool.server)
    instance = pool.instances[found.instance]
    return instance if instance.has_room() else None


def _place_task_call(call: Call, pools: Pools, leases: Leases) -> Instance | CallFailed:
    """Return the instance that runs the task, also while it drains."""
    pool = pools.get(call.key)
    instance = None if pool is None else pool.instances.get(call.instance)
    if instance is None or leases.holder(instance.id) not in (None, call.session):
        return CallFailed(call.call, "unknown_task", "no", "")
    if instance.state not in (InstanceState.SERVING, InstanceState.DRAINING):
        return CallFailed(call.call, "unknown_task", "no", "")
    # A cancel makes room.
    takes_any = call.method == "tasks/cancel" or leases.holder(instance.id) is not None
    has_room = instance.has_room() and (takes_any or instance.fits(call))
    return instance if has_room else CallFailed(call.call, "unavailable", "no", "", 1.0)


def could_be_placed(call: Call, pool: Pool, pools: Pools, leases: Leases) -> bool:
    """True if `find_instance` would return something. Changes nothing: for `check`."""
    if (
        leases.has_lost(call.session, pool.server)
        or leases.told_losses.cause_for_call(call, pool.server) is not None
    ):
        return True
    held = _held_by_session(call.session, pool.server, pools, leases)
    if held is not None:
        return held.has_room()
    if pool.mode == "session":
        return leases.spare_count(pool.key) > 0
    return instance_with_free_slot(pool, call) is not None


def only_free_slots_decide(pool: Pool, leases: Leases) -> bool:
    """True if free slots alone decide on calls of this pool, so the outcome is equal for all calls of a kind:
    no session holds or has lost an instance of the server, and no instance has only its last places left.
    """
    return pool.mode != "session" and not pool.has_last_place and not leases.concerns_server(pool.server)


def instance_with_free_slot(pool: Pool, call: Call) -> Instance | None:
    """The instance with the fewest unanswered calls that this mode lets take this one."""
    can_ask = call.method in CAN_ASK
    free = [
        each
        for each in pool.serving
        if each.has_room()
        and may_take_call(pool.mode, can_ask=can_ask, asking_in_flight=int(each.has_asking_call()))
        and each.fits(call)
    ]
    return min(free, key=lambda each: len(each.in_flight), default=None)


def self_blocked_sessions(pool: Pool) -> list[SessionId]:
    """Sessions that wait for a slot which an asking call of their own occupies, while no other slot comes
    free without an agent's answer (rule 14). An agent that calls the server in order to answer it would wait
    for itself.
    """
    if pool.mode != "serial" or not pool.queue:
        return []
    asked: set[SessionId] = set()
    for instance in pool.instances.values():
        askers = [each for each in instance.in_flight.values() if each.asks and not each.awaits_retry]
        sessions = {each.call.session for each in askers}
        if instance.state is InstanceState.SERVING and not sessions:
            return []
        if instance.state in (InstanceState.SPAWNING, InstanceState.GREETING):
            return []
        if instance.state is InstanceState.SERVING:
            asked |= sessions
    return [session for session in pool.queue.sessions() if session in asked]


def stranded_sessions(pool: Pool, pools: Pools, leases: Leases) -> list[SessionId]:
    """Sessions in the queue of an unwanted pool for which it has no instance left: none starts any more, and
    the present ones cannot take their calls.
    """
    states = {each.state for each in pool.instances.values()}
    if states & {InstanceState.SPAWNING, InstanceState.GREETING} or (
        pool.mode != "session" and InstanceState.SERVING in states
    ):
        return []
    return [
        each for each in pool.queue.sessions() if _held_by_session(each, pool.server, pools, leases) is None
    ]


def next_placeable(pool: Pool, calls: Calls) -> tuple[SessionId, Instance] | None:
    """The session whose call leaves the queue of a plain pool next, and the instance that takes it. A turn
    that holds many places does not hold up others.
    """
    queue = pool.queue
    if not queue:
        return None
    session = next(queue.next_sessions())
    instance = pool.pick_instance(calls[queue.head(session)].call)
    if instance is not None:
        return session, instance
    found = pool.pick_last_place(queue.turns())
    return None if found is None else (queue.next_session(found[0]), found[1])


def check_head(pool: Pool, calls: Calls) -> None:
    """Assert that no call waits in a plain pool with room for it."""
    assert pool.paused or not pool.plain or next_placeable(pool, calls) is None, (
        f"{pool.key} has a line and room"
    )


def check_line(pool: Pool, calls: Calls, pools: Pools, leases: Leases) -> None:
    """Assert that no call in this queue could go."""
    pool.queue.check()
    check_head(pool, calls)
    if pool.plain or pool.paused:
        return
    for session in pool.queue.sessions():
        head = calls[pool.queue.head(session)].call
        assert not could_be_placed(head, pool, pools, leases), f"{session} waits and could go"


def _loss_for_call(call: Call, server: ServerName, leases: Leases) -> LeaseLost | None:
    """The loss that this call reports instead of running: one that is news to its session, or one that its
    agent could not know of yet.
    """
    lost = leases.take_loss(call.session, server)
    if lost is not None:
        leases.told_losses.loss_told(call, server, lost.cause)
        return lost
    cause = leases.told_losses.cause_for_call(call, server)
    if cause is None:
        return None
    leases.told_losses.add_call(call, server)
    return LeaseLost(cause)


def _held_by_session(session: SessionId, server: ServerName, pools: Pools, leases: Leases) -> Instance | None:
    """The instance of any pool of this server that this session holds."""
    place = leases.held_instance(session, server)
    return None if place is None else pools[place[0]].instances[place[1]]
