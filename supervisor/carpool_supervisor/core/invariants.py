"""Which records an event touched, and what must hold of each of them.

Owns the reading of an event and its effects for the calls, instances and pools that they name: whatever an
event changed for others is said by an effect. What must hold of one record is the record's to say.

Knows nothing of: what holds of all records together (`SupervisorCore.check`).
"""

from collections.abc import Iterable

from msgspec import Struct

from carpool_protocol.ids import CallId, InstanceId, PoolKey
from carpool_protocol.link.messages import Call
from carpool_supervisor.core.calls.dispatcher import Dispatcher
from carpool_supervisor.core.calls.leases import Leases
from carpool_supervisor.core.calls.placement import check_head
from carpool_supervisor.core.model.pool import Pools
from carpool_supervisor.core.pools.instances import Instances


def check_touched(
    desk: Dispatcher, roster: Instances, leases: Leases, pools: Pools, named: Iterable[Struct]
) -> None:
    """Assert what must hold of the records that an event and its effects name. One that is over has left
    nothing behind.
    """
    calls: set[CallId] = set()
    instances: set[InstanceId] = set()
    keys: set[PoolKey] = set()
    for each in named:
        call = getattr(each, "call", None)
        if call is not None:
            calls.add(call.call if isinstance(call, Call) else call)
        instances.add(getattr(each, "instance", InstanceId(0)))
        keys.add(getattr(each, "key", PoolKey("")))
    for call in calls:
        desk.check_call(call)
    for instance_id in instances:
        instance = roster.by_id.get(instance_id)
        if instance is None:
            assert leases.holder(instance_id) is None, f"instance {instance_id} is gone and leased"
        else:
            roster.check_instance(instance)
            keys.add(instance.pool.key)
    for key in keys & pools.keys():
        check_head(pools[key])
