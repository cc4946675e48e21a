"""What a server wants of an agent of the stateless era: rounds, tokens, and who may bring what.

Source: MCP 2026-07-28, basic/utilities/mrtr; rules 9 and 14.
"""

import json
from typing import Any

import pytest

from carpool_broker.core.calls import input_required
from carpool_broker.core.calls.request_state import RequestStateTokens
from carpool_broker.core.model import events as ev
from carpool_broker.core.model.capabilities import Capabilities, StatelessAgent
from carpool_broker.core.model.effects import (
    ForgetRecordedCall,
    ReplyStateless,
    RequiredInput,
    RequireInput,
    SendProgress,
)
from carpool_protocol.ids import EMPTY_OBJECT, AskId, CallId, RawJson, ServerName, SessionId
from carpool_protocol.link.messages import (
    AnswerAsk,
    AskOpened,
    AskWithdrawn,
    Call,
    CallAnswered,
    CallFailed,
    CallProgressed,
    CancelCall,
    LogForSession,
    SessionEnded,
    SetLevel,
)
from tests.behaviours import behaviour
from tests.broker.stateless_rig import (
    ASKING,
    ELICITATION,
    ONE,
    PARAMS,
    PLAIN,
    RESULT,
    SAMPLING,
    TWO,
    A,
    StatelessRig,
)

R1, R2, R3 = RawJson(b"1"), RawJson(b"2"), RawJson(b"3")
SAID, MORE = RawJson(b'{"role":"assistant"}'), RawJson(b'{"role":"user"}')
URLS = (RawJson(b'{"mode":"url","url":"https://x/1"}'), RawJson(b'{"mode":"url","url":"https://x/2"}'))


def refused(effects: list[Any]) -> bool:
    """It got the one error for tokens, and nothing else happened."""
    (reply,) = effects
    assert isinstance(reply, ReplyStateless)
    assert json.loads(reply.body)["code"] == -32602
    return b"bad_request_state" in bytes(reply.body)


def answer_to(ask: str, body: RawJson = SAID) -> AnswerAsk:
    return AnswerAsk(AskId(ask), is_error=False, body=body)


# --- a round --------------------------------------------------------------------------------------------


def test_questions_of_one_burst_are_one_round_and_each_answer_goes_where_it_was_asked() -> None:
    rig = StatelessRig()
    call = rig.call("1").call
    rig.ask(call, "q1")
    rig.ask(call, "q2", ELICITATION, name="who", needs=["elicitation.form"])
    (said,) = rig.wait(0.005)
    assert (said.session, said.id) == (ONE, R1)
    assert said.inputs == (
        RequiredInput("ask-q1", SAMPLING, PARAMS, ServerName("a")),
        RequiredInput("who", ELICITATION, PARAMS, ServerName("a")),
    )
    effects = rig.call_tool("2", state=said.state, given={"who": MORE, "ask-q1": SAID})
    assert effects == [answer_to("q2", MORE), answer_to("q1", SAID)]
    answer = rig.feed(CallAnswered(call, is_error=False, body=RESULT))
    assert answer == [ReplyStateless(ONE, R2, is_error=False, body=RESULT, method="tools/call", call=call)]


def test_an_answer_that_is_missing_is_wanted_again_under_another_token() -> None:
    rig = StatelessRig()
    _, said = rig.park("1", "q1", "q2")
    answered, again = rig.call_tool("2", state=said.state, given={"ask-q1": SAID})
    assert answered == answer_to("q1")
    assert (again.id, again.inputs) == (R2, said.inputs[1:])
    assert again.state != said.state
    assert rig.call_tool("3", state=again.state, given={"ask-q2": MORE}) == [answer_to("q2", MORE)]


