"""Silence of an instance and its calls counts only while it is read and no agent is asked."""

import pytest

from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, RawJson, WireId
from carpool_protocol.link.messages import AnswerAsk, AskOpened, CallFailed, CancelCall
from carpool_supervisor.core.model import events as ev
from carpool_supervisor.core.model.attribution import AskFacts
from carpool_supervisor.core.model.effects import SignalGroup, WriteAskAnswer, WriteProbe
from tests.behaviours import behaviour
from tests.supervisor.core.test_supervisor import OK, ONE, CoreRig, call, catalog, serving, spec

TERM = SignalGroup(ONE, "TERM")


def asks() -> ev.ServerAsked:
    facts = AskFacts("elicitation/create")
    return ev.ServerAsked(ONE, RawJson(b"7"), EMPTY_OBJECT, facts, ABSENT)


def paused(rig: CoreRig, paused: bool = True) -> list[object]:
    return rig.feed(ev.StdoutPaused(ONE, paused))


@behaviour("silence:only-while-read")
@pytest.mark.parametrize("before_s", [0.0, 3.0, 5.0, 11.0])
def test_an_instance_that_is_not_read_is_not_ended_and_its_silence_goes_on_where_it_was(
    before_s: float,
) -> None:
    rig = serving(probe_s=4.0, timeout_s=8.0, idle_s=1000.0)
    rig.wait(before_s)
    paused(rig)
    assert rig.wait(500.0) == []
    paused(rig, False)
    ended_after = 4.0 + 8.0 - before_s  # and up to two looks of one second
    assert TERM not in rig.wait(ended_after - 0.1)
    assert TERM in rig.wait(2.2)


@behaviour("silence:only-while-read")
def test_a_call_whose_answer_may_lie_unread_keeps_its_idle_time_until_its_total_limit() -> None:
    rig = serving(timeout_s=10.0, max_total_s=100.0, probe_s=1000.0)
    rig.feed(call(1))
    rig.wait(9.0)
    paused(rig)
    rig.feed(call(2))
    assert rig.wait(60.0) == []
    paused(rig, False)
    assert rig.wait(9.0) == [], "each has its whole idle time again"
    rig.feed(ev.ServerAnswered(ONE, WireId(1), is_error=False, body=OK))
    assert [(e.call, e.fault) for e in rig.wait(1.0) if isinstance(e, CallFailed)] == [(2, "timed_out")]
    rig.feed(call(3))
    paused(rig)
    assert [(e.call, e.fault) for e in rig.wait(100.0) if isinstance(e, CallFailed)] == [(3, "ran_too_long")]


@behaviour("silence:only-while-read")
def test_a_greeting_that_may_lie_unread_is_waited_for() -> None:
    rig = CoreRig(spec(first_start_s=20.0))
    rig.feed(call(1))
    rig.feed(ev.InstanceSpawned(ONE, 99))
    paused(rig)
    assert TERM not in rig.wait(25.0)
    paused(rig, False)
    assert rig.feed(ev.InstanceGreeted(ONE, catalog()))[0].wire == WireId(1)


@behaviour("silence:not-while-asked")
def test_a_server_that_reads_its_stdin_only_for_the_answer_lives_until_the_ask_is_over() -> None:
    rig = serving(probe_s=2.0, timeout_s=4.0, ask_timeout_s=60.0, max_total_s=1000.0, idle_s=1000.0)
    rig.feed(call(1))
    assert isinstance(rig.feed(asks())[0], AskOpened)
    said = rig.wait(59.0)
    assert said == [WriteProbe(ONE, 1)], "it is probed, and nothing is held against it"
    assert isinstance(rig.wait(1.0)[0], WriteAskAnswer)
    assert TERM not in rig.wait(3.5), "it has its whole time again"
    assert TERM in rig.wait(6.0), "and then that of the call that has timed out"


@behaviour("silence:not-while-asked")
@pytest.mark.parametrize("how", ["answered", "cancelled", "withdrawn"])
def test_silence_counts_from_the_end_of_an_ask_whatever_ended_it(how: str) -> None:
    rig = serving(probe_s=2.0, timeout_s=4.0, ask_timeout_s=600.0, max_total_s=1000.0, idle_s=1000.0)
    rig.feed(call(1))
    [asked] = [e for e in rig.feed(asks()) if isinstance(e, AskOpened)]
    rig.wait(300.0)
    if how == "answered":
        rig.feed(AnswerAsk(asked.ask, False, EMPTY_OBJECT))
    elif how == "cancelled":
        rig.feed(CancelCall(asked.call, "no longer wanted"))
    else:
        rig.feed(ev.ServerCancelledAsk(ONE, RawJson(b"7"), ""))
    assert TERM not in rig.wait(3.5)
    assert TERM in rig.wait(7.0)


@behaviour("silence:not-while-asked")
def test_a_call_between_two_stateless_rounds_does_not_excuse_unanswered_probes() -> None:
    """The server has answered there, and must go on answering probes."""
    rig = serving(probe_s=2.0, timeout_s=4.0, ask_timeout_s=600.0, max_total_s=1000.0, idle_s=1000.0)
    rig.feed(call(1))
    facts = AskFacts("elicitation/create", wire=WireId(1))
    rig.feed(ev.ServerAsked(ONE, RawJson(b"1/1/0"), EMPTY_OBJECT, facts, ABSENT))
    assert TERM in rig.wait(8.0)
