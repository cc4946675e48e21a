"""A remote server that has forgotten the session: its bridge reports it, and the agent is told once."""

import pytest

from carpool_protocol.faults.fault_answers import fault, fault_answer
from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, CallId, InstanceId, PoolKey, RawJson, SessionId, WireId
from carpool_protocol.link.messages import AnswersWritten, Call
from carpool_protocol.wire.result_repair import claims_fate, slug_in
from carpool_supervisor.core.model.events import ServerAnswered
from carpool_supervisor.era.handshake import HandshakeAdapter
from tests.behaviours import behaviour
from tests.supervisor.core.calls.test_placement import OK, PoolsRig, spec

ME = InstanceId(1)


def forgotten(rig: PoolsRig, number: int) -> None:
    """The bridge answers that the call was not run, since the server knows the session no more."""
    written = rig.written[number]
    rig.feed(ServerAnswered(written.instance, written.wire, is_error=False, body=OK, state_lost=True))


@behaviour("lease:never-silently")
def test_an_agent_that_the_bridge_has_told_is_not_told_again_when_the_bridge_ends() -> None:
    rig = PoolsRig(spec(sharing="session"))
    first = rig.served(1, "a")
    rig.call(2, "a")
    forgotten(rig, 2)
    assert rig.closing == [first], "it is good for nothing any more"
    rig.killed(first)
    assert rig.served(3, "a") != first
    assert {number: failed.fault for number, failed in rig.failed.items()} == {2: "state_lost"}


@behaviour("lease:every-call-hears")
def test_calls_behind_the_one_that_the_bridge_has_told_hear_it_too_and_run_nowhere() -> None:
    rig = PoolsRig(spec(sharing="session"))
    rig.is_prompt = False
    first = rig.served(1, "a")
    rig.call(2, "a")
    forgotten(rig, 2)
    rig.killed(first)
    rig.call(3, "a")
    assert [rig.fault(number) for number in (2, 3)] == ["state_lost", "state_lost"]
    rig.feed(AnswersWritten([CallId(2)], CallId(3)))
    assert rig.served(4, "a") != first


@behaviour("lease:never-silently")
def test_a_loss_that_only_a_cancelled_call_was_told_of_is_told_with_the_next_one() -> None:
    rig = PoolsRig(spec(sharing="session"))
    first = rig.served(1, "a")
    rig.call(2, "a")
    rig.cancel(2)
    forgotten(rig, 2)
    rig.call(3, "a")
    assert rig.fault(3) == "state_lost"
    assert rig.served(4, "a") != first


def test_no_call_of_any_session_goes_to_a_bridge_that_reported_state_lost() -> None:
    rig = PoolsRig(spec(sharing="concurrent", max_instances=2))
    first = rig.served(1, "a")
    rig.call(2, "a")
    rig.call(3, "b")
    forgotten(rig, 2)
    rig.call(4, "b")
    rig.up()
    assert rig.on(4) != first
    rig.answer(3)
    assert 3 in rig.answered


@pytest.mark.parametrize("method", ["tools/call", "prompts/get"])
@pytest.mark.parametrize("bridge", [True, False])
def test_only_carpools_own_bridge_can_report_state_lost(method: str, bridge: bool) -> None:
    adapter = HandshakeAdapter(ME, PoolKey("s:1"), "1", bridge=bridge)
    adapter.greeting_line()
    call = Call(
        CallId(1), PoolKey("s:1"), SessionId("s1"), method, "t", EMPTY_OBJECT, ABSENT, wants_progress=False
    )
    adapter.call_line(WireId(7), call)
    is_error, body = fault_answer(fault("state_lost", server="s"), method)
    member = b"error" if is_error else b"result"
    events, _ = adapter.feed([b'{"jsonrpc":"2.0","id":7,"%b":%b}' % (member, body)])
    (answered,) = [each for each in events if isinstance(each, ServerAnswered)]
    assert answered.state_lost is bridge


def test_other_faults_of_the_bridge_do_not_report_state_lost() -> None:
    for slug in ("lost", "unavailable"):
        for method in ("tools/call", "prompts/get"):
            is_error, body = fault_answer(fault(slug, detail="The word state_lost is here."), method)
            assert slug_in(body, is_error=is_error) == slug
    for raw in (b"{}", b'{"_meta":1,"data":2}', b'{"delivered":1}', b"[", b'{"delivered":"\\ud800"}'):
        assert slug_in(RawJson(raw), is_error=True) == slug_in(RawJson(raw), is_error=False) == ""


@pytest.mark.parametrize(
    "data",
    [
        b'{"code":"state_lost"}',
        b'{"code":"state_lost","x":{"delivered":"no"}}',
        b'{"code":"state_lost","x":"\\"delivered\\""}',
        b'{"delivered":"no","x":{"code":"state_lost"}}',
    ],
)
def test_an_error_that_a_bridge_does_not_rename_is_no_fault_of_the_bridge(data: bytes) -> None:
    error = RawJson(b'{"code":-32000,"message":"the word \\"delivered\\"","data":%b}' % data)
    assert not claims_fate(data)
    assert slug_in(error, is_error=True) == ""