def test_a_server_may_want_something_round_after_round_and_each_time_it_is_another_token() -> None:
    rig = StatelessRig()
    call, said = rig.park()
    seen = set()
    for number in range(2, 20):
        seen.add(said.state)
        key = said.inputs[0].key
        assert rig.call_tool(str(number), state=said.state, given={key: SAID}) == [
            answer_to(f"q{number - 1}")
        ]
        rig.ask(call, f"q{number}")
        (said,) = rig.wait(1.0)
    assert len(seen) == 18


def test_an_ask_during_a_parked_round_comes_with_the_answer_to_the_retry() -> None:
    rig = StatelessRig()
    call, said = rig.park()
    assert rig.ask(call, "q2") == []
    assert rig.wait(1.0) == []
    answered, again = rig.call_tool("2", state=said.state, given={"ask-q1": SAID})
    assert answered == answer_to("q1")
    assert len(again.inputs) == 1


def test_the_id_of_a_request_that_was_answered_so_may_be_used_again() -> None:
    rig = StatelessRig()
    _, said = rig.park("1")
    other = rig.call("1").call
    assert rig.call_tool("2", state=said.state, given={"ask-q1": SAID}) == [answer_to("q1")]
    (reply,) = rig.feed(CallAnswered(other, is_error=False, body=RESULT))
    assert reply.id == R1


def test_a_key_that_two_questions_have_is_given_to_the_first() -> None:
    rig = StatelessRig()
    call = rig.call("1").call
    rig.ask(call, "q1", name="k")
    rig.ask(call, "q2", name="k")
    (said,) = rig.wait(1.0)
    assert [each.key for each in said.inputs] == ["k", "ask-q2"]


@pytest.mark.parametrize(
    ("can", "method", "needs", "code"),
    [
        (Capabilities(), SAMPLING, [], -32601),
        (Capabilities(sampling=True), SAMPLING, ["sampling.tools"], -32602),
        (Capabilities(form=True), ELICITATION, ["elicitation.url"], -32602),
        (Capabilities(sampling=True), "roots/list", [], -32601),
        (Capabilities(roots=True), "tools/call", [], -32601),
    ],
)
def test_an_ask_that_this_request_has_not_declared_is_refused(
    can: Capabilities, method: str, needs: list[Any], code: int
) -> None:
    rig = StatelessRig()
    rig.call("0", by=ASKING)  # the session is one that can be asked; this request is not
    call = rig.call("1", by=StatelessAgent(can)).call
    (answer,) = rig.ask(call, "q1", method, needs=needs)
    assert isinstance(answer, AnswerAsk)
    assert answer.is_error
    assert json.loads(answer.body)["code"] == code


def test_roots_are_asked_of_who_declares_them() -> None:
    rig = StatelessRig()
    call = rig.call("1", by=StatelessAgent(Capabilities(roots=True))).call
    assert rig.ask(call, "q1", "roots/list") == []
    (said,) = rig.wait(1.0)
    assert said.inputs[0].method == "roots/list"


def test_a_request_that_cannot_be_answered_so_asks_for_nothing() -> None:
    rig = StatelessRig()
    ref = '{"type":"ref/resource","uri":"file:///a"}'
    call = rig.call("1", ref, method="completion/complete").call
    (answer,) = rig.ask(call)
    assert answer.is_error


def test_a_repeated_ask_counts_once() -> None:
    rig = StatelessRig()
    call = rig.call("1").call
    rig.ask(call)
    assert rig.ask(call) == []
    (said,) = rig.wait(1.0)
    assert len(said.inputs) == 1
    assert rig.ask(call) == []


def test_a_question_that_is_taken_back_is_not_put() -> None:
    rig = StatelessRig()
    call = rig.call("1").call
    rig.ask(call)
    rig.feed(AskWithdrawn(AskId("q1"), ""))
    assert rig.wait(1.0) == []
    (reply,) = rig.feed(CallAnswered(call, is_error=False, body=RESULT))
    assert reply.id == R1


