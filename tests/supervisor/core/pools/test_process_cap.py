"""Room at the process cap: processes that are ending count for the starts that they make room for
(rule 14).
"""

import pytest

from carpool_protocol.ids import InstanceId, PoolKey, SessionId
from carpool_protocol.link.messages import Operate
from carpool_supervisor.core.model.lifecycle import InstanceState
from tests.behaviours import behaviour
from tests.supervisor.core.calls.test_placement import PoolsRig, spec

A, B, C, D, E = (PoolKey(f"{name}:1") for name in "abcde")
ALL = (A, B, C, D, E)


def rig(cap: int) -> PoolsRig:
    """Five servers, and nothing of them runs."""
    return PoolsRig(*(spec(key, max_instances=1, drain_s=60.0) for key in ALL), cap=cap)


def used(rig: PoolsRig, number: int, key: PoolKey, *, open_: bool = False) -> InstanceId:
    """A call that went to this server, and which instance took it."""
    rig.call(number, "s", key)
    rig.up()
    if not open_:
        rig.answer(number)
    rig.wait(1.0)
    return rig.written[number].instance


def draining(rig: PoolsRig, number: int, key: PoolKey) -> InstanceId:
    """An instance that works on a call and shall end."""
    instance = used(rig, number, key, open_=True)
    rig.feed(Operate(number, key, "stop"))
    assert rig.core.instances.by_id[instance].state is InstanceState.DRAINING
    return instance


@behaviour("wait:room-beside-drains")
def test_an_idle_instance_makes_room_while_another_one_drains() -> None:
    full = rig(cap=2)
    draining(full, 1, A)
    idle = used(full, 2, D)
    full.call(3, "s", C)
    assert full.closing == [idle]
    full.killed(idle)
    full.up()
    assert 3 in full.written


@behaviour("wait:room-beside-drains")
@pytest.mark.parametrize("needs", [1, 2])
def test_as_many_instances_end_as_are_needed_and_the_least_recently_used_first(needs: int) -> None:
    full = rig(cap=3)
    draining(full, 1, A)
    idle = [used(full, 2, B), used(full, 3, C)]
    for number, key in list(enumerate((D, E), 4))[:needs]:
        full.call(number, "s", key)
    assert full.closing == idle[:needs]


@behaviour("wait:room-beside-drains")
@pytest.mark.parametrize("needs", [1, 2])
def test_an_ending_instance_is_room_for_one_need_only(needs: int) -> None:
    full = rig(cap=3)
    ending, *idle = [used(full, number, key) for number, key in enumerate((A, B, C), 1)]
    full.feed(Operate(9, A, "stop"))
    assert full.closing == [ending]
    for number, key in list(enumerate((D, E), 4))[:needs]:
        full.call(number, "s", key)
    assert full.closing == [ending, *idle[: needs - 1]]


@behaviour("wait:room-beside-drains", "wait:cap-yields-lease")
@pytest.mark.parametrize("needs", [1, 2])
def test_a_lease_goes_only_for_a_need_that_no_draining_instance_leaves_room_for(needs: int) -> None:
    full = PoolsRig(
        *(spec(key, drain_s=60.0) for key in (A, C, D)), spec(B, sharing="session", drain_s=60.0), cap=2
    )
    draining(full, 1, A)
    lease = used(full, 2, B)
    assert full.core.leases.holder(lease) == SessionId("s")
    for number, key in list(enumerate((C, D), 3))[:needs]:
        full.call(number, "s", key)
    assert full.closing == [lease][: needs - 1]
