"""What is asked of agents: only what they declared, only for their own calls, with one answer in any case.

Source of the errors: MCP 2025-11-25, client/sampling and client/elicitation; rules 3, 4, 10.
"""

from typing import Any

import msgspec
import pytest

from carpool_broker.core.limits.memory_budgets import LINE_BYTES, MESSAGE_UNREAD_BYTES
from carpool_broker.core.model import events as ev
from carpool_broker.core.model.capabilities import Capabilities
from carpool_broker.core.model.effects import Reply, SendAsk, SendElicitationComplete, WithdrawAsk
from carpool_broker.core.model.events import SourceId
from carpool_broker.core.model.supervisors import ONLY
from carpool_broker.era import server_requests
from carpool_protocol.ids import EMPTY_OBJECT, AskId, CallId, PoolKey, RawJson, SessionId
from carpool_protocol.link.messages import (
    AnswerAsk,
    AskOpened,
    AskWithdrawn,
    Call,
    CallAnswered,
    CancelCall,
    ElicitationFinished,
    ForwardAskProgress,
    SessionEnded,
)
from carpool_protocol.wire.capabilities import needed_capabilities
from carpool_protocol.wire.json_scan import MAX_PARTS
from tests.behaviours import behaviour
from tests.kit.broker_rig import BrokerRig
from tests.kit.effects import of_kind

ONE, TWO = SessionId("s1"), SessionId("s2")
DAEMON = SourceId("daemon")
KEY, OTHER = PoolKey("a:1"), PoolKey("b:1")
ALL = Capabilities(sampling=True, sampling_tools=True, form=True, url=True)
SAMPLING, ELICITATION = "sampling/createMessage", "elicitation/create"
SAMPLE = RawJson(b'{"messages":[{"role":"user","content":{"type":"text","text":"?"}}],"maxTokens":9}')
FORM = RawJson(b'{"message":"Name?","requestedSchema":{"type":"object","properties":{}}}')
URL = RawJson(b'{"mode":"url","elicitationId":"e","url":"https://x/y","message":"Sign in"}')
RESULT = RawJson(b'{"action":"accept"}')
Q1, Q2 = AskId("life-1"), AskId("life-2")


