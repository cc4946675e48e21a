"""Questions that are open while a broker dies: none is shown twice, no answer is lost or given to another.

Source: rules 4 and 14, docs/decisions/0015 and 0019; MCP 2026-07-28, basic/utilities/mrtr.
"""

from typing import Any

import pytest
from msgspec.structs import replace

from carpool_broker.core.calls.repeated_requests import MAX_EARLY, REPEAT_WAIT_S
from carpool_broker.core.model import events as ev
from carpool_broker.core.model.effects import (
    ForgetRecordedCall,
    ReplyStateless,
    RequireInput,
    SendAsk,
    WithdrawAsk,
)
from carpool_protocol.ids import EMPTY_OBJECT, AskId, CallId, RawJson, call_of
from carpool_protocol.link.messages import (
    AnswerAsk,
    AskWithdrawn,
    Call,
    CallAnswered,
    CancelCall,
    RecordedCall,
    ResumeCall,
)
from tests.behaviours import behaviour
from tests.broker.recovery_rig import ONE, OTHER, RESULT, TWO, A, RecoveryRig, called, recorded, says
from tests.kit.effects import of_kind

OLD = call_of(0, 7)
SAID = RawJson(b'{"role":"assistant"}')
MORE = RawJson(b'{"action":"accept"}')


def agent_says(ask: str) -> ev.AskAnswered:
    return ev.AskAnswered(ONE, AskId(ask), is_error=False, body=SAID)


def answer_to(ask: str, body: RawJson = SAID) -> AnswerAsk:
    return AnswerAsk(AskId(ask), is_error=False, body=body)


# --- agents that can be asked ---------------------------------------------------------------------------


@behaviour("death:broker-pause")
def test_an_ask_that_reached_the_agent_before_is_open_and_not_sent_again() -> None:
    rig = RecoveryRig()
    rig.link(recorded(7))
    rig.resume(called(), asks=("q1",))
    assert rig.ask(OLD, "q1") == []
    assert rig.feed(agent_says("q1")) == [answer_to("q1")]
    assert of_kind(rig.wait(REPEAT_WAIT_S), WithdrawAsk) == []


def test_an_answer_is_kept_for_a_call_of_the_record_whatever_supervisor_its_carrier_knows() -> None:
    """It heard of the present one last in a line that the broker took along."""
    rig = RecoveryRig()
    rig.link(recorded(7))
    rig.resume(called(), epoch=OTHER, asks=("q1",))
    assert rig.feed(agent_says("q1")) == []
    assert rig.ask(OLD, "q1") == [answer_to("q1")]


def test_an_ask_before_its_session_resumes_is_kept_and_sent_once_it_does() -> None:
    rig = RecoveryRig()
    rig.link(recorded(7))
    assert rig.ask(OLD, "q1") == []
    rig.resume(called())
    assert [type(each) for each in rig.ask(OLD, "q1")] == [SendAsk]


def test_an_ask_that_the_carrier_has_not_seen_is_sent() -> None:
    rig = RecoveryRig()
    rig.link(recorded(7))
    rig.resume(called())
    assert [type(each) for each in rig.ask(OLD, "q1")] == [SendAsk]


@behaviour("death:broker-pause")
def test_an_answer_that_comes_before_its_repeated_ask_is_passed_on_then_and_once() -> None:
    rig = RecoveryRig()
    rig.resume(called())
    assert rig.feed(agent_says("q1")) == rig.feed(agent_says("q1")) == []
    rig.link(recorded(7))
    assert rig.ask(OLD, "q1") == [answer_to("q1")]
    assert rig.feed(agent_says("q1")) == []


def test_an_ask_that_is_not_repeated_is_withdrawn_from_the_agent_in_time() -> None:
    rig = RecoveryRig()
    rig.link(recorded(7))
    rig.resume(called(), asks=("q1", "q2"))
    rig.feed(agent_says("q2"))
    (taken,) = of_kind(rig.wait(REPEAT_WAIT_S), WithdrawAsk)
    assert taken.ask == "q1", "the other one it has answered"
    assert rig.core.next_deadline() is not None, "the call is open still"


def test_a_question_that_the_server_takes_back_first_is_taken_back_from_the_agent() -> None:
    rig = RecoveryRig()
    rig.link(recorded(7))
    rig.resume(called(), asks=("q1",))
    assert rig.feed(AskWithdrawn(AskId("q1"), "over")) == [WithdrawAsk(ONE, AskId("q1"), "over")]
    assert of_kind(rig.wait(REPEAT_WAIT_S), WithdrawAsk) == []


