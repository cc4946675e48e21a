"""The order of starts: pools take greeting turns one by one, however many instances each wants."""

from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from carpool_protocol.ids import InstanceId, PoolKey
from carpool_protocol.link.messages import DiscoverCatalog, PoolSpec
from carpool_supervisor.core.pools.greeting_turns import GREETING_TURN_S, SHORT_TURN_S
from tests.behaviours import behaviour
from tests.kit.bytecodes import count_bytecodes
from tests.supervisor.core.calls.test_placement import EDIT, WEB, PoolsRig, spec

OTHER = PoolKey("other:1")


PROJECT, ELSEWHERE = "/home/p/.mcp.json", "/home/q/.mcp.json"


def layered(number: int, layer: str, name: str = "m", **policy: Any) -> PoolSpec:
    """A pool of this layer, with a key of its own."""
    return replace(spec(PoolKey(f"{name}{number}:{layer}"), **policy), layer=layer)


def keys(specs: list[PoolSpec]) -> list[PoolKey]:
    return [each.key for each in specs]


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


# --- layers ------------------------------------------------------------------------------------------------


def mute_project(servers: int, *others: PoolSpec, listed: bool = False) -> PoolsRig:
    """An agent in a project wants so many of its servers, and none of them greets. The others are idle."""
    mute = [layered(number, PROJECT) for number in range(servers)]
    rig = PoolsRig(*mute, *others, greeting=3)
    for number, each in enumerate(mute):
        if listed:
            rig.feed(DiscoverCatalog(each.key))
        else:
            rig.call(number + 1, "mute", each.key)
    assert started(rig) == keys(mute[:3])
    return rig


@behaviour("children:layers-start-in-turn")
@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("servers", [12, 40])
def test_a_project_whose_servers_do_not_greet_holds_up_another_layer_for_one_short_turn(
    servers: int, listed: bool
) -> None:
    other, third = spec(EDIT), layered(0, ELSEWHERE)
    rig = mute_project(servers, other, third, listed=listed)
    rig.call(100, "other", EDIT)
    rig.feed(DiscoverCatalog(third.key, first=True))
    assert started(rig) == []
    rig.wait(SHORT_TURN_S)
    assert started(rig) == [EDIT, third.key], "and no other one of the project"


@behaviour("children:layers-start-in-turn")
def test_a_layer_waits_for_no_turn_once_those_of_another_layer_are_late() -> None:
    rig = mute_project(12, spec(EDIT))
    rig.wait(SHORT_TURN_S)
    assert started(rig) == []
    rig.call(100, "other", EDIT)
    assert started(rig) == [EDIT]


@behaviour("children:layers-start-in-turn")
def test_a_layer_has_no_more_greetings_within_their_turn_than_may_greet_at_once() -> None:
    rig = mute_project(12, spec(EDIT))
    for _ in range(3):
        rig.wait(GREETING_TURN_S)
        assert 1 <= len(started(rig)) <= 3


@behaviour("children:layers-start-in-turn")
def test_layers_take_turns_however_many_pools_of_each_wait() -> None:
    first, second = ([layered(n, layer) for n in range(4)] for layer in (PROJECT, ELSEWHERE))
    rig = PoolsRig(spec(), *first, *second, spec(EDIT), greeting=1)
    rig.call(1, "blocks", WEB)
    assert started(rig) == [WEB]
    for number, each in enumerate((*first, *second)):
        rig.call(number + 2, "a", each.key)
    rig.call(100, "other", EDIT)
    order = [WEB]
    for _ in range(5):
        rig.greet(instances(rig, order[-1])[0])
        order += started(rig)
    assert order == [WEB, first[0].key, second[0].key, EDIT, first[1].key, second[1].key]


@behaviour("children:layers-start-in-turn")
def test_servers_of_another_layer_that_are_slow_to_greet_do_not_wait_for_slow_ones_of_a_project() -> None:
    other = layered(0, ELSEWHERE, sharing="session", max_instances=9)
    mute = [layered(number, PROJECT, sharing="session", max_instances=9) for number in range(4)]
    rig = PoolsRig(other, *mute, greeting=3)
    rig.call(1, "other", other.key)
    rig.wait(GREETING_TURN_S)
    for number, each in enumerate(mute):
        for more in range(9):
            rig.call(10 * number + more + 10, f"s{more}", each.key)
    for _ in range(4):
        rig.wait(GREETING_TURN_S)
    started(rig)
    rig.call(2, "another", other.key)
    rig.wait(SHORT_TURN_S)
    assert other.key in started(rig)


# --- agents ------------------------------------------------------------------------------------------------


@behaviour("children:agents-start-in-turn")
@pytest.mark.parametrize("servers", [12, 40])
def test_an_agent_that_calls_many_servers_that_do_not_greet_holds_up_another_agent_for_one_turn(
    servers: int,
) -> None:
    other = layered(99, PROJECT)
    rig = mute_project(servers, other)
    rig.call(100, "other", other.key)
    rig.wait(SHORT_TURN_S)
    assert started(rig) == []
    rig.wait(GREETING_TURN_S - SHORT_TURN_S)
    assert other.key in started(rig)


@behaviour("children:agents-start-in-turn")
def test_a_server_that_an_agent_calls_behind_many_others_starts_soon_for_another_agent() -> None:
    other = layered(99, PROJECT)
    rig = mute_project(12, other)
    rig.call(100, "mute", other.key)
    rig.call(101, "other", other.key)
    rig.wait(GREETING_TURN_S)
    assert other.key in started(rig)


@behaviour("supervisor:many")
@pytest.mark.parametrize("line", ["asked", "listed"])
def test_a_start_looks_at_no_pool_of_a_layer_that_may_start_none(line: str) -> None:
    counts = []
    for servers in (100, 200):
        rig = mute_project(servers, spec(EDIT), listed=line == "listed")
        rig.wait(SHORT_TURN_S)
        start_queued = partial(rig.core.instances.start_queue.start_queued, rig.now)
        counts.append(count_bytecodes(start_queued))
    assert counts[0] == counts[1]