class ServerRequestsRig(BrokerRig):
    """A core with a supervisor and one server, `a`, with one tool."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.read(KEY)
        self.supervisor_comes()

    def supervisor_comes(self) -> list[Any]:
        return super().supervisor_comes() + self.catalog(KEY, "x")

    def come(
        self, session: SessionId = ONE, capabilities: Capabilities = ALL, version: str = "2025-11-25"
    ) -> None:
        self.attach(session)
        self.greet(session, capabilities, version=version)

    def call(self, session: SessionId = ONE) -> CallId:
        self.calls += 1
        (call,) = of_kind(self.request("a__x", str(self.calls), session), Call)
        found: CallId = call.call
        return found

    def ask(
        self,
        call: CallId,
        ask: AskId = Q1,
        method: str = SAMPLING,
        params: RawJson = SAMPLE,
        *,
        wants_progress: bool = False,
    ) -> list[Any]:
        needs = needed_capabilities(method, params)
        return self.feed(AskOpened(call, ask, method, params, wants_progress, needs))

    def answer_ask(self, session: SessionId = ONE, ask: AskId = Q1, body: RawJson = RESULT) -> list[Any]:
        return self.feed(ev.AskAnswered(session, ask, is_error=False, body=body))


def error_of(effects: list[Any], ask: AskId = Q1) -> tuple[int, str]:
    (only,) = effects
    assert isinstance(only, AnswerAsk)
    assert (only.ask, only.is_error) == (ask, True)
    body = msgspec.json.decode(only.body)
    return body["code"], body["message"]


@behaviour("pressure:asks")
def test_an_agent_that_does_not_read_is_asked_until_its_share_is_used_and_then_no_more() -> None:
    rig = ServerRequestsRig()
    rig.come()
    rig.come(TWO)
    call = rig.call()
    rig.feed(ev.UnreadChanged(ONE, 1))
    long = RawJson(b'{"message":"%b"}' % (b"x" * (1 << 20)))
    asked = [rig.ask(call, AskId(f"q{number}"), ELICITATION, long) for number in range(100)]
    sent = [len(of_kind(effects, SendAsk)) for effects in asked]
    count = sent.index(0)
    assert sum(sent) == count, "no later one either"
    assert count * (len(long) + LINE_BYTES) <= MESSAGE_UNREAD_BYTES
    code, text = error_of(rig.ask(call, Q1, ELICITATION, long))
    assert (code, "not read" in text) == (-32603, True)
    assert of_kind(rig.ask(rig.call(TWO), Q2), SendAsk), "another agent reads"
    rig.feed(ev.UnreadChanged(ONE, 0))
    assert of_kind(rig.ask(call, Q1), SendAsk), "it has read"


# --- whose it is -----------------------------------------------------------------------------------------


@behaviour("asks:elicitation:32042", "asks:capability:lacking")
@pytest.mark.parametrize("declared", [ALL, Capabilities(sampling=True), Capabilities(form=True)])
def test_an_agent_that_cannot_be_sent_to_urls_is_told_what_the_server_wants(declared: Capabilities) -> None:
    rig = ServerRequestsRig()
    rig.come(ONE, declared)
    body = RawJson(b'{"code":-32042,"message":"open","data":{"elicitations":[]}}')
    (reply,) = rig.feed(CallAnswered(rig.call(ONE), True, body, True))
    assert isinstance(reply, Reply)
    if declared.url:
        assert (reply.is_error, reply.body) == (True, body)
    else:
        assert msgspec.json.decode(reply.body)["_meta"]["carpool/error"]["code"] == "needs_url"


@behaviour("asks:named", "asks:elicitation:32042")
def test_an_agent_that_sees_several_servers_reads_which_of_them_sends_it_to_a_url() -> None:
    error = RawJson(b'{"code":-32042,"message":"open","data":{"elicitations":[%b]}}' % URL)
    for keys, message in (((KEY,), "Sign in"), ((KEY, OTHER), "[a] Sign in")):
        for urls_first in (False, True):
            rig = ServerRequestsRig()
            rig.read(*keys)
            rig.come(ONE)
            (reply,) = rig.feed(CallAnswered(rig.call(ONE), True, error, urls_first))
            assert isinstance(reply, Reply)
            (url,) = msgspec.json.decode(reply.body)["data"]["elicitations"]
            assert url["message"] == message


@behaviour("asks:named", "asks:elicitation:32042")
def test_an_error_with_urls_that_cannot_be_named_fails_the_call_in_its_place() -> None:
    more = b"".join(b',"m%d":0' % n for n in range(1001))
    error = RawJson(b'{"code":-32042,"message":"open","data":{"elicitations":[%b]%b}}' % (URL, more))
    rig = ServerRequestsRig()
    rig.read(KEY, OTHER)
    rig.come(ONE)
    (reply,) = rig.feed(CallAnswered(rig.call(ONE), True, error, True))
    assert isinstance(reply, Reply)
    assert msgspec.json.decode(reply.body)["_meta"]["carpool/error"]["code"] == "answer_too_large"
    assert b"Sign in" not in bytes(reply.body)


@behaviour("asks:named", "answers:bounded-rewrite")
def test_an_error_with_too_many_urls_to_name_its_server_in_is_too_large() -> None:
    many = b",".join([URL] * MAX_PARTS)
    error = RawJson(b'{"code":-32042.0,"message":"open","data":{"elicitations":[%b]}}' % many)
    for keys, is_named in (((KEY,), False), ((KEY, OTHER), True)):
        rig = ServerRequestsRig()
        rig.read(*keys)
        rig.come(ONE)
        (reply,) = of_kind(rig.feed(CallAnswered(rig.call(ONE), True, error)), Reply)
        if is_named:
            said = msgspec.json.decode(reply.body)["_meta"]["carpool/error"]
            assert (said["code"], said["delivered"]) == ("answer_too_large", "maybe")
        else:
            assert reply.body == error


@behaviour("asks:own-agent", "asks:answered-back")
def test_an_ask_reaches_the_agent_of_its_call_and_its_answer_goes_back_untouched() -> None:
    rig = ServerRequestsRig()
    rig.come(ONE)
    rig.come(TWO)
    rig.call(ONE)
    call = rig.call(TWO)
    assert rig.ask(call, wants_progress=True) == [
        SendAsk(TWO, Q1, SAMPLING, SAMPLE, wants_progress=True, version="2025-11-25", request=RawJson(b"2"))
    ]
    body = RawJson(b'{"role" : "assistant","content":{"type":"text","text":"\\u0041"},"model":"m"}')
    assert rig.answer_ask(TWO, body=body) == [AnswerAsk(Q1, is_error=False, body=body)]


@behaviour("asks:answer-of-whom")
def test_only_the_agent_that_was_asked_can_answer_or_tell_of_progress() -> None:
    rig = ServerRequestsRig()
    rig.come(ONE)
    rig.come(TWO)
    rig.ask(rig.call(ONE), wants_progress=True)
    assert rig.answer_ask(TWO) == []
    assert rig.feed(ev.AskProgressed(TWO, Q1, EMPTY_OBJECT)) == []
    assert rig.answer_ask(ONE) == [AnswerAsk(Q1, is_error=False, body=RESULT)]


@behaviour("asks:answer-of-whom")
def test_an_ask_is_answered_once_and_what_was_never_asked_is_not_answered() -> None:
    rig = ServerRequestsRig()
    rig.come()
    assert rig.answer_ask() == []
    rig.ask(rig.call())
    assert rig.answer_ask(ask=Q2) == []
    assert len(rig.answer_ask()) == 1
    assert rig.answer_ask() == []


def test_an_ask_told_again_is_not_put_again() -> None:
    rig = ServerRequestsRig()
    rig.come()
    call = rig.call()
    assert len(rig.ask(call)) == 1
    assert rig.ask(call) == []
    assert len(rig.answer_ask()) == 1


def test_an_ask_for_a_call_that_is_over_is_answered_with_an_error() -> None:
    rig = ServerRequestsRig()
    rig.come()
    call = rig.call()
    assert rig.feed(ev.RequestCancelled(ONE, RawJson(b"1"), "")) == [CancelCall(call, "")]
    assert error_of(rig.ask(call))[0] == -32603
    assert error_of(rig.ask(CallId(99), Q2), Q2)[0] == -32603


# --- what agents declared --------------------------------------------------------------------------------

NONE = Capabilities()


@behaviour("asks:capability:lacking")
@pytest.mark.parametrize(
    ("capabilities", "method", "params", "code"),
    [
        (NONE, SAMPLING, SAMPLE, -32601),
        (Capabilities(form=True, url=True), SAMPLING, SAMPLE, -32601),
        (Capabilities(sampling=True), SAMPLING, b'{"messages":[],"tools":[{"name":"t"}]}', -32602),
        (Capabilities(sampling=True), SAMPLING, b'{"messages":[],"toolChoice":{"mode":"auto"}}', -32602),
        (NONE, ELICITATION, FORM, -32601),
        (NONE, ELICITATION, URL, -32601),
        (Capabilities(sampling=True), ELICITATION, FORM, -32601),
        (Capabilities(form=True), ELICITATION, URL, -32602),
        (Capabilities(url=True), ELICITATION, FORM, -32602),
        (Capabilities(url=True), ELICITATION, b'{"mode":"form","message":"?"}', -32602),
        (ALL, "roots/list", b"", -32601),
    ],
)
def test_an_undeclared_ask_gives_the_error_of_the_specification(
    capabilities: Capabilities, method: str, params: bytes, code: int
) -> None:
    rig = ServerRequestsRig()
    rig.come(capabilities=capabilities)
    assert error_of(rig.ask(rig.call(), method=method, params=RawJson(params)))[0] == code
    assert rig.answer_ask() == [], "nothing was asked, so there is nothing to answer"


@pytest.mark.parametrize(
    ("capabilities", "params"),
    [
        (Capabilities(sampling=True), b'{"messages":[],"tools":[{"name":"t"}]}'),
        (Capabilities(sampling=True, sampling_tools=True), b'{"messages":[],"tools":[{"name":"t"}]}'),
    ],
)
def test_a_journal_that_has_no_params_decides_the_same(capabilities: Capabilities, params: bytes) -> None:
    decided = []
    for kept in (params, b" " * len(params)):
        rig = ServerRequestsRig()
        rig.come(capabilities=capabilities)
        needs = needed_capabilities(SAMPLING, RawJson(params))
        asked = AskOpened(rig.call(), Q1, SAMPLING, RawJson(kept), wants_progress=False, needs=needs)
        decided.append([type(effect) for effect in rig.feed(asked)])
    assert decided[0] == decided[1] == [SendAsk if capabilities.sampling_tools else AnswerAsk]


@pytest.mark.parametrize("method", [SAMPLING, ELICITATION])
def test_an_ask_that_says_no_needs_has_those_of_its_method(method: str) -> None:
    rig = ServerRequestsRig()
    rig.come(ONE, Capabilities(sampling=True, form=True))
    rig.come(TWO, Capabilities(url=True))
    one = AskOpened(rig.call(ONE), Q1, method, EMPTY_OBJECT, wants_progress=False)
    assert [type(effect) for effect in rig.feed(one)] == [SendAsk]
    two = AskOpened(rig.call(TWO), Q2, method, EMPTY_OBJECT, wants_progress=False)
    assert error_of(rig.feed(two), Q2)[0] == (-32601 if method == SAMPLING else -32602)


@pytest.mark.parametrize(
    ("capabilities", "method", "params"),
    [
        (Capabilities(sampling=True), SAMPLING, SAMPLE),
        (Capabilities(sampling=True), SAMPLING, b'{"messages":[],"tools":[],"toolChoice":null}'),
        (ALL, SAMPLING, b'{"messages":[],"tools":[{"name":"t"}],"toolChoice":{"mode":"auto"}}'),
        (Capabilities(form=True), ELICITATION, FORM),
        (Capabilities(form=True), ELICITATION, b'{"mode":"form","message":"?"}'),
        (Capabilities(url=True), ELICITATION, URL),
    ],
)
def test_a_declared_ask_reaches_the_agent_untouched(
    capabilities: Capabilities, method: str, params: bytes
) -> None:
    rig = ServerRequestsRig()
    rig.come(capabilities=capabilities)
    sent = rig.ask(rig.call(), method=method, params=RawJson(params))
    asked, version, request = RawJson(params), "2025-11-25", RawJson(b"1")
    assert sent == [SendAsk(ONE, Q1, method, asked, wants_progress=False, version=version, request=request)]


@behaviour("downgrade:asks")
def test_an_older_agent_is_asked_in_words_that_it_knows_or_the_server_gets_an_error() -> None:
    rig = ServerRequestsRig()
    rig.come(capabilities=Capabilities(sampling=True, form=True), version="2025-06-18")
    two_blocks = RawJson(
        b'{"messages":[{"role":"user","content":[{"type":"text","text":"1"},{"type":"text","text":"2"}]}]}'
    )
    (sent,) = rig.ask(rig.call(), params=two_blocks)
    line = server_requests.ask_line(sent)
    assert isinstance(line, bytes)
    assert len(msgspec.json.decode(line)["params"]["messages"]) == 2
    schema = b'{"type":"object","required":["m"],"properties":{"m":{"type":"array"}}}'
    params = RawJson(b'{"message":"?","requestedSchema":%b}' % schema)
    (sent,) = rig.ask(rig.call(), Q2, ELICITATION, params)
    instead = server_requests.ask_line(sent)
    assert isinstance(instead, ev.AskAnswered)
    code, _ = error_of(rig.feed(instead), Q2)
    assert code == -32602
    assert rig.feed(AskWithdrawn(Q2, "over")) == [], "it was never put to the agent"


# --- answers and progress --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "code", "message"),
    [
        (b'{"code":-1,"message":"no","data":[1]}', -1, "no"),
        (b'"no"', -32603, "no"),
        (b"[]", -32603, "the agent gave an error without a message"),
        (b'{"code":"x"}', -32603, "the agent gave an error without a message"),
    ],
)
def test_an_agents_error_reaches_the_server_as_an_error_object(said: bytes, code: int, message: str) -> None:
    rig = ServerRequestsRig()
    rig.come()
    rig.ask(rig.call())
    assert error_of(rig.feed(ev.AskAnswered(ONE, Q1, is_error=True, body=RawJson(said)))) == (code, message)


@behaviour("asks:progress")
def test_progress_goes_to_a_server_that_wants_it_and_to_no_other() -> None:
    rig = ServerRequestsRig()
    rig.come()
    rig.ask(rig.call(), Q1, wants_progress=True)
    rig.ask(rig.call(), Q2, wants_progress=False)
    step = RawJson(b'{"progress":1}')
    assert rig.feed(ev.AskProgressed(ONE, Q1, step)) == [ForwardAskProgress(Q1, step)]
    assert rig.feed(ev.AskProgressed(ONE, Q2, step)) == []
    rig.answer_ask()
    assert rig.feed(ev.AskProgressed(ONE, Q1, step)) == []


@behaviour("link:free-messages", "pressure:unblocking-lines-are-read")
def test_asks_and_their_answers_need_no_credit_and_no_place_among_open_calls() -> None:
    rig = ServerRequestsRig()
    rig.come()
    bound = rig.core.call_table.bounds.max_open_calls
    calls = [rig.call() for _ in range(bound)]
    rig.core.links.supervisor_ready(ONLY, 0)
    asks = [AskId(f"q{n}") for n in range(bound)]
    for call, ask in zip(calls, asks, strict=True):
        assert [type(effect) for effect in rig.ask(call, ask)] == [SendAsk]
    for ask in reversed(asks):
        assert [type(effect) for effect in rig.answer_ask(ask=ask)] == [AnswerAsk]
    assert rig.core.links.credit_bytes() == 0


# --- ends ------------------------------------------------------------------------------------------------


@behaviour("asks:withdrawn:by-server")
def test_an_ask_that_the_server_withdraws_is_withdrawn_at_its_agent_once() -> None:
    rig = ServerRequestsRig()
    rig.come()
    rig.ask(rig.call())
    assert rig.feed(AskWithdrawn(Q1, "timed out")) == [WithdrawAsk(ONE, Q1, "timed out", RawJson(b"1"))]
    assert rig.feed(AskWithdrawn(Q1, "timed out")) == []
    assert rig.answer_ask() == [], "nobody waits for it any more"


def test_an_ask_that_is_answered_or_was_refused_is_not_withdrawn() -> None:
    rig = ServerRequestsRig()
    rig.come(capabilities=Capabilities(sampling=True))
    call = rig.call()
    rig.ask(call, Q1)
    rig.answer_ask()
    rig.ask(call, Q2, ELICITATION, FORM)
    assert rig.feed(AskWithdrawn(Q1, "over")) == []
    assert rig.feed(AskWithdrawn(Q2, "over")) == []


@behaviour("asks:withdrawn:call-over")
def test_an_agent_that_cancels_its_own_call_is_told_that_the_question_is_off() -> None:
    rig = ServerRequestsRig()
    rig.come()
    call = rig.call()
    rig.ask(call)
    assert rig.feed(ev.RequestCancelled(ONE, RawJson(b"1"), "")) == [CancelCall(call, "")]
    assert rig.feed(AskWithdrawn(Q1, "the call was cancelled")) == [
        WithdrawAsk(ONE, Q1, "the call was cancelled", RawJson(b"1"))
    ]


@behaviour("asks:agent-gone")
def test_asks_of_a_closed_session_are_answered_and_not_written_to_it() -> None:
    rig = ServerRequestsRig()
    rig.come(ONE)
    rig.come(TWO)
    mine, other = rig.call(ONE), rig.call(TWO)
    rig.ask(mine, Q1)
    rig.ask(other, Q2)
    said = rig.feed(ev.SessionClosed(ONE))
    assert [type(effect) for effect in said] == [CancelCall, AnswerAsk, SessionEnded]
    assert error_of([said[1]])[0] == -32603
    assert rig.feed(AskWithdrawn(Q1, "the call was cancelled")) == []
    assert len(rig.answer_ask(TWO, Q2)) == 1


def test_a_lost_supervisor_withdraws_asks_from_their_agents() -> None:
    rig = ServerRequestsRig()
    rig.come()
    rig.ask(rig.call())
    withdrawn = [effect for effect in rig.feed(ev.SupervisorLost()) if isinstance(effect, WithdrawAsk)]
    assert [(each.session, each.ask) for each in withdrawn] == [(ONE, Q1)]
    rig.supervisor_comes()
    assert rig.answer_ask() == []


def test_a_call_that_is_answered_leaves_its_ask_to_whoever_asked() -> None:
    rig = ServerRequestsRig()
    rig.come()
    call = rig.call()
    rig.ask(call)
    rig.feed(CallAnswered(call, is_error=False, body=EMPTY_OBJECT))
    withdrawal = WithdrawAsk(ONE, Q1, "the call is over", RawJson(b"1"))
    assert rig.feed(AskWithdrawn(Q1, "the call is over")) == [withdrawal]


# --- url elicitations ------------------------------------------------------------------------------------


@behaviour("asks:elicitation:completion")
def test_the_end_of_an_elicitation_is_told_to_its_agent_if_it_can_know_what_that_is() -> None:
    params = RawJson(b'{"elicitationId":"e"}')
    rig = ServerRequestsRig()
    rig.come(ONE, ALL)
    rig.come(TWO, Capabilities(form=True))
    assert rig.feed(ElicitationFinished(ONE, params)) == [SendElicitationComplete(ONE, params)]
    assert rig.feed(ElicitationFinished(TWO, params)) == []
    assert rig.feed(ElicitationFinished(SessionId("gone"), params)) == []


def test_an_agent_of_an_older_version_does_not_hear_of_the_end_of_an_elicitation() -> None:
    rig = ServerRequestsRig()
    rig.come(ONE, ALL, version="2025-06-18")
    assert rig.feed(ElicitationFinished(ONE, EMPTY_OBJECT)) == []
