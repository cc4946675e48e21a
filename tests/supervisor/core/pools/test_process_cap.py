"""Room at the process cap: processes that are ending count for the starts that they make room for
(rule 14).
"""

import pytest

from carpool_protocol.ids import InstanceId, PoolKey, SessionId
from carpool_protocol.link.messages import Operate
from carpool_supervisor.core.model.effects import WriteLogLine
from carpool_supervisor.core.model.events import InstanceSpawned, SpawnFailed
from carpool_supervisor.core.model.lifecycle import InstanceState
from carpool_supervisor.core.pools.start_queue import SHORTAGE_S
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


NO_PIPE = "could not be started: no pipe could be made (Too many open files)"


def short(rig: PoolsRig) -> list[str]:
    """The start that was asked for last finds no descriptor. Returns what is logged."""
    effects = rig.feed(SpawnFailed(rig.spawned.pop(), NO_PIPE, 0.5, shortage=True))
    return [each.text for each in effects if isinstance(each, WriteLogLine)]


@behaviour("faults:own-shortage")
def test_a_start_without_a_free_descriptor_is_no_failure_of_its_server_and_is_tried_again() -> None:
    machine = PoolsRig(spec(A, give_up_after=1), cap=64)
    machine.call(1, "s", A)
    logged: list[str] = []
    for _ in range(10):
        logged += short(machine)
        assert not machine.spawned
        machine.wait(SHORTAGE_S)
        assert machine.spawned
    pool = machine.core.pools[A]
    assert (pool.restart.breaker, pool.restart.failures, pool.last_error) == ("closed", 0, "")
    assert (pool.counts.deaths, pool.counts.restarts) == (0, 0)
    assert logged == [f"{pool.server} waits: it {NO_PIPE}"]
    machine.up()
    assert 1 in machine.written


@behaviour("faults:own-shortage")
def test_without_a_free_descriptor_an_idle_instance_of_another_server_makes_room() -> None:
    machine = rig(cap=64)
    idle, busy = used(machine, 1, A), used(machine, 2, B, open_=True)
    machine.call(3, "s", C)
    short(machine)
    assert machine.closing == [idle]
    assert not machine.spawned, "it waits for the end of the idle one"
    machine.killed(idle)
    machine.up()
    assert 3 in machine.written
    assert busy in machine.core.instances.by_id


@behaviour("faults:own-shortage")
def test_the_report_of_a_pool_says_why_its_calls_wait_for_a_process() -> None:
    machine = PoolsRig(spec(A), cap=64)
    machine.call(1, "s", A)
    short(machine)
    (report,) = machine.core.pool_reports()
    assert NO_PIPE in report.shortage
    machine.wait(SHORTAGE_S)
    machine.up()
    (report,) = machine.core.pool_reports()
    assert report.shortage == ""


@behaviour("faults:own-shortage")
def test_a_shortage_is_told_while_some_of_the_starts_that_calls_wait_for_have_failed() -> None:
    machine = PoolsRig(spec(A, sharing="session"), cap=64)
    machine.call(1, "s", A)
    machine.call(2, "t", A)
    runs, fails = machine.spawned
    machine.spawned.remove(fails)
    machine.feed(SpawnFailed(fails, NO_PIPE, 0.5, shortage=True))
    machine.feed(InstanceSpawned(runs, 1000))
    (report,) = machine.core.pool_reports()
    assert NO_PIPE in report.shortage


@behaviour("faults:own-shortage")
def test_a_call_that_waits_in_vain_for_room_is_told_how_many_processes_can_run() -> None:
    machine = PoolsRig(spec(A), spec(B, wait_s=5.0), cap=64)
    used(machine, 1, A, open_=True)
    machine.call(2, "s", B)
    for _ in range(4):
        short(machine)
        machine.wait(SHORTAGE_S)
    failed = machine.failed[2]
    assert (failed.fault, failed.delivered) == ("waited_too_long", "no")
    assert "Carpool can run 1 process of a server now" in failed.text
    assert "Too many open files" in failed.text
