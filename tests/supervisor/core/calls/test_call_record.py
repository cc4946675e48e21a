"""The record of calls while a broker dies and another one begins."""

from typing import Any

import pytest
from msgspec.structs import replace

from carpool_protocol.ids import ABSENT, CallId, InstanceId, PoolKey, RawJson, ServerName, SessionId, WireId
from carpool_protocol.link.messages import (
    AnswersWritten,
    AskOpened,
    CallAnswered,
    CallFailed,
    CallsRecorded,
    CancelCall,
    OpenSessions,
    Policy,
    RecordedCall,
    RecordedSession,
    ResumeCall,
    SessionEnded,
    SessionNote,
    SessionNotResumable,
    SetPools,
    Sharing,
)
from carpool_supervisor.core.calls import call_record
from carpool_supervisor.core.model import events as ev
from carpool_supervisor.core.model.attribution import AskFacts
from carpool_supervisor.core.model.effects import CloseStdin, WriteCall, WriteCancel
from tests.behaviours import behaviour
from tests.kit.effects import of_kind
from tests.kit.supervisor_rig import SupervisorRig, pool_spec, tool_call

KEY = PoolKey("s:1")
OTHER = PoolKey("t:1")
ONE = InstanceId(1)
A, B = SessionId("a"), SessionId("b")


class CallRecordRig(SupervisorRig):
    """One pool that serves, and the broker that sees it."""

    def __init__(self, sharing: Sharing = "concurrent", **policy: Any) -> None:
        self.spec = pool_spec(KEY, Policy(min_instances=1, sharing=sharing, **policy))
        super().__init__(self.spec, now=0.0, broker=True)
        self.greet(ONE)

    def call(self, number: int, session: str = A, key: PoolKey | None = None, **more: Any) -> Any:
        call = tool_call(number, key or KEY, session, **more)
        return self.feed(replace(call, request=RawJson(b"%d" % number)))

    def answer_wire(self, wire: int, body: bytes = b"{}") -> list[Any]:
        return self.feed(ev.ServerAnswered(ONE, WireId(wire), is_error=False, body=RawJson(body)))

    def another_broker(self) -> tuple[list[RecordedSession], list[RecordedCall]]:
        told = of_kind(self.feed(ev.BrokerConnected()), CallsRecorded)
        assert [each.last for each in told] == [False] * (len(told) - 1) + [True]
        return told[-1].sessions, [call for each in told for call in each.calls]


def recorded(number: int, session: SessionId = A, *, ended: bool = False) -> RecordedCall:
    return RecordedCall(
        CallId(number), session, RawJson(b"%d" % number), KEY, "t", ended, method="tools/call"
    )


@behaviour("record:told")
def test_another_broker_hears_of_every_call_that_is_open_or_whose_answer_was_not_written() -> None:
    rig = CallRecordRig()
    for number in (1, 2, 3):
        rig.call(number)
    rig.answer_wire(1)
    rig.answer_wire(2)
    rig.feed(AnswersWritten([CallId(1)]))
    assert rig.another_broker() == (
        [RecordedSession(A)],
        [recorded(3), recorded(2, ended=True)],
    )


def test_the_record_comes_before_everything_else_that_another_broker_is_told() -> None:
    rig = CallRecordRig()
    assert isinstance(rig.feed(ev.BrokerConnected())[0], CallsRecorded)


@behaviour("death:broker-frees-plain")
def test_an_unresumable_session_frees_its_instance_and_leaves_the_record() -> None:
    rig = CallRecordRig("session", max_instances=1)
    rig.feed(SessionNotResumable(A))
    rig.call(1)
    rig.call(2, B)
    rig.answer_wire(1)
    rig.call(3)
    effects = rig.feed(ev.BrokerConnected())
    told = [each for each in effects if isinstance(each, CallsRecorded)]
    assert [each.calls for each in told] == [[recorded(2, B)], []]
    assert told[-1].sessions == [RecordedSession(B)]
    kinds = [type(each) for each in effects]
    assert kinds.index(CallsRecorded) < kinds.index(WriteCancel), "and its server hears that nobody waits"
    assert CloseStdin(ONE) in effects
    assert rig.another_broker()[0] == [RecordedSession(B)], "nor is it told as one that may still come"