def test_a_question_that_is_taken_back_later_needs_no_answer_any_more() -> None:
    rig = StatelessRig()
    call, said = rig.park("1", "q1", "q2")
    rig.feed(AskWithdrawn(AskId("q1"), ""))
    assert rig.call_tool("2", state=said.state, given={"ask-q1": SAID, "ask-q2": MORE}) == [
        answer_to("q2", MORE)
    ]
    (reply,) = rig.feed(CallAnswered(call, is_error=False, body=RESULT))
    assert reply.id == R2


# --- in advance -----------------------------------------------------------------------------------------


@behaviour("eras:rounds:in-advance")
def test_answers_given_in_advance_go_to_the_ask_of_the_same_name() -> None:
    rig = StatelessRig()
    (call,) = rig.call_tool("1", given={"who": SAID, "where": MORE})
    assert isinstance(call, Call)
    assert rig.ask(call.call, "q1", name="where") == [answer_to("q1", MORE)]
    assert rig.ask(call.call, "q2", name="who") == [answer_to("q2", SAID)]
    assert rig.wait(1.0) == []
    (reply,) = rig.feed(CallAnswered(call.call, is_error=False, body=RESULT))
    assert reply.id == R1


@behaviour("eras:rounds:in-advance")
def test_an_answer_in_advance_that_fits_no_ask_is_ignored() -> None:
    rig = StatelessRig()
    (call,) = rig.call_tool("1", given={"ask-q1": SAID, "WHO": SAID, "": SAID})
    rig.ask(call.call, "q1", name="who")
    rig.ask(call.call, "q2")
    (said,) = rig.wait(1.0)
    assert [each.key for each in said.inputs] == ["who", "ask-q2"]


def test_an_answer_in_advance_is_given_once() -> None:
    rig = StatelessRig()
    (call,) = rig.call_tool("1", given={"who": SAID})
    assert rig.ask(call.call, "q1", name="who") == [answer_to("q1")]
    assert rig.ask(call.call, "q2", name="who") == []
    (said,) = rig.wait(1.0)
    assert [each.key for each in said.inputs] == ["who"]


def test_answers_in_advance_are_for_the_first_round_only() -> None:
    rig = StatelessRig()
    (call,) = rig.call_tool("1", given={"who": SAID})
    rig.ask(call.call, "q1")
    (said,) = rig.wait(1.0)
    again = {"ask-q1": SAID, "when": SAID}
    assert rig.call_tool("2", state=said.state, given=again) == [answer_to("q1")]
    assert rig.ask(call.call, "q2", name="who") == []
    assert rig.ask(call.call, "q3", name="when") == []


def test_answers_in_advance_are_those_of_their_own_call() -> None:
    rig = StatelessRig()
    other = rig.call("1").call
    rig.call_tool("2", given={"who": SAID})
    assert rig.ask(other, "q1", name="who") == []


def test_an_undeclared_ask_is_not_answered_in_advance_either() -> None:
    rig = StatelessRig()
    (call,) = rig.call_tool("1", by=PLAIN, given={"who": SAID})
    (answer,) = rig.ask(call.call, "q1", name="who")
    assert answer.is_error


# --- tokens ---------------------------------------------------------------------------------------------


def test_a_token_is_good_once() -> None:
    rig = StatelessRig()
    call, said = rig.park()
    rig.call_tool("2", state=said.state, given={"ask-q1": SAID})
    assert refused(rig.call_tool("3", state=said.state, given={"ask-q1": MORE}))
    rig.feed(CallAnswered(call, is_error=False, body=RESULT))
    assert refused(rig.call_tool("4", state=said.state, given={"ask-q1": MORE}))


def test_a_token_of_an_earlier_round_is_not_good_for_the_next() -> None:
    rig = StatelessRig()
    call, said = rig.park()
    rig.call_tool("2", state=said.state, given={"ask-q1": SAID})
    rig.ask(call, "q2")
    (again,) = rig.wait(1.0)
    assert refused(rig.call_tool("3", state=said.state, given={again.inputs[0].key: MORE}))
    assert rig.call_tool("4", state=again.state, given={again.inputs[0].key: MORE}) == [answer_to("q2", MORE)]