def test_questions_of_another_supervisor_are_over_at_once() -> None:
    rig = RecoveryRig()
    rig.link()
    assert [each.ask for each in of_kind(rig.resume(epoch=OTHER, asks=("q1",)), WithdrawAsk)] == ["q1"]


def test_no_more_answers_are_kept_than_the_bound() -> None:
    rig = RecoveryRig()
    rig.link(recorded(7))
    rig.resume(called())
    for number in range(MAX_EARLY + 1):
        rig.feed(agent_says(f"q{number}"))
    assert [type(each) for each in rig.ask(OLD, f"q{MAX_EARLY}")] == [SendAsk], "it was dropped: ask again"


def test_an_answer_to_an_unknown_ask_is_kept_for_resumed_sessions_only() -> None:
    rig = RecoveryRig()
    rig.link()
    rig.come()
    rig.feed(called())
    assert rig.feed(agent_says("q1")) == []
    call = next(iter(rig.core.call_table.calls))
    assert [type(each) for each in rig.ask(call, "q1")] == [SendAsk]


# --- agents that bring answers --------------------------------------------------------------------------


def parked(*asks: tuple[str, str]) -> tuple[RecordedCall, RequireInput]:
    """What the first broker has told an agent of the stateless era, and what is in the record of it. `asks`:
    ids and names.
    """
    rig = RecoveryRig(life=0)
    rig.link()
    rig.come(greets=False)
    (call,) = of_kind(rig.feed(says()), Call)
    for ask, name in asks:
        rig.ask(call.call, ask, name)
    (said,) = rig.wait(0.01)
    return recorded(call.call, parked=True), said


def first_call(rig: RecoveryRig, record: RecordedCall, *calls: ev.CallRequested) -> list[Any]:
    rig.link(record)
    return rig.resume(*calls, greets=False)


@behaviour("death:broker-pause")
def test_a_retry_at_the_next_broker_resumes_its_call_and_answers_what_is_asked_again() -> None:
    record, said = parked(("q1", ""), ("q2", "who"))
    rig = RecoveryRig()
    first_call(rig, record)
    retry = says("2", state=said.state, given={"ask-q1": SAID, "who": MORE})
    assert rig.feed(retry) == [ResumeCall(record.call)]
    assert rig.ask(record.call, "q1") == [answer_to("q1")]
    assert rig.ask(record.call, "q2", "who") == [answer_to("q2", MORE)]
    (reply,) = rig.answer(record.call)
    assert isinstance(reply, ReplyStateless)
    assert (reply.id, reply.call) == (b"2", record.call)
    assert b"bad_request_state" in rig.feed(retry)[0].body, "a token is good once"


def test_a_retry_that_was_under_way_when_the_broker_died_resumes_its_call_too() -> None:
    record, said = parked(("q1", ""))
    retry = says("2", state=said.state, given={"ask-q1": SAID})
    rig = RecoveryRig()
    rig.resume(retry, greets=False)
    assert of_kind(rig.link(record), ResumeCall) == [ResumeCall(record.call)]
    assert rig.ask(record.call, "q1") == [answer_to("q1")]


def test_a_retry_waits_for_the_record() -> None:
    record, said = parked(("q1", ""))
    rig = RecoveryRig()
    rig.resume(greets=False)
    assert rig.feed(says("2", state=said.state, given={"ask-q1": SAID})) == []
    assert of_kind(rig.link(record), ResumeCall) == [ResumeCall(record.call)]


def test_a_retry_that_is_cancelled_before_the_record_comes_ends_its_call() -> None:
    record, said = parked(("q1", ""))
    rig = RecoveryRig()
    rig.resume(greets=False)
    rig.feed(says("2", state=said.state, given={"ask-q1": SAID}))
    rig.feed(ev.RequestCancelled(ONE, RawJson(b"2"), "gone"))
    assert [each.call for each in of_kind(rig.link(record), CancelCall)] == [record.call]


def test_an_input_missing_in_a_retry_is_required_again_under_the_same_key() -> None:
    record, said = parked(("q1", ""), ("q2", ""))
    rig = RecoveryRig()
    first_call(rig, record, says("2", state=said.state, given={"ask-q1": SAID}))
    rig.ask(record.call, "q1")
    assert rig.ask(record.call, "q2") == []
    again = of_kind(rig.wait(0.01), RequireInput)[0]
    assert [each.key for each in again.inputs] == ["ask-q2"]
    assert again.state != said.state
    assert rig.feed(says("3", state=again.state, given={"ask-q2": MORE})) == [answer_to("q2", MORE)]


