"""The order of starts: pools take greeting turns one by one, however many instances each wants."""

import pytest

from carpool_protocol.ids import InstanceId, PoolKey
from carpool_protocol.link.messages import DiscoverCatalog
from carpool_supervisor.core.pools.start_queue import GREETING_TURN_S
from tests.behaviours import behaviour
from tests.supervisor.core.calls.test_placement import EDIT, WEB, PoolsRig, spec

OTHER = PoolKey("other:1")


def wanted_by_many(agents: int, greeting: int) -> PoolsRig:
    """So many agents each want an instance of WEB, and none of these greets. Other servers are idle."""
    others = (spec(key) for key in (EDIT, OTHER))
    rig = PoolsRig(spec(sharing="session", max_instances=agents), *others, greeting=greeting)
    rig.served(1, "first")
    for number in range(2, agents + 1):
        rig.call(number, f"s{number}")
    assert started(rig) == [WEB] * greeting
    return rig


def started(rig: PoolsRig) -> list[PoolKey]:
    """The pools of the instances that started since the last look and have not greeted."""
    keys = [rig.core.instances.by_id[each].pool.key for each in rig.spawned]
    rig.spawned.clear()
    return keys


def instances(rig: PoolsRig, key: PoolKey) -> list[InstanceId]:
    return list(rig.core.pools[key].instances)


@behaviour("children:starts-in-turn")
@pytest.mark.parametrize("agents", [8, 30])
def test_a_server_with_many_waiting_agents_holds_up_another_one_for_one_turn_only(agents: int) -> None:
    rig = wanted_by_many(agents, greeting=3)
    rig.call(100, "other", EDIT)
    assert started(rig) == []
    rig.wait(GREETING_TURN_S)
    assert EDIT in started(rig)


@behaviour("children:starts-in-turn")
def test_servers_whose_instances_do_not_greet_leave_a_turn_to_the_others() -> None:
    rig = wanted_by_many(30, greeting=3)
    rig.wait(GREETING_TURN_S)
    assert started(rig) == [WEB, WEB], "one turn stays free"
    rig.call(100, "other", EDIT)
    assert started(rig) == [EDIT]


@behaviour("children:starts-in-turn")
def test_a_server_that_greets_within_its_turn_again_may_have_all_turns_again() -> None:
    rig = wanted_by_many(30, greeting=3)
    rig.wait(GREETING_TURN_S)
    started(rig)
    rig.greet(instances(rig, WEB)[-1])
    assert started(rig) == [WEB, WEB]


@behaviour("children:starts-in-turn")
def test_a_greeting_after_its_turn_does_not_count_as_one_within_it() -> None:
    rig = wanted_by_many(30, greeting=3)
    rig.wait(GREETING_TURN_S)
    started(rig)
    rig.greet(instances(rig, WEB)[1])
    assert started(rig) == []


@behaviour("children:starts-in-turn")
def test_with_one_turn_in_all_a_server_that_did_not_greet_starts_after_the_others() -> None:
    rig = wanted_by_many(30, greeting=1)
    rig.call(100, "other", EDIT)
    rig.call(101, "other", OTHER)
    for key in (EDIT, OTHER, WEB, WEB):
        rig.wait(GREETING_TURN_S)
        assert started(rig) == [key]


@behaviour("children:starts-in-turn")
def test_several_servers_start_one_instance_each_in_turn() -> None:
    many = [spec(key, sharing="session", max_instances=30) for key in (WEB, EDIT)]
    rig = PoolsRig(*many, spec(OTHER), greeting=1)
    rig.call(99, "blocks", OTHER)
    assert started(rig) == [OTHER]
    for number in range(1, 9):
        rig.call(number, f"s{number}", WEB)
    for number in range(11, 19):
        rig.call(number, f"s{number}", EDIT)
    order: list[PoolKey] = []
    for instance in (instances(rig, OTHER)[0], *[None] * 5):
        last = instance or instances(rig, order[-1])[-1]
        rig.greet(last)
        order += started(rig)
    assert order == [WEB, EDIT] * 3


@behaviour("children:starts-in-turn")
def test_a_server_with_all_turns_but_one_takes_no_other_while_a_catalog_is_wanted() -> None:
    rig = wanted_by_many(30, greeting=3)
    rig.feed(DiscoverCatalog(EDIT))
    assert started(rig) == []
    rig.greet(instances(rig, WEB)[-1])
    assert started(rig) == [EDIT], "although the calls to the other one were there before"
    rig.greet(instances(rig, EDIT)[-1])
    assert started(rig) == [WEB], "nobody else waits"
