"""What agents with a profile may use: at once, in a minute, of how many servers; alone or with one token."""

from typing import Any

import pytest

from carpool_broker.core.limits.quotas import Quotas
from carpool_broker.core.model.bounds import ProfileLimits
from carpool_broker.core.model.effects import Reply
from carpool_broker.core.model.events import CallRequested, SourceId
from carpool_broker.core.model.session import Quota, Session
from carpool_broker.core.model.supervisors import ONLY
from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, CallId, PoolKey, RawJson, ServerName, SessionId
from carpool_protocol.link.messages import CallAnswered
from tests.behaviours import behaviour
from tests.broker.core.calls.test_call_table import ONE, TWO, CallTableRig, calls
from tests.kit.bytecodes import count_bytecodes

THREE = SessionId("s3")


class Bounded(CallTableRig):
    """Two sessions with a profile; `token`: both came with one."""

    def __init__(self, token: str = "", **limits: int) -> None:
        super().__init__()
        for session in self.sessions.values():
            session.profile, session.principal = "p", token
            self.ledger.admission.quotas.session_opened(session, {"p": ProfileLimits(**limits)}, self.now)

    def use(self, server: str, request: str, session: SessionId = ONE) -> list[Any]:
        asked = CallRequested(session, RawJson(request.encode()), "x", RawJson(b""), ABSENT, ABSENT)
        open_call = self.ledger.open(self.sessions[session], asked)
        open_call.key, open_call.server, open_call.target = PoolKey(f"{server}:1"), ServerName(server), "t"
        self.ledger.admission.admit(open_call, self.now)
        return self.done()


def refusal(effects: list[Any]) -> tuple[bytes, bool]:
    """The body, and whether it says when to come again."""
    (reply,) = effects
    assert isinstance(reply, Reply)
    return bytes(reply.body), b"retry_after_s" in bytes(reply.body)


@behaviour("profiles:bounds")
def test_calls_over_the_bound_of_the_profile_wait_for_those_that_are_open() -> None:
    rig = Bounded(max_in_flight=1)
    assert [calls(rig.call(str(n))) for n in range(2)] == [[1], []]
    assert calls(rig.call("0", TWO)) == [3], "each session has its own"
    assert calls(rig.answer(1)) == [2]
    assert calls(rig.answer(2)) == []


@behaviour("profiles:bounds")
def test_sessions_of_one_token_have_one_bound_and_take_turns() -> None:
    rig = Bounded(token="ann", max_in_flight=2)
    assert [calls(rig.call(str(n))) for n in range(4)] == [[1], [2], [], []]
    assert [calls(rig.call(str(n), TWO)) for n in range(2)] == [[], []]
    order = [calls(rig.answer(call)) for call in (1, 2, 3, 4, 5, 6)]
    assert order == [[3], [5], [4], [6], [], []], "by turns, and each in its own order"


@pytest.mark.parametrize("waiting", [False, True], ids=["idle", "with a queued call"])
def test_the_end_of_a_call_costs_the_same_however_many_sessions_its_token_has(waiting: bool) -> None:
    def cost(sessions: int) -> int:
        rig = Bounded(token="ann", max_in_flight=2)
        quotas = rig.ledger.admission.quotas
        rig.call("1")
        rig.call("2")
        for number in range(sessions):
            name = SessionId(f"more{number}")
            more = rig.sessions[name] = Session(name, SourceId("daemon"), "", 1, "shim")
            more.profile, more.principal = "p", "ann"
            quotas.session_opened(more, {"p": ProfileLimits(max_in_flight=2)}, rig.now)
            if waiting:
                rig.call("1", name)
        answer = CallAnswered(CallId(1), is_error=False, body=EMPTY_OBJECT)
        return count_bytecodes(lambda: rig.ledger.call_answered(answer, rig.now))

    assert cost(200) <= 2 * cost(2)


def test_a_call_without_credit_keeps_its_turn_and_holds_up_no_session_of_its_token() -> None:
    """The supervisor of one server is away, and two sessions of one token wait."""
    rig = Bounded(token="ann", max_in_flight=1)
    assert calls(rig.call("1")) == [1]
    assert calls(rig.call("1", TWO)) == []
    assert calls(rig.call("2")) == []
    rig.ledger.links.supervisor_ready(ONLY, 0)
    assert calls(rig.answer(1)) == []
    rig.ledger.links.supervisor_ready(ONLY, 100)
    rig.ledger.admission.send_queued_of_all(rig.now)
    assert calls(rig.done()) == [2], "the session that waited first"
    assert calls(rig.answer(2)) == [3]


def test_a_closed_session_frees_the_quota_for_others_of_its_token() -> None:
    rig = Bounded(token="ann", max_in_flight=1)
    assert calls(rig.call("1")) == [1]
    assert calls(rig.call("1", TWO)) == []
    left = rig.sessions[ONE]
    rig.ledger.session_closed(left)
    rig.ledger.admission.quotas.session_closed(left)
    del rig.sessions[ONE]
    rig.ledger.admission.send_queued(left, rig.now)
    assert calls(rig.done()) == [2]


