"""The end that waits: what runs on, what is kept back, and when it is over."""

from typing import Any

import msgspec

from carpool_broker.core.model import events as ev
from carpool_broker.core.model.bounds import SessionBounds
from carpool_broker.core.model.effects import EndBroker, Reply, SendAsk
from carpool_protocol.ids import AskId, CallId, Epoch, RawJson, call_of
from carpool_protocol.link.messages import AnswerAsk, Call, CancelCall, ResumeCall
from carpool_protocol.machine.stop_commands import DRAIN_S
from tests.behaviours import behaviour
from tests.broker.recovery_rig import ALL, DAEMON, ONE, TWO, RecoveryRig, called, recorded
from tests.kit.effects import of_kind

DRAIN = ev.DrainRequested()


def keeping(rig: RecoveryRig, session: Any = ONE) -> None:
    rig.feed(ev.SessionOpened(session=session, source=DAEMON, agent="", pid=1, carrier="shim", keeps=True))
    rig.feed(ev.InitializeRequested(session, RawJson(b'"i"'), "2025-11-25", "x", ALL))


def linked() -> RecoveryRig:
    rig = RecoveryRig(life=0)
    rig.link()
    return rig


def code(reply: Reply) -> str:
    body = msgspec.json.decode(reply.body)
    return str((body["data"] if reply.is_error else body["_meta"]["carpool/error"])["code"])


def sent(effects: list[Any]) -> CallId:
    (call,) = of_kind(effects, Call)
    number: CallId = call.call
    return number


@behaviour("restart:drains")
def test_a_drain_ends_once_when_the_last_unfinished_call_is_answered() -> None:
    rig = linked()
    keeping(rig)
    first, second = (sent(rig.feed(called(each))) for each in "12")
    assert rig.feed(DRAIN) == []
    assert of_kind(rig.answer(first), EndBroker) == []
    answered, end = rig.answer(second)
    assert isinstance(answered, Reply)
    assert isinstance(end, EndBroker)
    assert of_kind(rig.feed(called("3")), EndBroker) == []


def test_a_drain_without_unfinished_calls_ends_at_once() -> None:
    rig = linked()
    keeping(rig)
    assert rig.feed(DRAIN) == [EndBroker()]


@behaviour("restart:drains")
def test_new_calls_wait_without_an_answer_where_their_carrier_keeps_and_are_refused_where_not() -> None:
    rig = linked()
    keeping(rig)
    rig.come(TWO)
    under_way = sent(rig.feed(called("1")))
    rig.feed(DRAIN)
    assert rig.feed(called("2")) == []
    (refused,) = rig.feed(called("3", session=TWO))
    assert code(refused) == "closing"
    over = rig.answer(under_way)
    assert [type(effect) for effect in over] == [Reply, EndBroker], "the one that waits has no answer"
    assert over[0].id == b"1"


def test_a_queued_call_is_refused_if_its_carrier_does_not_send_it_again() -> None:
    rig = linked()
    rig.core.call_table.bounds = SessionBounds(max_open_calls=1)
    keeping(rig)
    rig.come(TWO)
    for session in (ONE, TWO):
        rig.feed(called("1", session=session))
        assert of_kind(rig.feed(called("2", session=session)), Call) == []
    refused = rig.feed(DRAIN)
    assert [(each.session, each.id, code(each)) for each in refused] == [(TWO, b"2", "closing")]


@behaviour("restart:drains")
def test_a_call_that_outlasts_the_drain_is_cut_off_and_may_have_run() -> None:
    rig = linked()
    keeping(rig)
    rig.feed(called("1"))
    rig.feed(DRAIN)
    rig.feed(called("2"))
    assert rig.wait(DRAIN_S - 0.1) == []
    cut, end = rig.wait(0.1)
    assert (cut.id, code(cut), end) == (b"1", "cut_off", EndBroker())


def test_an_end_requested_during_a_drain_does_not_wait() -> None:
    rig = linked()
    keeping(rig)
    rig.feed(called("1"))
    rig.feed(DRAIN)
    rig.feed(called("2"))
    done = rig.feed(ev.EndRequested(again=True))
    assert [(each.id, code(each)) for each in of_kind(done, Reply)] == [(b"1", "cut_off")]


def test_a_cancel_is_an_end_too_and_questions_go_on() -> None:
    rig = linked()
    keeping(rig)
    call = sent(rig.feed(called("1")))
    rig.feed(DRAIN)
    assert [type(each) for each in of_kind(rig.ask(call, "a1"), SendAsk)] == [SendAsk]
    said = rig.feed(ev.AskAnswered(ONE, AskId("a1"), is_error=False, body=RawJson(b"{}")))
    assert [type(each) for each in said] == [AnswerAsk]
    done = rig.feed(ev.RequestCancelled(ONE, RawJson(b"1"), "no longer"))
    assert [type(each) for each in done] == [CancelCall, EndBroker]


def test_a_supervisor_that_dies_ends_the_wait() -> None:
    rig = linked()
    keeping(rig)
    rig.feed(called("1"))
    rig.feed(DRAIN)
    *lost, end = rig.unlink()
    assert [code(each) for each in of_kind(lost, Reply)] == ["link_broken"]
    assert end == EndBroker()


def test_calls_of_an_earlier_broker_are_under_way_until_it_is_known_what_became_of_them() -> None:
    rig = RecoveryRig()
    rig.resume(called("1"))
    assert rig.feed(DRAIN) == []
    back = rig.link(recorded(7))
    assert of_kind(back, ResumeCall) == [ResumeCall(call_of(0, 7))]
    assert of_kind(back, EndBroker) == []
    assert [type(each) for each in rig.answer(call_of(0, 7))] == [Reply, EndBroker]


def test_a_resumed_call_without_a_record_is_cut_off_and_not_told_as_unsent() -> None:
    rig = RecoveryRig()
    rig.resume(called("1"), epoch=Epoch("e0"))
    rig.feed(DRAIN)
    done = of_kind(rig.wait(DRAIN_S), Reply)
    assert [code(each) in {"cut_off", "link_broken"} for each in done] == [True]


@behaviour("restart:drains")
def test_calls_whose_session_has_not_come_back_from_an_earlier_broker_are_waited_for() -> None:
    rig = RecoveryRig()
    rig.link(recorded(7))
    assert of_kind(rig.feed(DRAIN), EndBroker) == []
    assert of_kind(rig.resume(called("1")), EndBroker) == []
    assert [type(each) for each in rig.answer(call_of(0, 7))] == [Reply, EndBroker]


def test_a_broker_that_has_not_heard_of_earlier_calls_waits_and_ends_when_there_are_none() -> None:
    rig = RecoveryRig()
    assert rig.feed(DRAIN) == []
    assert of_kind(rig.link(), EndBroker) == [EndBroker()]


def test_a_call_that_comes_back_after_the_end_may_have_run_and_is_not_left_to_the_next_broker() -> None:
    rig = RecoveryRig()
    rig.link(recorded(7))
    rig.feed(DRAIN)
    rig.feed(ev.EndRequested(again=True))
    (cut,) = of_kind(rig.resume(called("1")), Reply)
    assert (cut.id, code(cut)) == (b"1", "cut_off")