def test_a_token_of_another_session_is_no_token_and_stays_good_for_its_own() -> None:
    rig = StatelessRig()
    rig.come(TWO)
    _, said = rig.park()
    assert refused(rig.call_tool("2", session=TWO, state=said.state, given={"ask-q1": SAID}))
    assert rig.call_tool("2", state=said.state, given={"ask-q1": SAID}) == [answer_to("q1")]


@pytest.mark.parametrize(
    "changed",
    [{"digest": "another"}, {"name": "b__y"}, {"method": "prompts/get"}],
    ids=["arguments", "name", "method"],
)
def test_a_retry_of_another_request_is_none(changed: dict[str, str]) -> None:
    rig = StatelessRig()
    _, said = rig.park()
    assert refused(rig.call_tool("2", state=said.state, given={"ask-q1": SAID}, **changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "made_up",
    ["x", "1.1", "1.1.", "1.1.0", "..", "1.1.1.1", "-1.1.0", "٣.1.0", "1.1.é", f"{'9' * 5000}.1.0", "\ud800"],
)
def test_a_made_up_token_is_refused(made_up: str) -> None:
    rig = StatelessRig()
    rig.park()
    assert refused(rig.call_tool("2", state=made_up, given={"ask-q1": SAID}))


def test_a_token_with_one_character_changed_is_refused() -> None:
    rig = StatelessRig()
    _, said = rig.park()
    for at, letter in enumerate(said.state):
        other = said.state[:at] + ("0" if letter != "0" else "1") + said.state[at + 1 :]
        assert refused(rig.call_tool("2", state=other, given={"ask-q1": SAID}))
    for form in (said.state.upper(), " " + said.state, "0" + said.state):
        assert form == said.state or refused(rig.call_tool("2", state=form, given={"ask-q1": SAID}))


def test_answers_without_a_token_begin_a_call_of_its_own_and_what_is_parked_stays() -> None:
    rig = StatelessRig()
    _, said = rig.park()
    (call,) = rig.call_tool("2", given={"ask-q1": MORE})
    assert isinstance(call, Call)
    assert rig.call_tool("3", state=said.state, given={"ask-q1": SAID}) == [answer_to("q1")]


def test_two_brokers_make_different_tokens() -> None:
    one = StatelessRig()
    _, said = one.park()
    other = StatelessRig()
    other.core.parked_calls.state_tokens = RequestStateTokens(b"another")
    _, elsewhere = other.park()
    assert said.state != elsewhere.state
    assert refused(one.call_tool("2", state=elsewhere.state, given={"ask-q1": SAID}))


# --- between two rounds ---------------------------------------------------------------------------------


def test_an_answer_of_a_parked_call_is_kept_for_the_retry() -> None:
    rig = StatelessRig()
    call, said = rig.park()
    assert rig.feed(CallAnswered(call, is_error=False, body=RESULT)) == []
    (reply,) = rig.call_tool("2", state=said.state, given={"ask-q1": SAID})
    assert (reply.id, reply.body) == (R2, RESULT)
    assert refused(rig.call_tool("3", state=said.state))


def test_a_failure_of_a_parked_call_is_kept_for_the_retry() -> None:
    rig = StatelessRig()
    call, said = rig.park()
    assert rig.feed(CallFailed(call, "timed_out", "maybe", "Too slow.")) == []
    (reply,) = rig.call_tool("2", state=said.state, given={"ask-q1": SAID})
    assert b"timed_out" in reply.body


def test_a_supervisor_that_goes_ends_what_is_parked_and_the_retry_hears_of_it() -> None:
    rig = StatelessRig()
    _, said = rig.park()
    assert rig.feed(ev.SupervisorLost()) == []
    (reply,) = rig.call_tool("2", state=said.state, given={"ask-q1": SAID})
    assert b"link_broken" in reply.body


def test_a_parked_call_without_a_retry_is_cancelled_in_time() -> None:
    rig = StatelessRig(park_s=30.0)
    call, said = rig.park()
    assert rig.wait(29.0) == []
    (cancel, let_go) = rig.wait(2.0)
    assert cancel == CancelCall(call, "the agent did not bring in time what it wants", answered=True)
    assert let_go == ForgetRecordedCall(ONE, call), (
        "its agent may not have read what is wanted, and is not to say it anew"
    )
    assert refused(rig.call_tool("2", state=said.state, given={"ask-q1": SAID}))
    assert rig.core.next_deadline() is None


def test_a_kept_answer_without_a_retry_is_forgotten() -> None:
    rig = StatelessRig(park_s=30.0)
    call, _ = rig.park()
    rig.feed(CallAnswered(call, is_error=False, body=RESULT))
    assert rig.wait(31.0) == [ForgetRecordedCall(ONE, call)], (
        "nor need the supervisor remember it, once that was read"
    )
    assert rig.core.next_deadline() is None


def test_cancelling_the_request_that_was_answered_does_nothing_and_that_of_the_retry_ends_the_call() -> None:
    rig = StatelessRig()
    call, said = rig.park()
    assert rig.feed(ev.RequestCancelled(ONE, R1, "")) == []
    rig.call_tool("2", state=said.state, given={"ask-q1": SAID})
    assert rig.feed(ev.RequestCancelled(ONE, R2, "enough")) == [CancelCall(call, "enough")]


def test_a_call_that_is_cancelled_while_questions_are_gathered_puts_none() -> None:
    rig = StatelessRig()
    call = rig.call("1").call
    rig.ask(call)
    assert rig.feed(ev.RequestCancelled(ONE, R1, "enough")) == [CancelCall(call, "enough")]
    assert rig.wait(10.0) == []


def test_an_agent_that_goes_takes_its_parked_calls_along() -> None:
    rig = StatelessRig()
    call, _ = rig.park()
    cancel, gone = rig.feed(ev.SessionClosed(ONE))
    assert (cancel.call, gone) == (call, SessionEnded(ONE))
    assert rig.core.next_deadline() is None


def test_progress_is_held_back_and_the_latest_of_it_goes_on_under_the_new_token() -> None:
    rig = StatelessRig()
    call, said = rig.park("1", token='"one"')
    assert rig.feed(CallProgressed(call, RawJson(b'{"progress":1}'))) == []
    assert rig.feed(CallProgressed(call, RawJson(b'{"progress":2}'))) == []
    effects = rig.call_tool("2", state=said.state, given={"ask-q1": SAID}, token='"two"')
    report = SendProgress(ONE, RawJson(b'"two"'), RawJson(b'{"progress":2}'), R2)
    assert effects == [answer_to("q1"), report]
    (further,) = rig.feed(CallProgressed(call, RawJson(b'{"progress":3}')))
    assert further.token == b'"two"'


def test_no_log_message_is_said_between_rounds_and_the_level_is_the_new_requests() -> None:
    rig = StatelessRig()
    loud = StatelessAgent(ASKING.capabilities, level="debug")
    call = next(each.call for each in rig.call_tool("1", by=loud) if isinstance(each, Call))
    rig.ask(call)
    (said,) = rig.wait(1.0)
    assert rig.feed(LogForSession(ONE, "error", EMPTY_OBJECT, call)) == []
    effects = rig.call_tool("2", state=said.state, given={"ask-q1": SAID}, by=ASKING)
    assert SetLevel(A, "") in effects
    assert rig.feed(LogForSession(ONE, "error", EMPTY_OBJECT, call)) == []


def test_an_answer_too_large_to_keep_is_told_as_lost() -> None:
    rig = StatelessRig()
    call, said = rig.park()
    other, also = rig.park("3", "q3")
    rig.feed(CallAnswered(call, is_error=False, body=RawJson(b" " * 50 * 1024 * 1024)))
    rig.feed(CallAnswered(other, is_error=False, body=RawJson(b" " * 50 * 1024 * 1024)))
    (reply,) = rig.call_tool("4", state=also.state)
    assert b'"lost"' in reply.body
    (reply,) = rig.call_tool("5", state=said.state)
    assert len(reply.body) > 1024 * 1024


def test_one_session_parks_no_more_than_its_share() -> None:
    rig = StatelessRig(max_open_calls=1000)
    for number in range(256):
        rig.ask(rig.call(str(number)).call, f"q{number}")
    (answer,) = rig.ask(rig.call("x1").call, "one too many")
    assert answer.is_error
    assert len(rig.wait(1.0)) == 256


def test_agents_of_a_shared_session_that_do_not_come_back_leave_room_for_the_others() -> None:
    rig = StatelessRig()
    many = SessionId("s9")
    rig.feed(
        ev.SessionOpened(
            session=many, source=ev.SourceId("daemon"), agent="", pid=1, carrier="http",
            shared=True, anonymous=True, max_open_calls=5,
        )
    )  # fmt: skip
    for number in range(1, 4):
        rig.park(f"@{number} 1", f"q{number}", session=many)
    (answer,) = rig.ask(rig.call("@4 1", session=many).call, "q4")
    assert answer.is_error
    assert rig.call("@5 1", session=many).key == A


# --- a server that sends its user to URLs first ---------------------------------------------------------


def urls_first(call: CallId, urls: tuple[RawJson, ...]) -> CallAnswered:
    return CallAnswered(call, is_error=True, body=EMPTY_OBJECT, urls_first=True, urls=tuple(urls))


def test_a_server_that_sends_its_user_to_urls_is_called_again_when_the_user_was_there() -> None:
    rig = StatelessRig()
    call = rig.call("1")
    (said, let_go) = rig.feed(urls_first(call.call, URLS))
    assert let_go == ForgetRecordedCall(ONE, call.call), (
        "once it has been read the retry says all that is needed"
    )
    assert [(each.method, each.params) for each in said.inputs] == [(ELICITATION, url) for url in URLS]
    keys = [each.key for each in said.inputs]
    (again,) = rig.call_tool("2", state=said.state, given={keys[0]: SAID})
    assert [each.key for each in again.inputs] == keys[1:]
    (repeated,) = rig.call_tool("3", state=again.state, given={keys[1]: SAID})
    assert isinstance(repeated, Call)
    assert (repeated.target, repeated.params) == (call.target, call.params)
    assert repeated.call != call.call
    (reply,) = rig.feed(CallAnswered(repeated.call, is_error=False, body=RESULT))
    assert reply.id == R3


def test_a_user_who_does_not_agree_ends_the_call() -> None:
    rig = StatelessRig()
    (said, _) = rig.feed(urls_first(rig.call("1").call, URLS))
    (reply,) = rig.call_tool("2", state=said.state, given={said.inputs[0].key: SAID}, declined=True)
    assert b"url_declined" in reply.body


@pytest.mark.parametrize(("by", "urls"), [(PLAIN, URLS), (ASKING, ())])
def test_an_agent_without_url_elicitation_is_told_that_the_server_needs_a_url(
    by: StatelessAgent, urls: tuple[RawJson, ...]
) -> None:
    rig = StatelessRig()
    (reply,) = rig.feed(urls_first(rig.call("1", by=by).call, urls))
    assert b"needs_url" in reply.body


def test_a_server_that_always_sends_its_user_away_ends_with_an_error() -> None:
    rig = StatelessRig()
    call = rig.call("1").call
    for number in range(2, 12):
        (said, _) = rig.feed(urls_first(call, URLS[:1]))
        (sent,) = rig.call_tool(str(number), state=said.state, given={said.inputs[0].key: SAID})
        call = sent.call
    (reply,) = rig.feed(urls_first(call, URLS))
    assert b'"lost"' in reply.body


def test_urls_may_be_required_after_an_ask_and_during_a_parked_round() -> None:
    rig = StatelessRig()
    call, said = rig.park()
    assert rig.feed(urls_first(call, URLS[:1])) == [ForgetRecordedCall(ONE, call)], (
        "what it was told may be unread"
    )
    (again,) = rig.call_tool("2", state=said.state, given={"ask-q1": SAID})
    assert [each.params for each in again.inputs] == [URLS[0]]
    (sent,) = rig.call_tool("3", state=again.state, given={again.inputs[0].key: SAID})
    assert isinstance(sent, Call)


# --- sessions of many agents ----------------------------------------------------------------------------


def test_a_parked_call_of_a_shared_session_is_resumed_by_whoever_has_its_token() -> None:
    rig = StatelessRig()
    many = SessionId("s9")
    rig.come(many, shared=True, anonymous=True)
    call, said = rig.park("@1 1", session=many)
    assert rig.call_tool("@2 1", session=many, state=said.state, given={"ask-q1": SAID}) == [answer_to("q1")]
    (reply,) = rig.feed(CallAnswered(call, is_error=False, body=RESULT))
    assert reply.id == b"@2 1"


def test_a_question_for_a_call_that_is_over_is_answered_with_an_error() -> None:
    rig = StatelessRig()
    call = rig.call("1").call
    rig.feed(CallAnswered(call, is_error=False, body=RESULT))
    (answer,) = rig.feed(AskOpened(call, AskId("q1"), SAMPLING, PARAMS, False))
    assert answer.is_error


def test_agents_of_the_handshake_era_are_asked_as_before() -> None:
    rig = StatelessRig()
    rig.come(TWO)
    rig.initialize(TWO, Capabilities(sampling=True))
    (sent,) = rig.feed(ev.CallRequested(TWO, R1, "a__x", EMPTY_OBJECT, RawJson(b""), RawJson(b"")))
    (asked,) = rig.ask(sent.call)
    assert asked.request == R1


def test_an_error_is_kept_instead_of_the_answer_past_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = StatelessRig()
    rounds = [rig.park(str(number), f"q{number}") for number in range(3)]
    monkeypatch.setattr(input_required, "MAX_HELD_BYTES", 1000)
    answer = RawJson(b'{"content":[],"x":"%b"}' % (b"a" * 900))
    for call, _ in rounds:
        rig.feed(
            CallAnswered(call, is_error=False, body=answer)
        )  # every invariant holds, the bound among them
    bodies = []
    for number, (_, said) in enumerate(rounds):
        (reply,) = rig.call_tool(f"1{number}", state=said.state, given={"ask-q1": SAID})
        bodies.append(bytes(reply.body))
    assert bodies[0] == answer
    assert all(b"too large to keep" in body for body in bodies[1:])


@behaviour("asks:answer-of-whom")
def test_an_answer_to_a_question_that_is_over_is_not_taken_for_one_of_the_same_name() -> None:
    rig = StatelessRig()
    call = rig.call("1").call
    rig.ask(call, "q1", name="k")
    (said,) = rig.wait(0.01)
    assert [each.key for each in said.inputs] == ["k"]
    rig.feed(AskWithdrawn(AskId("q1"), "nobody has answered in time"))
    rig.ask(call, "q2", name="k")
    effects = rig.call_tool("2", state=said.state, given={"k": RESULT})
    assert [effect for effect in effects if isinstance(effect, AnswerAsk)] == []
    (again,) = [effect for effect in effects if isinstance(effect, RequireInput)]
    (wanted,) = again.inputs
    assert wanted.key != "k"
    effects = rig.call_tool("3", state=again.state, given={wanted.key: RESULT})
    assert AnswerAsk(AskId("q2"), is_error=False, body=RESULT) in effects