@behaviour("profiles:bounds")
@pytest.mark.parametrize("token", ["", "ann"])
def test_a_token_has_no_more_calls_or_servers_by_ending_its_sessions(token: str) -> None:
    limits = {"calls_per_minute": 2, "max_servers": 1}
    rig = Bounded(token=token, **limits)

    def again() -> None:
        for session in rig.sessions.values():
            rig.ledger.session_closed(session)
            rig.ledger.admission.quotas.session_closed(session)
            session.quota = None
        rig.ledger.admission.quotas.check([])
        for session in rig.sessions.values():
            rig.ledger.admission.quotas.session_opened(session, {"p": ProfileLimits(**limits)}, rig.now)

    assert [len(calls(rig.use("a", str(n)))) for n in range(2)] == [1, 1]
    rig.answer(1)
    rig.answer(2)
    again()
    assert len(calls(rig.use("a", "2"))) == (token == "")
    again()
    rig.now += 31.0
    assert len(calls(rig.use("b", "3"))) == (token == "")
    again()
    rig.now += 61.0
    again()
    assert len(calls(rig.use("b", "4"))) == 1, "after a minute it is as if it had not been there"


@behaviour("profiles:bounds")
def test_calls_of_a_minute_may_come_at_once_and_then_evenly() -> None:
    rig = Bounded(calls_per_minute=2)
    assert [calls(rig.call(str(n))) for n in range(2)] == [[1], [2]]
    rig.answer(1)
    rig.answer(2)
    body, says_when = refusal(rig.call("2"))
    assert b'"too_many_a_minute"' in body
    assert b"The profile p allows 2." in body
    assert says_when
    assert calls(rig.call("0", TWO)) == [4], "each session has its own"
    rig.now += 29.9
    assert refusal(rig.call("3"))[1]
    rig.now += 0.2
    assert calls(rig.call("4")) == [6]


@behaviour("cluster:rights")
def test_an_agent_of_another_node_is_told_which_node_s_rule_it_is() -> None:
    rig = Bounded(calls_per_minute=1)
    rig.sessions[ONE].node = "alpha"
    assert calls(rig.call("1")) == [1]
    body, _ = refusal(rig.call("2"))
    assert b"The profile p allows 1. That is the rule of node alpha for agents of other nodes" in body
    assert b"`cluster.profile` there" in body


@behaviour("profiles:bounds")
def test_one_token_has_one_minute_however_many_sessions_it_opens() -> None:
    rig = Bounded(token="ann", calls_per_minute=1)
    assert calls(rig.call("1")) == [1]
    assert b'"too_many_a_minute"' in refusal(rig.call("1", TWO))[0]


@behaviour("profiles:bounds")
def test_one_server_more_than_the_bound_is_refused_and_those_before_go_on() -> None:
    rig = Bounded(max_servers=2)
    assert calls(rig.use("a", "1")) == [1]
    assert calls(rig.use("b", "2")) == [2]
    body, _ = refusal(rig.use("c", "3"))
    assert b"isError" in body, "a model reads it"
    assert b'"too_many_servers"' in body
    rig.answer(1)
    assert calls(rig.use("a", "4")) == [4]
    assert calls(rig.use("c", "1", TWO)) == [5]


def test_bounds_that_are_read_again_hold_at_once() -> None:
    rig = Bounded(max_in_flight=1, calls_per_minute=100)
    assert [calls(rig.call(str(n))) for n in range(2)] == [[1], []]
    rig.ledger.admission.quotas.set_limits({"p": ProfileLimits(max_in_flight=2)})
    rig.ledger.admission.send_queued(rig.sessions[ONE], rig.now)
    assert calls(rig.done()) == [2]
    rig.ledger.admission.quotas.set_limits({})
    quota = rig.sessions[ONE].quota
    assert quota is not None
    assert quota.has_room


@pytest.mark.parametrize("profile", ["", "p"])
def test_an_account_lives_as_long_as_one_of_its_sessions(profile: str) -> None:
    quotas = Quotas()
    sessions = [Session(name, SourceId("d"), "", 1, "http") for name in (ONE, TWO, THREE)]
    for session in sessions:
        session.profile, session.principal = profile, "ann" if session.id != THREE else ""
        quotas.session_opened(session, {}, 0.0)
    quotas.check(sessions)
    one, two, three = (session.quota for session in sessions)
    assert (one is two, one is three) == (True, not profile)
    while sessions:
        quotas.session_closed(sessions.pop())
        quotas.check(sessions)


def test_a_clock_that_stands_still_gives_nothing_and_takes_nothing() -> None:
    quota = Quota(("session s1", "p"), ProfileLimits(calls_per_minute=60))
    assert [quota.take_token(5.0) for _ in range(60)] == [0.0] * 60
    assert quota.take_token(5.0) == pytest.approx(1.0)
    assert quota.take_token(4.0) == pytest.approx(1.0)
    assert quota.take_token(5.0) == 0.0