def test_an_answer_is_not_given_to_a_later_question_of_the_same_name() -> None:
    record, said = parked(("q1", "sure"))
    rig = RecoveryRig()
    first_call(rig, record, says("2", state=said.state, given={"sure": MORE}))
    assert rig.ask(record.call, "q9", "sure") == [], "the first broker had passed on the answer to q1"
    (again,) = of_kind(rig.wait(0.01), RequireInput)
    assert [each.key for each in again.inputs] == ["sure"]


def test_a_request_that_was_never_told_what_is_wanted_is_told_now() -> None:
    record, _ = parked(("q1", ""))
    rig = RecoveryRig()
    assert of_kind(first_call(rig, record, says("1")), ResumeCall) == [ResumeCall(record.call)]
    rig.ask(record.call, "q1")
    (said,) = of_kind(rig.wait(0.01), RequireInput)
    assert said.id == b"1"


def test_tokens_are_good_for_their_session_and_their_request_at_every_broker() -> None:
    record, said = parked(("q1", ""))
    rig = RecoveryRig()
    first_call(rig, record)
    rig.resume(session=TWO, greets=False)
    for wrong in (
        says("2", state=said.state, session=TWO),
        says("2", state=said.state[:-1] + ("0" if said.state[-1] != "0" else "1")),
        ev.CallRequested(
            ONE, RawJson(b"2"), "a__x", EMPTY_OBJECT, RawJson(b""), RawJson(b""),
            by=says().by, digest="another", state=said.state,
        ),
    ):  # fmt: skip
        (reply,) = rig.feed(wrong)
        assert b"bad_request_state" in reply.body


def test_a_parked_call_that_no_retry_comes_for_is_cancelled_in_time() -> None:
    record, said = parked(("q1", ""))
    rig = RecoveryRig()
    assert of_kind(first_call(rig, record), CancelCall) == []
    assert [each.call for each in of_kind(rig.wait(rig.core.call_table.bounds.park_s), CancelCall)] == [
        record.call
    ]
    assert b"bad_request_state" in rig.feed(says("2", state=said.state))[0].body


def test_a_call_that_ended_while_its_agent_was_asked_is_given_to_the_retry() -> None:
    record, said = parked(("q1", ""))
    rig = RecoveryRig()
    first_call(rig, recorded(record.call, ended=True))
    assert rig.feed(says("2", state=said.state, given={"ask-q1": SAID})) == [ResumeCall(record.call)]
    (reply,) = rig.answer(record.call)
    assert (reply.id, reply.body) == (b"2", RESULT)


def test_a_retry_whose_call_went_with_another_supervisor_is_lost() -> None:
    _, said = parked(("q1", ""))
    rig = RecoveryRig()
    rig.link()
    (reply,) = of_kind(
        rig.resume(says("2", state=said.state), epoch=OTHER, greets=False), ReplyStateless
    )  # fmt: skip
    assert b"link_broken" in reply.body


@pytest.mark.parametrize("remembered", [False, True])
def test_a_call_whose_user_was_sent_to_urls_is_said_again_by_the_next_broker(remembered: bool) -> None:
    """Whether or not the record had heard that the agent knows."""
    rig = RecoveryRig(life=0)
    rig.link()
    rig.come(greets=False)
    (call,) = of_kind(rig.feed(says()), Call)
    url = RawJson(b'{"mode":"url"}')
    effects = rig.feed(
        CallAnswered(call.call, is_error=True, body=EMPTY_OBJECT, urls_first=True, urls=(url,))
    )
    (said, let_go) = effects
    assert let_go == ForgetRecordedCall(ONE, call.call), (
        "nothing of it need be remembered once its agent knows"
    )
    retry = says("2", state=said.state, given={said.inputs[0].key: MORE})
    after, open_before = RecoveryRig(), RecoveryRig()
    for rig in (after, open_before):
        rig.link(*[recorded(call.call, ended=True)] * remembered)
    after.resume(greets=False)
    for (again,) in (after.feed(retry), of_kind(open_before.resume(retry, greets=False), Call)):
        assert (again.target, again.key) == (call.target, A)
        assert again.call != call.call


