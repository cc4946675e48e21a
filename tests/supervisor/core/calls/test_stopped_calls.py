"""Cancelled calls on shared instances: what the answer to the ping after the cancel changes."""

from typing import Any

import pytest

from carpool_protocol.ids import CallId, InstanceId, WireId
from carpool_protocol.link.messages import AskOpened, CancelCall, Operate
from carpool_supervisor.core.model import events as ev
from carpool_supervisor.core.model.effects import WriteCall, WriteProbe
from carpool_supervisor.core.model.lifecycle import InstanceState
from carpool_supervisor.core.model.pool import STOPPED_S
from carpool_supervisor.core.pools.targets import TAINTED_S
from tests.behaviours import behaviour
from tests.supervisor.core.calls.test_server_requests import ONE, AskingServerRig, refused


class StoppedCallsRig(AskingServerRig):
    """One instance of a server whose calls are cancelled."""

    def __init__(self, sharing: str, **policy: Any) -> None:
        super().__init__(sharing=sharing, max_instances=1, **policy)

    def cancelled(self, number: int) -> list[WriteProbe]:
        found = self.feed(CancelCall(CallId(number), "no longer wanted"))
        return [each for each in found if isinstance(each, WriteProbe)]

    def stop(self, number: int) -> None:
        """Cancel a call, and answer the ping after it."""
        [ping] = self.cancelled(number)
        self.feed(ev.ProbeAnswered(ONE, ping.number))

    def taken(self, number: int, session: str) -> bool:
        """True if this call is written at once."""
        return any(isinstance(each, WriteCall) for each in self.call(number, session))

    @property
    def serves(self) -> bool:
        instance = self.core.instances.by_id.get(ONE)
        return instance is not None and instance.state is InstanceState.SERVING


@behaviour("asks:in-flight:stopped")
def test_a_serial_server_that_answers_the_ping_after_a_cancel_keeps_its_process_and_takes_the_next_call() -> (
    None
):
    rig = StoppedCallsRig("serial")
    for number in range(1, 6):
        assert rig.taken(number, f"s{number}")
        rig.stop(number)
    rig.wait(10 * TAINTED_S)
    assert rig.serves
    assert rig.core.instances.by_id.keys() == {ONE}


@behaviour("asks:in-flight:serial-replaced")
def test_a_serial_server_that_answers_no_ping_after_a_cancel_is_replaced() -> None:
    rig = StoppedCallsRig("serial")
    rig.call(1)
    rig.cancelled(1)
    assert not rig.taken(2, "b")
    rig.wait(TAINTED_S)
    assert not rig.serves


@behaviour("asks:in-flight:stopped")
def test_a_serial_server_that_has_asked_takes_the_next_call_a_little_later_and_may_ask_its_agent() -> None:
    rig = StoppedCallsRig("serial")
    rig.call(1, "a")
    rig.answer_ask(rig.asked(b"1"))
    rig.stop(1)
    assert not rig.taken(2, "b")
    rig.wait(STOPPED_S)
    assert 2 in rig.written
    [asked] = rig.ask(b"2")
    assert isinstance(asked, AskOpened)
    assert asked.call == 2
    assert rig.serves


@behaviour("asks:in-flight:stopped")
@pytest.mark.parametrize("session", ["a", "b"])
def test_a_question_soon_after_the_ping_is_refused_and_costs_no_process(session: str) -> None:
    rig = StoppedCallsRig("concurrent")
    rig.call(1, "a")
    rig.call(2, session)
    rig.stop(1)
    refused(rig.ask(b"1"))
    assert rig.serves
    rig.wait(STOPPED_S)
    [asked] = rig.ask(b"2")
    assert isinstance(asked, AskOpened)
    assert asked.call == 2
    assert rig.core.pools[rig.key].mode == "concurrent", "that was no evidence against sharing"


@behaviour("asks:in-flight:stopped")
@pytest.mark.parametrize("sharing", ["serial", "concurrent"])
def test_a_question_beside_a_cancelled_call_is_refused_with_the_words_that_it_may_still_run(
    sharing: str,
) -> None:
    rig = StoppedCallsRig(sharing)
    rig.call(1, "a")
    rig.stop(1)
    rig.call(2, "b")
    text = refused(rig.ask(b"1"))
    assert "was cancelled or has timed out may still run" in text
    assert "serial" not in text


@behaviour("asks:in-flight:stopped")
def test_progress_of_a_cancelled_call_shows_that_it_goes_on() -> None:
    rig = StoppedCallsRig("concurrent")
    rig.call(1, "a")
    rig.call(2, "b")
    rig.stop(1)
    rig.wait(STOPPED_S)
    rig.feed(ev.ServerProgressed(ONE, rig.wire(1), rig.written[1].call.params))
    refused(rig.ask(b"1"))
    assert not rig.serves


@pytest.mark.parametrize("number", [0, 7])
def test_an_answer_to_another_ping_shows_nothing(number: int) -> None:
    rig = StoppedCallsRig("serial")
    rig.call(1)
    [ping] = rig.cancelled(1)
    assert ping.number != number
    rig.feed(ev.ProbeAnswered(ONE, number))
    assert not rig.taken(2, "b")


def test_a_cancel_while_a_ping_is_open_gets_a_ping_of_its_own() -> None:
    rig = StoppedCallsRig("concurrent")
    for number in (1, 2, 3):
        rig.call(number, f"s{number}")
    [first] = rig.cancelled(1)
    assert rig.cancelled(2) == rig.cancelled(3) == [], "one is open"
    found = rig.feed(ev.ProbeAnswered(ONE, first.number))
    [second] = [each for each in found if isinstance(each, WriteProbe)]
    stopped = {wire: each.stopped_at is not None for wire, each in _abandoned(rig, ONE).items()}
    assert stopped == {rig.wire(1): True, rig.wire(2): False, rig.wire(3): False}
    rig.feed(ev.ProbeAnswered(ONE, second.number))
    assert all(each.stopped_at is not None for each in _abandoned(rig, ONE).values())


def test_an_instance_that_is_being_stopped_gets_no_further_ping() -> None:
    rig = StoppedCallsRig("concurrent")
    rig.call(1, "a")
    rig.call(2, "b")
    [first] = rig.cancelled(1)
    assert rig.cancelled(2) == []
    rig.feed(Operate(1, rig.key, "stop"))
    assert not rig.serves
    found = rig.feed(ev.ProbeAnswered(ONE, first.number))
    assert not any(isinstance(each, WriteProbe) for each in found)


def _abandoned(rig: StoppedCallsRig, instance: InstanceId) -> dict[WireId, Any]:
    return rig.core.instances.by_id[instance].abandoned
