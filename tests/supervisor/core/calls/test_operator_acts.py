"""Operators' acts on calls: a paused server, and a call that is ended."""

import json
from typing import Any

from msgspec.structs import replace

from carpool_protocol.ids import CallId, PoolKey
from carpool_protocol.link.messages import CallPlace, CallProgressed, EndCall, Policy, PoolSpec, SetPools
from carpool_supervisor.core.model.effects import WriteCancel
from tests.behaviours import behaviour
from tests.kit.supervisor_rig import SupervisorRig, pool_spec

SPEC = pool_spec(PoolKey("a:1"), Policy(wait_s=6.0, max_instances=1, max_in_flight=1))


def serving(spec: PoolSpec = SPEC) -> SupervisorRig:
    rig = SupervisorRig(spec, broker=True)
    rig.call(1)
    rig.greet(rig.spawned[0])
    assert 1 in rig.written
    return rig


def set_paused(rig: SupervisorRig, *, paused: bool) -> list[Any]:
    return rig.feed(SetPools([replace(SPEC, paused=paused)]))


@behaviour("operate:pause")
def test_calls_of_a_paused_server_wait_and_open_ones_go_on() -> None:
    rig = serving()
    set_paused(rig, paused=True)
    rig.answer(1)
    rig.call(2)
    assert 2 not in rig.written
    set_paused(rig, paused=False)
    assert 2 in rig.written


@behaviour("operate:pause")
def test_a_call_that_waits_for_too_long_is_told_of_the_pause() -> None:
    rig = serving()
    set_paused(rig, paused=True)
    rig.call(2)
    rig.wait(7.0)
    assert (rig.failed[CallId(2)].fault, rig.failed[CallId(2)].delivered) == ("paused", "no")


@behaviour("operate:pause", "wait:progress")
def test_an_agent_that_wants_progress_hears_that_an_operator_paused_the_server() -> None:
    rig = serving()
    told: list[str] = []

    def note(effects: list[Any]) -> None:
        told.extend(
            json.loads(bytes(each.params))["message"] for each in effects if isinstance(each, CallProgressed)
        )

    note(rig.call(2, wants_progress=True))
    set_paused(rig, paused=True)
    note(rig.wait(5.0))
    note(rig.call(3, wants_progress=True))
    assert told == [
        "Waiting for an instance of a: 0 calls ahead, at most 6 s more.",
        "Waiting because an operator has paused a, at most 1 s more.",
        "Waiting because an operator has paused a, at most 6 s more.",
    ]


@behaviour("operate:pause")
def test_a_paused_server_starts_no_instance_for_calls_and_one_when_it_is_resumed() -> None:
    rig = SupervisorRig(replace(SPEC, paused=True), broker=True)
    rig.call(1)
    assert rig.spawned == []
    set_paused(rig, paused=False)
    assert len(rig.spawned) == 1


@behaviour("operate:cancel")
def test_a_running_call_is_ended_as_maybe_executed_and_its_server_is_told() -> None:
    rig = serving()
    assert rig.core.locate_calls([CallId(1), CallId(9)]) == [
        CallPlace(CallId(1), "running", *next((it.id, it.pid) for it in rig.core.instances.by_id.values()))
    ]
    effects = rig.feed(EndCall(CallId(1)))
    assert any(isinstance(each, WriteCancel) for each in effects)
    assert (rig.failed[CallId(1)].fault, rig.failed[CallId(1)].delivered) == ("operator_cancelled", "maybe")
    assert rig.core.locate_calls([CallId(1)]) == []
    assert rig.feed(EndCall(CallId(1))) == [], "it is over"


@behaviour("operate:cancel")
def test_a_queued_call_is_ended_as_never_delivered() -> None:
    rig = serving()
    rig.call(2)
    assert rig.core.locate_calls([CallId(2)]) == [CallPlace(CallId(2), "waiting")]
    rig.feed(EndCall(CallId(2)))
    assert (rig.failed[CallId(2)].fault, rig.failed[CallId(2)].delivered) == (
        "operator_cancelled_unsent",
        "no",
    )