def test_a_retry_of_a_call_that_had_ended_is_good_once_at_the_next_broker_too() -> None:
    rig = RecoveryRig(life=0)
    rig.link()
    rig.come(greets=False)
    (call,) = of_kind(rig.feed(says()), Call)
    url = RawJson(b'{"mode":"url"}')
    sent_away = {"is_error": True, "body": EMPTY_OBJECT, "urls_first": True, "urls": (url,)}
    said, _ = rig.feed(CallAnswered(call.call, **sent_away))  # type: ignore[arg-type]
    after = RecoveryRig()
    after.link()
    after.resume(greets=False)
    first, second = (
        after.feed(says(request, state=said.state, given={said.inputs[0].key: MORE})) for request in "23"
    )
    assert [type(each) for each in first] == [Call]
    assert b"bad_request_state" in second[0].body
    said, _ = after.feed(CallAnswered(first[0].call, **sent_away))  # type: ignore[arg-type]
    third = says("4", state=said.state, given={said.inputs[0].key: MORE})
    assert [type(each) for each in after.feed(third)] == [Call], "the token of a later round is another"


def test_a_token_for_a_call_of_an_earlier_broker_that_ends_here_is_good_once() -> None:
    rig = RecoveryRig()
    rig.link(recorded(7))
    rig.resume(says(), greets=False)
    url = RawJson(b'{"mode":"url"}')
    said, _ = rig.feed(CallAnswered(OLD, is_error=True, body=EMPTY_OBJECT, urls_first=True, urls=(url,)))
    first, second = (
        rig.feed(says(request, state=said.state, given={said.inputs[0].key: MORE})) for request in "23"
    )
    assert [type(each) for each in first] == [Call]
    assert b"bad_request_state" in second[0].body


@behaviour("eras:tokens")
def test_a_token_for_a_call_of_an_earlier_broker_is_good_once_also_while_the_record_is_told_again() -> None:
    rig = RecoveryRig()
    rig.link(recorded(7))
    rig.resume(says(), greets=False)
    rig.ask(OLD, "q1", "k")
    (wanted,) = of_kind(rig.wait(0.01), RequireInput)
    retry = [says(request, state=wanted.state, given={"k": SAID}) for request in "234"]
    rig.feed(retry[0])
    assert of_kind(rig.answer(OLD), ReplyStateless)
    rig.unlink()
    refused = rig.feed(retry[1])
    rig.link(recorded(7, ended=True))
    refused += rig.feed(retry[2])
    assert [b"bad_request_state" in bytes(each.body) for each in of_kind(refused, ReplyStateless)] == [
        True,
        True,
    ]


def test_calls_of_earlier_brokers_have_their_number_in_tokens_made_here() -> None:
    record, said = parked(("q1", ""))
    rig = RecoveryRig()
    first_call(rig, record, says("2", state=said.state))
    rig.ask(record.call, "q1")
    (again,) = of_kind(rig.wait(0.01), RequireInput)
    assert CallId(int(again.state.split(".")[0])) == record.call


def test_a_retry_and_its_first_request_under_one_name_do_not_become_the_same_call() -> None:
    record, wanted = parked(("q1", "k"))
    rig = RecoveryRig()
    rig.link(record)
    retry = says("2", state=wanted.state, given={"k": SAID})
    effects = rig.resume(retry, says("1"), greets=False)
    assert of_kind(effects, ResumeCall) == [ResumeCall(record.call)]
    assert of_kind(effects, Call) == [], "the first one may have been run"
    assert [reply.id for reply in of_kind(effects, ReplyStateless)] == [b"1"]


@behaviour("cancel:reaches-server")
def test_a_parked_call_that_its_agent_gives_up_before_the_record_is_heard_is_cancelled() -> None:
    record, _ = parked(("q1", ""))
    rig = RecoveryRig()
    rig.resume(says("1"), greets=False)
    rig.feed(ev.RequestCancelled(ONE, RawJson(b"1"), "no more"))
    record = replace(record, request=RawJson(b"1"))
    assert [each.call for each in of_kind(rig.link(record), CancelCall)] == [record.call]


@behaviour("death:broker-pause")
def test_the_time_of_a_parked_call_goes_on_while_the_link_is_cut() -> None:
    record, _ = parked(("q1", ""))
    rig = RecoveryRig()
    first_call(rig, record)
    park_s = rig.core.call_table.bounds.park_s
    assert not of_kind(rig.wait(park_s - 1.0), CancelCall)
    rig.unlink()
    rig.link(record)
    assert [each.call for each in of_kind(rig.wait(1.5), CancelCall)] == [record.call]
