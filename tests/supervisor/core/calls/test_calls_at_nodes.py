"""Calls on sessions at other nodes: the broker, status and stories are told of the node."""

import pytest
from msgspec.structs import replace

from carpool_protocol.ids import CallId, InstanceId, PoolKey
from carpool_protocol.link.messages import CallAtNode, CallPlace, NodeSession, NodeTarget, Policy, ResumeCall
from carpool_supervisor.core.model import events as ev
from carpool_supervisor.core.model.breaker_policy import NODE_OPEN_S
from carpool_supervisor.core.model.effects import WriteLogLine
from tests.behaviours import behaviour
from tests.kit.supervisor_rig import SupervisorRig, catalog_of, pool_spec

ONE = InstanceId(1)
SPEC = replace(
    pool_spec(PoolKey("git:1")),
    policy=Policy(sharing="session", spares=0),
    target=NodeTarget("*", "git"),
    bridge=True,
)


def at_alpha() -> SupervisorRig:
    """A call runs on a session at the node alpha."""
    rig = SupervisorRig(SPEC, broker=True)
    rig.call(1)
    [instance] = rig.spawned
    assert instance == ONE
    rig.feed(ev.InstanceSpawned(ONE, 0, "alpha", 3))
    return rig


@behaviour("counters:nodes")
def test_the_broker_is_told_of_a_call_that_is_handed_to_another_node() -> None:
    rig = at_alpha()
    effects = rig.feed(ev.InstanceGreeted(ONE, catalog_of(rig.key)))
    assert [each for each in effects if isinstance(each, CallAtNode)] == [CallAtNode(CallId(1), "alpha")]
    assert rig.core.locate_calls([CallId(1)]) == [CallPlace(CallId(1), "running", ONE, 0, "alpha")]


@behaviour("counters:nodes")
def test_the_next_broker_is_told_too_when_it_resumes_the_call() -> None:
    rig = at_alpha()
    rig.feed(ev.InstanceGreeted(ONE, catalog_of(rig.key)))
    rig.feed(ev.BrokerConnected())
    effects = rig.feed(ResumeCall(CallId(1)))
    assert [each for each in effects if isinstance(each, CallAtNode)] == [CallAtNode(CallId(1), "alpha")]


@behaviour("cluster:story")
def test_a_session_at_another_node_is_known_for_stories_after_its_end() -> None:
    rig = at_alpha()
    there = {ONE: NodeSession("alpha", 3)}
    assert rig.core.instances.node_sessions() == there
    rig.feed(ev.InstanceGreeted(ONE, catalog_of(rig.key)))
    rig.exit(ONE)
    assert rig.core.instances.node_sessions() == there


def test_a_call_on_a_process_of_this_machine_has_no_node() -> None:
    rig = SupervisorRig(replace(SPEC, target=None), broker=True)
    rig.call(1)
    effects = rig.greet(ONE)
    assert not [each for each in effects if isinstance(each, CallAtNode)]
    assert rig.core.instances.node_sessions() == {}


def test_a_call_that_was_open_at_another_node_is_lost_there_and_not_by_a_process() -> None:
    rig = at_alpha()
    rig.feed(ev.InstanceGreeted(ONE, catalog_of(rig.key)))
    rig.exit(ONE, why="lost its session: it was not heard for 20 s")
    found = rig.failed[1]
    assert (found.fault, found.delivered) == ("node_lost", "maybe")
    assert found.text.startswith("It lost its session: it was not heard for 20 s;")


def test_a_call_that_no_node_takes_is_refused_with_the_reason() -> None:
    rig = SupervisorRig(
        replace(SPEC, policy=Policy(sharing="session", spares=0, give_up_after=1)), broker=True
    )
    rig.call(1)
    rig.feed(ev.SpawnFailed(ONE, "got no session: the nodes with git are draining: alpha", 0.0, True))
    found = rig.failed[1]
    assert (found.fault, found.delivered) == ("node_away", "no")
    assert found.text == "Its last error: got no session: the nodes with git are draining: alpha."


@behaviour("cluster:refusals")
@pytest.mark.parametrize("is_opened", [True, False])
def test_a_call_that_a_node_refuses_for_good_is_told_so_at_once_and_not_to_try_again(is_opened: bool) -> None:
    rig = SupervisorRig(SPEC, broker=True)
    rig.call(1)
    why = "node alpha does not offer git: it has no such server, or it is disabled"
    if is_opened:
        rig.feed(ev.InstanceSpawned(ONE, 0, "alpha", 3))
        effects = rig.feed(ev.InstanceExited(ONE, f"lost its session: {why}", (), "", 0.0, is_final=True))
    else:
        effects = rig.feed(ev.SpawnFailed(ONE, f"got no session: {why}", 0.0))
    found = rig.failed[1]
    assert (found.fault, found.delivered, found.retry_after_s) == ("not_offered", "no", None)
    assert why in found.text
    lines = [each.text for each in effects if isinstance(each, WriteLogLine)]
    assert any(text.startswith("git is not started for 10 s after a failure") for text in lines)
    rig.call(2)
    assert (rig.failed[2].fault, rig.failed[2].retry_after_s) == ("not_offered", None)
    rig.wait(NODE_OPEN_S + 1.0)
    rig.call(3)
    assert len(rig.spawned) == 2, "the node is asked again soon, which costs no process"


@behaviour("cluster:drain")
def test_sessions_that_a_node_refuses_or_loses_are_no_restarts_and_no_deaths() -> None:
    rig = at_alpha()
    rig.feed(ev.InstanceGreeted(ONE, catalog_of(rig.key)))
    rig.exit(ONE, why="lost its session: it was not heard for 20 s")
    rig.call(2)
    rig.wait(60.0)
    rig.feed(ev.SpawnFailed(rig.spawned[-1], "got no session: the node is draining", 0.0, True))
    [pool] = rig.core.pool_reports()
    assert (pool.restarts, pool.last_error.startswith("got no session")) == (0, True)
