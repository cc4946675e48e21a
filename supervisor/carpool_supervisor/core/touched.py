"""Which records an event touched, and what must hold of each of them.

Owns the reading of an event and its effects for the calls, instances and pools that they name: whatever an
event changed for others is said by an effect. And what must hold
of one record: full checks ask it of each.

Knows nothing of: what holds of all records together (`SupervisorCore.check`).
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import Struct

from carpool_protocol.deadlines import Deadlines
from carpool_protocol.ids import CallId, InstanceId, PoolKey
from carpool_protocol.messages import Call
from carpool_supervisor.core.leases import Leases
from carpool_supervisor.core.lifecycle import ENDING, State
from carpool_supervisor.core.placement import check_head
from carpool_supervisor.core.pool import Instance

if TYPE_CHECKING:
    from carpool_supervisor.core.desk import Desk
    from carpool_supervisor.core.supervisor import SupervisorCore


def check_touched(core: "SupervisorCore", event: Struct, effects: Iterable[Struct]) -> None:
    """Assert what must hold of the records that these name. One that is over has left nothing behind."""
    calls: set[CallId] = set()
    instances: set[InstanceId] = set()
    pools: set[PoolKey] = set()
    for each in (event, *effects):
        call = getattr(each, "call", None)
        if call is not None:
            calls.add(call.call if isinstance(call, Call) else call)
        instances.add(getattr(each, "instance", InstanceId(0)))
        pools.add(getattr(each, "key", PoolKey("")))
    for call in calls:
        check_call(call, core.desk, core.leases)
    for instance_id in instances:
        instance = core.roster.instances.get(instance_id)
        if instance is None:
            assert core.leases.holder(instance_id) is None, f"instance {instance_id} is gone and leased"
        else:
            check_instance(instance, core.roster.phases)
            pools.add(instance.pool.key)
    for key in pools & core.pools.keys():
        check_head(core.pools[key])


def check_call(call: CallId, desk: "Desk", leases: Leases) -> None:
    """Assert that this call has the limits of where it is, and none once it is over."""
    opened = desk.calls.get(call)
    desk.limits.check_call(call, opened)
    desk.waits.check_call(call, opened)
    if opened is not None and opened.instance is not None:
        assert opened.instance.in_flight.get(opened.wire) is opened, f"call {call} is not where it runs"
        holder = leases.holder(opened.instance.id)
        assert holder in (None, opened.call.session), f"call {call} runs on another's instance"


def check_instance(instance: Instance, phases: Deadlines[InstanceId]) -> None:
    """Assert that it is where its state says, and cannot stay there for ever unless it serves and reads."""
    assert instance.pool.instances[instance.id] is instance
    assert (instance in instance.pool.serving) == (instance.state is State.SERVING)
    assert instance.state is not State.GONE
    is_bounded = (instance.state is State.SERVING and not instance.is_deaf) or instance.id in phases
    assert is_bounded, f"instance {instance.id} may stay {instance.state} for ever"
    assert not (instance.state in ENDING and instance.failure is not None and instance.in_flight)
