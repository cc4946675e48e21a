"""Invariants of the records that one event touched.

Owns how the calls, instances and pools that an event and its effects name are found: each change is visible
in an effect. Each record owns its own invariants.

Knows nothing of: invariants across all records (`SupervisorCore.check`).
"""

from collections.abc import Iterable

from msgspec import Struct

from carpool_protocol.ids import CallId, InstanceId, PoolKey
from carpool_protocol.link.messages import Call
from carpool_supervisor.core.calls.dispatcher import Dispatcher
from carpool_supervisor.core.calls.leases import Leases
from carpool_supervisor.core.calls.placement import check_head
from carpool_supervisor.core.model.pool_table import Pools
from carpool_supervisor.core.pools.instances import Instances


def check_touched(
    dispatcher: Dispatcher, instances: Instances, leases: Leases, pools: Pools, named: Iterable[Struct]
) -> None:
    """Assert the invariants of all records that an event and its effects name. A record that has ended must
    have left nothing behind.
    """
    calls: set[CallId] = set()
    instance_ids: set[InstanceId] = set()
    keys: set[PoolKey] = set()
    for each in named:
        call = getattr(each, "call", None)
        if call is not None:
            calls.add(call.call if isinstance(call, Call) else call)
        instance_ids.add(getattr(each, "instance", InstanceId(0)))
        keys.add(getattr(each, "key", PoolKey("")))
    for call in calls:
        dispatcher.check_call(call)
    for instance_id in instance_ids:
        instance = instances.by_id.get(instance_id)
        if instance is None:
            assert leases.holder(instance_id) is None, f"instance {instance_id} is gone and leased"
        else:
            instances.check_instance(instance)
            keys.add(instance.pool.key)
    for key in keys & pools.keys():
        check_head(pools[key], dispatcher.calls)