def test_a_session_that_ends_with_its_broker_goes_on_while_only_the_link_was_down() -> None:
    rig = CallRecordRig()
    rig.feed(OpenSessions([SessionNote(A, fleeting=True)]))
    rig.call(1)
    told = rig.feed(ev.BrokerConnected(same=True))
    assert [each.calls for each in told if isinstance(each, CallsRecorded)] == [[recorded(1, ended=True)], []]
    assert rig.another_broker() == ([], [])


@behaviour("record:nothing-runs-twice")
def test_a_call_that_is_resumed_runs_on_and_is_answered_once() -> None:
    rig = CallRecordRig()
    rig.call(1)
    assert not [each for each in rig.feed(ev.BrokerConnected()) if isinstance(each, (WriteCall, WriteCancel))]
    assert rig.feed(ResumeCall(CallId(1))) == []
    assert rig.answer_wire(1, b'{"x":1}') == [CallAnswered(CallId(1), False, RawJson(b'{"x":1}'))]


def test_a_call_that_has_ended_is_told_again_as_often_as_a_broker_asks_and_until_one_has_written_it() -> None:
    rig = CallRecordRig()
    rig.call(1)
    said = rig.answer_wire(1)
    for _ in range(3):
        rig.another_broker()
        assert rig.feed(ResumeCall(CallId(1))) == said
    rig.feed(AnswersWritten([CallId(1)]))
    assert rig.another_broker() == ([], [])
    [unknown] = rig.feed(ResumeCall(CallId(1)))
    assert (unknown.fault, unknown.delivered) == ("lost", "maybe")


@behaviour("record:two-brokers")
def test_a_long_answer_that_two_brokers_did_not_settle_is_lost_at_the_third_and_ends_no_more_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("carpool_supervisor.core.calls.call_record.LONG_BYTES", 1)
    rig = CallRecordRig()
    for number in (1, 2, 3):
        rig.call(number)
    said = rig.answer_wire(1)
    rig.another_broker()
    assert rig.feed(ResumeCall(CallId(1))) == said
    later = rig.answer_wire(2)
    _, calls = rig.another_broker()
    assert [(each.call, each.ended) for each in calls] == [(3, False), (1, True), (2, True)]
    [lost] = rig.feed(ResumeCall(CallId(1)))
    assert (lost.fault, lost.delivered) == ("lost", "maybe")
    assert "restarted twice" in lost.text
    assert rig.feed(ResumeCall(CallId(2))) == later, "no broker before had it sent again"
    assert rig.feed(ResumeCall(CallId(3))) == [], "an open call is resumed as often as need be"
    rig.feed(AnswersWritten([CallId(1), CallId(2)]))
    assert rig.core.record.kept_bytes == 0
    third = rig.answer_wire(3)
    rig.another_broker()
    assert rig.feed(ResumeCall(CallId(3))) == third


def test_a_refusal_is_told_to_every_broker_because_it_is_carpools_own() -> None:
    rig = CallRecordRig()
    said = rig.call(1, key=OTHER)
    for _ in range(3):
        rig.another_broker()
        assert rig.feed(ResumeCall(CallId(1))) == said


def test_a_call_that_was_refused_is_in_the_record_as_well() -> None:
    rig = CallRecordRig()
    said = rig.call(1, key=OTHER)
    assert isinstance(said[0], CallFailed)
    assert [each.ended for each in rig.another_broker()[1]] == [True]
    assert rig.feed(ResumeCall(CallId(1))) == said


@pytest.mark.parametrize("answered", [False, True])
def test_a_cancelled_call_leaves_the_record(answered: bool) -> None:
    rig = CallRecordRig()
    rig.call(1)
    if answered:
        rig.answer_wire(1)
    rig.feed(CancelCall(CallId(1), "not wanted"))
    assert rig.another_broker() == ([], [])


@pytest.mark.parametrize("answered", [False, True])
def test_a_call_that_the_broker_answers_itself_stays_in_the_record_until_that_is_written(
    answered: bool,
) -> None:
    rig = CallRecordRig()
    rig.call(1)
    if answered:
        rig.answer_wire(1)
    rig.feed(CancelCall(CallId(1), "overdue", answered=True))
    assert [each.ended for each in rig.another_broker()[1]] == [True]
    [lost] = rig.feed(ResumeCall(CallId(1)))
    assert (lost.fault, lost.delivered) == ("lost", "maybe")
    rig.feed(AnswersWritten([CallId(1)]))
    assert rig.another_broker() == ([], [])


