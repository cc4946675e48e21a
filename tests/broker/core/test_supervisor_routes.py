"""The supervisor that each message goes to."""

import pytest

from carpool_broker.core.model.events import CallRequested, SourceId
from carpool_broker.core.model.session import OpenCall, Session
from carpool_broker.core.model.supervisors import SupervisorLinks
from carpool_broker.core.supervisor_routes import SupervisorRoutes
from carpool_protocol.ids import (
    ABSENT,
    MAX_SUPERVISORS,
    AskId,
    CallId,
    PoolKey,
    RawJson,
    ServerName,
    SessionId,
    SupervisorName,
    instance_of,
    supervisor_of,
)
from carpool_protocol.link import messages as m

ONE, TWO = SupervisorName("sup1"), SupervisorName("sup2")
LINKS = SupervisorLinks([ONE, TWO])
HERE, THERE = (
    next(ServerName(n) for n in map(str, range(50)) if LINKS.owner_of_server(ServerName(n)) == name)
    for name in (ONE, TWO)
)
KEY = PoolKey(f"{THERE}:k")
S = SessionId("s1")


def open_call() -> OpenCall:
    session = Session(S, SourceId("daemon"), "", 1, "shim")
    found = OpenCall(CallId(7), session, CallRequested(S, RawJson(b"1"), "x", ABSENT, ABSENT, ABSENT))
    found.key = KEY
    return found


def routes() -> SupervisorRoutes:
    found = SupervisorRoutes(LINKS, {CallId(7): open_call()})
    found.ask_opened(AskId("ab-cd-1"), TWO)
    return found


@pytest.mark.parametrize(
    "message",
    [
        m.DiscoverCatalog(KEY),
        m.SetLevel(KEY, "info"),
        m.SetResourceSubscriptions(KEY, []),
        m.Operate(1, KEY, "stop"),
        m.ExplainSharing(1, KEY),
        m.ReportProbe(KEY, "probe_agreed", ""),
        m.SessionPoolChanged(S, KEY, PoolKey("")),
        m.CancelTask(instance_of(1, 3), "t"),
        m.SetTaskSubscriptions(instance_of(1, 1_000_000), []),
        m.CancelTask(instance_of(1, 1_000_001), "t"),
        m.SetTaskSubscriptions(instance_of(1, 5_000_000), []),
        m.AnswerAsk(AskId("ab-cd-2"), is_error=False, body=ABSENT),
        m.ForwardAskProgress(AskId("ab-cd-2"), ABSENT),
        m.ResumeCall(CallId(7)),
        m.EndCall(CallId(7)),
        m.CancelCall(CallId(7), ""),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_about_one_thing_goes_to_the_supervisor_that_has_it(message: m.AnyMessage) -> None:
    assert routes().of(message) == [(TWO, message)]


@pytest.mark.parametrize(
    "message",
    [
        m.SessionEnded(S),
        m.SessionNotResumable(S),
        m.SessionAbsent(S, absent=True),
        m.AnswersWritten([CallId(1)], CallId(2), CallId(2)),
        m.CancelCall(CallId(99), ""),
        m.Survey(1, []),
        m.LocateCalls(1, []),
        m.UseLoginShell(on=True),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_about_sessions_or_forgotten_calls_goes_to_all(message: m.AnyMessage) -> None:
    assert routes().of(message) == [(ONE, message), (TWO, message)]


def test_a_report_of_lost_state_is_divided_by_server() -> None:
    assert routes().of(m.SessionStateLost(S, [HERE, THERE])) == [
        (ONE, m.SessionStateLost(S, [HERE])),
        (TWO, m.SessionStateLost(S, [THERE])),
    ]


def test_a_message_about_a_task_goes_to_no_supervisor_after_the_one_that_has_it() -> None:
    message = m.CancelTask(instance_of(0, 3), "t")
    assert routes().of(message) == [(ONE, message)]


def test_an_answer_goes_to_the_supervisor_that_has_asked_and_not_to_the_last_one_that_has() -> None:
    found = routes()
    found.ask_opened(AskId("ef-gh-1"), ONE)
    for ask, supervisor in (("ab-cd-3", TWO), ("ef-gh-3", ONE)):
        message = m.AnswerAsk(AskId(ask), is_error=False, body=ABSENT)
        assert found.of(message) == [(supervisor, message)]


def test_an_answer_to_an_ask_of_a_supervisor_that_is_gone_goes_nowhere() -> None:
    found = routes()
    found.supervisor_lost(TWO)
    assert found.of(m.AnswerAsk(AskId("ab-cd-1"), is_error=False, body=ABSENT)) == []
    assert found.of(m.ResumeCall(CallId(99))) == []


def test_everything_goes_to_a_single_supervisor() -> None:
    found = SupervisorRoutes(SupervisorLinks(), {})
    for message in (m.SessionEnded(S), m.CancelTask(instance_of(0, 3), "t"), m.ResumeCall(CallId(9))):
        assert found.of(message) == [(ONE, message)]


def test_supervisors_never_give_two_instances_the_same_number() -> None:
    """Also one that has started more than a million instances."""
    numbers = (1, 2, 999_999, 1_000_000, 1_000_001, 1_000_002, 2_000_000, 2_000_001, 40_000_000)
    ids = {
        instance_of(supervisor, number): supervisor
        for supervisor in range(MAX_SUPERVISORS)
        for number in numbers
    }
    assert len(ids) == MAX_SUPERVISORS * len(numbers)
    assert all(supervisor_of(instance) == supervisor for instance, supervisor in ids.items())
