"""Limits of memory, calls and age: which instance is replaced, and when; no call is lost by it."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from carpool_protocol.ids import InstanceId, PoolKey
from carpool_protocol.link.messages import Operate, Policy, SetPools
from carpool_supervisor.core.model import events as ev
from carpool_supervisor.core.model.effects import WriteLogLine
from carpool_supervisor.core.model.instance_limits import max_age_s, max_calls
from carpool_supervisor.core.model.lifecycle import InstanceState
from tests.behaviours import behaviour
from tests.supervisor.core.calls.test_placement import WEB, PoolsRig, spec

MB = 1 << 20


def rig(**policy: Any) -> PoolsRig:
    given: dict[str, Any] = {"sharing": "concurrent", "max_instances": 1} | policy
    return PoolsRig(spec(**given))


def measure(rig: PoolsRig, instance: InstanceId, size_mb: int, times: int = 2) -> None:
    for _ in range(times):
        rig.feed(ev.MemoryMeasured(((instance, size_mb * MB),)))


def calls(rig: PoolsRig, numbers: range, session: str = "a") -> None:
    for number in numbers:
        rig.call(number, session)
        rig.up()
        rig.answer(number)


def why(rig: PoolsRig) -> list[str]:
    return [each.why for each in rig.core.pool_reports()[0].instances]


# --- limits ------------------------------------------------------------------------------------------------


@given(limit=st.integers(1, 10**6), generation=st.integers(1, 1000))
def test_a_limit_of_calls_is_kept_up_to_a_tenth_fewer(limit: int, generation: int) -> None:
    at = max_calls(Policy(limit_calls=limit), generation)
    assert max(1, int(limit * 0.9)) <= at <= limit


@behaviour("recycling:one-by-one")
@given(generation=st.integers(1, 1000))
def test_instances_that_start_together_are_not_recycled_together(generation: int) -> None:
    policy = Policy(limit_age_s=1000.0)
    ages = [max_age_s(policy, generation + each) for each in range(4)]
    assert min(abs(one - other) for one in ages for other in ages if one is not other) > 10
    assert all(900 <= age <= 1000 for age in ages)


# --- a shared instance -------------------------------------------------------------------------------------


@behaviour("recycling:limits", "recycling:costs-no-call", "recycling:one-by-one")
def test_after_its_calls_an_instance_serves_until_another_has_greeted_and_then_drains() -> None:
    a = rig(limit_calls=3)
    calls(a, range(1, 3))
    a.call(3, "a")
    first = a.on(3)
    assert a.spawned == []
    a.call(4, "b")
    a.answer(3)
    assert len(a.spawned) == 1, "a replacement starts"
    assert "limits.calls: 3" in why(a)[0]
    a.call(5, "b")
    assert a.on(5) == first, "nobody waits for it"
    a.up()
    a.call(6, "b")
    assert a.on(6) != first
    assert a.closing == []
    a.answer(4)
    assert a.closing == [], "one call is still open there"
    a.answer(5)
    assert a.closing == [first]
    assert a.failed == {}


@behaviour("recycling:costs-no-call")
def test_a_worn_instance_drains_for_as_long_as_a_call_may_run() -> None:
    a = rig(limit_calls=2, drain_s=5.0, timeout_s=60.0, max_total_s=200.0)
    calls(a, range(1, 2))
    a.call(2, "a")
    a.call(3, "a")
    a.answer(2)
    a.up()
    old = a.on(3)
    assert a.core.instances.by_id[old].state is InstanceState.DRAINING
    a.wait(50.0)
    assert a.closing == []
    a.answer(3)
    assert a.closing == [old]
    assert a.failed == {}


@behaviour("recycling:limits")
def test_age_is_a_limit_too_and_a_pool_in_use_has_another_first() -> None:
    a = rig(limit_age_s=100.0)
    first = a.served(1, "a")
    a.wait(50.0)
    calls(a, range(2, 3))
    a.wait(60.0)
    assert "limits.age_s: 100" in why(a)[0]
    assert a.closing == []
    a.up()
    assert a.closing == [first]


@behaviour("logs:why-ended")
def test_an_operator_ends_a_worn_instance_within_the_drain_time_and_is_named_as_the_reason() -> None:
    a = rig(limit_calls=2, drain_s=5.0, timeout_s=900.0)
    calls(a, range(1, 2))
    a.call(2, "a")
    a.call(3, "a")
    first = a.on(3)
    a.answer(2)
    assert "limits.calls: 2" in why(a)[0], "a replacement starts, and the worn instance serves until then"
    a.feed(Operate(1, WEB, "stop"))
    a.wait(5.0)
    assert first in a.closing, "an operator waits for `drain_s`, not for as long as a call may run"
    a.killed(first)
    assert "because an operator stopped it" in a.failed[3].text


def test_an_unused_instance_past_its_limit_ends_without_a_replacement() -> None:
    a = rig(limit_age_s=100.0)
    first = a.served(1, "a")
    a.wait(110.0)
    assert (a.spawned, a.closing) == ([], [first])
    a.killed(first)
    assert a.core.has_no_process
    a.call(2, "a")
    assert len(a.spawned) == 1


def test_a_least_size_is_kept_through_a_replacement() -> None:
    a = rig(limit_age_s=100.0, min_instances=1)
    a.up()
    a.wait(110.0)
    assert (len(a.spawned), a.closing) == (1, [])
    a.up()
    assert len(a.closing) == 1


@behaviour("recycling:limits")
def test_memory_counts_when_it_was_measured_above_the_limit_twice_in_a_row() -> None:
    a = rig(limit_rss_mb=100)
    first = a.served(1, "a")
    for size_mb in (150, 90, 150, 100):
        measure(a, first, size_mb, times=1)
    assert a.spawned == []
    measure(a, first, 150)
    assert "hold 150 MiB (limits.rss_mb: 100)" in why(a)[0]
    a.up()
    assert a.closing == [first]
    measure(a, InstanceId(99), 150)


@behaviour("logs:why-ended")
def test_the_log_says_which_limit_has_ended_an_instance() -> None:
    a = rig(limit_rss_mb=100)
    first = a.served(1, "a")
    measure(a, first, 150)
    a.up()
    gone = ev.InstanceExited(first, "ended with exit code 0", (), "", 0.0)
    texts = [each.text for each in a.core.handle(gone, a.now) if isinstance(each, WriteLogLine)]
    reason = "its processes hold 150 MiB (limits.rss_mb: 100)"
    assert texts == [f"web #{first} ended with exit code 0, as carpool asked it to: {reason}"]


@behaviour("recycling:one-by-one")
def test_instances_past_their_limit_are_replaced_one_at_a_time() -> None:
    a = rig(limit_rss_mb=100, max_instances=3, scale_up_at=1, max_in_flight=1)
    for number in (1, 2, 3):
        a.call(number, "a")
        a.up()
    three = [a.on(number) for number in (1, 2, 3)]
    for instance in three:
        measure(a, instance, 150)
    assert len(a.spawned) == 1
    a.up()
    measure(a, three[1], 150)
    assert len(a.spawned) == 1
    states = [a.core.instances.by_id[instance].state for instance in three]
    assert states == [InstanceState.DRAINING, InstanceState.SERVING, InstanceState.SERVING]


def test_a_replacement_may_exceed_the_process_cap_by_one() -> None:
    a = PoolsRig(spec(sharing="concurrent", max_instances=1, limit_rss_mb=100), cap=1)
    first = a.served(1, "a")
    measure(a, first, 150)
    assert len(a.spawned) == 1
    a.up()
    assert a.closing == [first]


def test_a_replacement_that_does_not_come_up_leaves_the_old_one_serving() -> None:
    a = rig(limit_calls=1, give_up_after=2, first_delay_s=0.0, open_s=60.0)
    first = a.served(1, "a")
    for _ in range(2):
        a.killed(a.spawned.pop())
        a.wait(1.0)
    assert a.core.pool_reports()[0].breaker == "open"
    a.call(2, "a")
    assert a.on(2) == first
    a.answer(2)
    a.wait(65.0)
    assert (a.closing, len(a.spawned)) == ([], 1)
    a.up()
    assert a.closing == [first]
    assert a.core.pool_reports()[0].breaker == "closed"


def test_a_stop_first_pool_ends_its_instance_before_the_replacement_starts() -> None:
    stop_first = spec(sharing="concurrent", max_instances=1, limit_calls=1)
    a = PoolsRig()
    a.feed(SetPools([replace(stop_first, stop_first=True)]))
    first = a.served(1, "a")
    assert (a.spawned, a.closing) == ([], [first])
    a.call(2, "a")
    a.killed(first)
    a.up()
    assert 2 in a.written


@behaviour("recycling:costs-no-call")
def test_no_call_waits_for_long_calls_when_a_stop_first_pool_recycles() -> None:
    a = PoolsRig()
    a.feed(SetPools([replace(spec(sharing="concurrent", max_instances=1, limit_calls=2), stop_first=True)]))
    a.call(1, "a")
    a.up()
    first = a.on(1)
    calls(a, range(2, 3))
    assert a.core.pools[WEB].active_count() == 1, "it serves on while a call runs there"
    a.call(3, "b")
    assert a.on(3) == first
    a.answer(1)
    assert a.closing == []
    a.answer(3)
    assert a.closing == [first], "the first moment in which nothing runs"
    a.call(4, "a")
    a.killed(first)
    a.up()
    assert 4 in a.written


def test_an_instance_that_is_never_without_a_call_drains_all_the_same() -> None:
    a = PoolsRig()
    one = spec(sharing="concurrent", max_instances=1, limit_calls=2, drain_s=60.0)
    a.feed(SetPools([replace(one, stop_first=True)]))
    a.call(1, "a")
    a.up()
    calls(a, range(2, 3))
    a.wait(50.0)
    assert a.core.pools[WEB].active_count() == 1
    a.wait(20.0)
    assert a.core.pools[WEB].active_count() == 0


def test_an_instance_of_a_serial_server_is_replaced_the_same_way() -> None:
    a = rig(sharing="serial", limit_calls=1)
    first = a.served(1, "a")
    assert (len(a.spawned), a.closing) == (1, [])
    a.up()
    assert a.closing == [first]
    assert len(a.core.pools[WEB].serving) == 1


def test_a_limit_from_a_reload_holds_for_running_instances() -> None:
    a = rig()
    calls(a, range(1, 6))
    a.feed(SetPools([spec(sharing="concurrent", max_instances=1, limit_calls=5)]))
    assert a.spawned == []
    calls(a, range(6, 7))
    a.up()
    assert len(a.closing) == 1


def test_a_pool_that_goes_is_not_recycled() -> None:
    a = rig(limit_calls=1)
    a.call(1, "a")
    a.up()
    a.feed(SetPools([]))
    a.answer(1)
    assert a.spawned == []
    a.killed(a.on(1))
    assert a.core.has_no_process


# --- leases ------------------------------------------------------------------------------------------------


@behaviour("recycling:leases")
def test_calls_and_age_end_no_lease_and_ps_says_that_they_are_past() -> None:
    a = rig(sharing="session", max_instances=4, limit_calls=2, limit_age_s=100.0)
    calls(a, range(1, 6))
    a.wait(300.0)
    calls(a, range(6, 7))
    assert (a.closing, a.failed) == ([], {})
    assert why(a) == ["it was given 6 calls (limits.calls: 2); replaced when its lease ends"]


@behaviour("recycling:leases")
def test_memory_ends_a_lease_after_a_while_and_its_holder_is_told_why() -> None:
    a = rig(sharing="session", max_instances=4, limit_rss_mb=100, drain_s=10.0)
    first = a.served(1, "a")
    measure(a, first, 150)
    calls(a, range(2, 3))
    assert a.on(2) == first, "it is its holder's for a while"
    a.wait(9.0)
    assert a.closing == []
    a.wait(2.0)
    assert a.closing == [first]
    a.killed(first)
    a.call(3, "a")
    assert (a.fault(3), a.failed[3].delivered) == ("state_lost", "no")
    assert "limits.rss_mb" in a.failed[3].text
    calls(a, range(4, 5))
    assert a.on(4) != first


def test_a_spare_past_its_age_makes_way_for_a_fresh_one() -> None:
    a = rig(sharing="session", max_instances=4, spares=1, limit_age_s=100.0, lease_idle_s=1000.0)
    first = a.served(1, "a")
    spare = next(each for each in a.core.instances.by_id if each != first)
    a.wait(110.0)
    assert a.closing == [spare]
    a.killed(spare)
    a.up()
    a.call(2, "b")
    assert a.on(2) not in (first, spare)


@behaviour("recycling:leases")
def test_an_instance_due_for_replacement_is_not_leased_when_its_pool_begins_to_lease() -> None:
    wanted: dict[str, Any] = {"max_instances": 2, "min_instances": 1, "limit_rss_mb": 100}
    a = rig(**wanted)
    a.up()
    (first,) = a.core.instances.by_id
    measure(a, first, 150)
    assert a.closing == [], "another greets first"
    a.feed(SetPools([spec(sharing="session", **wanted)]))
    a.call(1, "a")
    a.up()
    assert a.closing == [first]
    assert a.on(1) != first


def test_measured_memory_of_a_pool_without_a_limit_changes_nothing() -> None:
    a = rig()
    measure(a, a.served(1, "a"), 10_000)
    assert (a.spawned, a.closing) == ([], [])
    assert PoolKey("web:1") in a.core.pools