def test_a_session_that_is_gone_takes_its_answers_along_also_those_of_its_parts() -> None:
    rig = CallRecordRig()
    for number, session in ((1, A), (2, SessionId("a.2")), (3, B)):
        rig.call(number, session)
        rig.answer_wire(number)
    assert [each.session for each in rig.another_broker()[1]] == [A, A, B]
    rig.feed(SessionEnded(A))
    gone = RecordedSession(A, gone=True)
    assert rig.another_broker() == ([RecordedSession(B), gone], [recorded(3, B, ended=True)])


@behaviour("record:leases")
def test_the_record_names_lease_holders_and_they_keep_their_leases() -> None:
    rig = CallRecordRig(sharing="session", spares=0)
    rig.call(1)
    rig.answer_wire(1)
    rig.feed(AnswersWritten([CallId(1)]))
    assert rig.another_broker() == ([RecordedSession(A, [ServerName("s")])], [])


@behaviour("record:bounded")
def test_past_the_bound_the_oldest_answers_are_told_as_lost_but_never_as_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(call_record, "MAX_KEPT_BYTES", 100)
    rig = CallRecordRig()
    for number in (1, 2, 3):
        rig.call(number)
        rig.answer_wire(number, b'"%b"' % (b"x" * 40))
    assert [each.ended for each in rig.another_broker()[1]] == [True] * 3
    [first] = rig.feed(ResumeCall(CallId(1)))
    assert (first.fault, first.delivered) == ("lost", "maybe")
    assert isinstance(rig.feed(ResumeCall(CallId(2)))[0], CallAnswered)
    rig.feed(AnswersWritten([CallId(1), CallId(2), CallId(3)]))
    assert rig.core.record.kept_bytes == 0


@behaviour("record:pools-stay")
def test_no_pool_goes_before_a_broker_that_began_says_that_it_knows_all_that_are_wanted() -> None:
    rig = CallRecordRig()
    rig.call(1)
    rig.feed(ev.BrokerConnected())
    rig.feed(SetPools([], complete=False))
    assert rig.core.pools[KEY].wanted
    rig.call(2)
    assert rig.answer_wire(2) == [CallAnswered(CallId(2), False, RawJson(b"{}"))]
    rig.feed(SetPools([]))
    assert not rig.core.pools[KEY].wanted


def test_a_long_record_comes_in_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_record, "CALLS_PER_MESSAGE", 2)
    rig = CallRecordRig()
    for number in range(1, 6):
        rig.call(number)
    sessions, calls = rig.another_broker()
    assert [each.call for each in calls] == [1, 2, 3, 4, 5]
    assert sessions == [RecordedSession(A)]


@behaviour("record:nothing-runs-twice")
def test_a_link_that_broke_for_a_while_does_not_make_the_record_forget_what_an_earlier_broker_began() -> None:
    rig = CallRecordRig()
    rig.call(1)
    rig.call(2, B)
    rig.answer_wire(2)
    rig.another_broker()
    told = [each for each in rig.feed(ev.BrokerConnected(same=True)) if isinstance(each, CallsRecorded)]
    assert {call.call for each in told for call in each.calls} == {CallId(1), CallId(2)}
    assert isinstance(rig.feed(ResumeCall(CallId(2)))[0], CallAnswered)
    [lost] = rig.feed(ResumeCall(CallId(1)))
    assert (lost.fault, lost.delivered) == ("lost", "maybe")


@behaviour("record:nothing-runs-twice")
def test_another_broker_hears_which_sessions_the_one_before_it_gave_up() -> None:
    rig = CallRecordRig()
    rig.call(1)
    rig.feed(SessionEnded(A))
    sessions, calls = rig.another_broker()
    assert calls == []
    assert [(each.session, each.gone) for each in sessions] == [(A, True)]


def test_an_ask_of_two_calls_is_sent_once_to_each_broker_that_resumes_both() -> None:
    rig = CallRecordRig()
    rig.call(1)
    rig.call(2)
    facts = AskFacts("elicitation/create")
    rig.feed(ev.ServerAsked(ONE, RawJson(b"1"), RawJson(b"{}"), facts, ABSENT, "", (), ""))
    for _ in range(2):
        rig.another_broker()
        said = [each for call in (1, 2) for each in rig.feed(ResumeCall(CallId(call)))]
        assert [type(each) for each in said] == [AskOpened]
