"""How many requests a token may have open: they count until they are answered or ended, whoever waits."""

import pytest

from carpool.http.core.access import AccessRules, hash_of
from carpool.http.core.effects import HttpRules
from carpool.http.core.quotas import PrincipalQuotas
from carpool.http.core.shared_budgets import BudgetShare
from carpool_protocol.carrier.streams import StreamClosed, StreamOpened
from tests.behaviours import behaviour
from tests.client.http.door_core_rig import DoorCoreRig, Json, modern, modern_headers, notification, request

WHERE = "/messages?session=old-1"
PROGRESS = notification("notifications/progress", progressToken=1, progress=1)


@pytest.fixture
def desk() -> DoorCoreRig:
    return DoorCoreRig(HttpRules(max_open=2))


def call(ident: int) -> Json:
    return request(ident, "tools/call", name="echo", arguments={})


def opened(desk: DoorCoreRig, session: str, *idents: int) -> list[int]:
    """The statuses of calls of a session; 0: it is open."""
    asked = [desk.post(call(ident), mcp_session_id=session) for ident in idents]
    return [desk.status(x) if x in desk.answers else 0 for x in asked]


def cancel(ident: int) -> Json:
    return notification("notifications/cancelled", requestId=ident)


@behaviour("http:limits:open")
@pytest.mark.parametrize("begun", [False, True])
def test_a_call_whose_client_hangs_up_counts_until_it_is_answered(desk: DoorCoreRig, begun: bool) -> None:
    session, s = desk.initialized()
    asked = [desk.post(call(ident), mcp_session_id=session) for ident in (2, 3)]
    for x in asked:
        if begun:
            desk.tell(s, PROGRESS, x)
        desk.gone(x)
    assert opened(desk, session, 4) == [429], "both run"
    desk.answer(s, asked[1] if begun else 0, 3)
    assert opened(desk, session, 5, 6) == [0, 429]


@behaviour("http:limits:open")
def test_an_answer_on_its_way_when_its_client_hangs_up_gives_the_place_back(desk: DoorCoreRig) -> None:
    session, s = desk.initialized()
    x = desk.post(call(2), mcp_session_id=session)
    desk.gone(x)
    desk.answer(s, x, 2)
    assert opened(desk, session, 3, 4, 5) == [0, 0, 429]


@behaviour("http:limits:open")
def test_a_cancel_and_the_end_of_the_session_give_the_places_of_left_calls_back(desk: DoorCoreRig) -> None:
    session, s = desk.initialized()
    for ident in (2, 3):
        desk.gone(desk.post(call(ident), mcp_session_id=session))
    desk.post(cancel(2), mcp_session_id=session)
    assert opened(desk, session, 4, 5) == [0, 429]
    desk.say(s, StreamClosed("carpool ends"))
    desk.told.clear()
    other, _ = desk.initialized(session="sid-2")
    assert opened(desk, other, 6, 7, 8) == [0, 0, 429]


@behaviour("http:limits:open")
def test_hanging_up_in_the_stateless_era_is_a_cancel_and_gives_the_place_back(desk: DoorCoreRig) -> None:
    for _ in range(5):
        x = desk.post(modern(1, "prompts/get", name="p"), **modern_headers("prompts/get", "p"))
        assert x not in desk.answers
        desk.gone(x)


@behaviour("http:limits:open")
def test_each_request_of_an_array_counts_until_it_is_answered_or_cancelled() -> None:
    desk = DoorCoreRig(HttpRules(max_open=4))
    session, s = desk.initialized("2025-03-26")
    x = desk.post([call(2), call(3), call(4), PROGRESS], mcp_session_id=session)
    desk.told.clear()
    refused = desk.post([call(5), call(6), PROGRESS], mcp_session_id=session)
    assert (desk.status(refused), desk.body(refused)["id"]) == (429, 5)
    assert not desk.told, "nothing of it is sent"
    desk.answer(s, x, 3)
    assert desk.post([call(5), call(6)], mcp_session_id=session) not in desk.answers
    desk.post(cancel(4), mcp_session_id=session)
    assert opened(desk, session, 7, 8) == [0, 429]
    desk.answer(s, x, 2)
    assert [each["id"] for each in desk.body(x)] == [3, 2]
    assert opened(desk, session, 9, 10) == [0, 429]


@behaviour("http:limits:open")
def test_an_array_that_asks_nothing_is_never_too_many(desk: DoorCoreRig) -> None:
    session, _ = desk.initialized("2025-03-26")
    assert opened(desk, session, 2, 3) == [0, 0]
    x = desk.post([cancel(2), PROGRESS], mcp_session_id=session)
    assert desk.status(x) == 202, "open calls may wait for it"


def sse_stream(desk: DoorCoreRig, **headers: str) -> tuple[int, int]:
    """A stream of the transport of 2024-11-05: the number of its GET, and of its stream."""
    x = desk.send("GET", "/sse", accept="text/event-stream", **headers)
    s = desk.word()[0]
    desk.say(s, StreamOpened("old-1", "s7", "0.mac", "e1"))
    return x, s


@behaviour("http:limits:open")
def test_calls_of_the_transport_of_2024_count_and_those_beyond_are_refused_on_its_stream(
    desk: DoorCoreRig,
) -> None:
    session, _ = desk.initialized()
    get, s = sse_stream(desk)
    for ident in (2, 3, 4):
        assert desk.status(desk.post(call(ident), WHERE)) == 202
    (refused,) = desk.events(get)
    assert (refused["id"], refused["error"]["code"]) == (4, -32603)
    assert "2 requests of yours are open already" in refused["error"]["message"]
    assert [message["id"] for _, message, _ in desk.told if isinstance(message, dict)] == [2, 3]
    assert opened(desk, session, 5) == [429], "both transports count together"
    desk.answer(s, 0, 2)
    desk.post(cancel(3), WHERE)
    assert opened(desk, session, 6, 7, 8) == [0, 0, 429]


@behaviour("http:limits:open")
def test_calls_of_the_transport_of_2024_count_no_more_when_its_stream_ends(desk: DoorCoreRig) -> None:
    get, _ = sse_stream(desk)
    desk.post([call(2), call(3), call(4)], WHERE)
    assert [each["id"] for each in desk.events(get)] == [4], "each of an array counts"
    desk.gone(get)
    session, _ = desk.initialized()
    assert opened(desk, session, 5, 6, 7) == [0, 0, 429]


@behaviour("http:limits:open")
def test_calls_that_are_lost_with_the_broker_count_no_more(
    desk: DoorCoreRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    sse_stream(desk)
    with monkeypatch.context() as full:
        full.setattr(BudgetShare, "reserve", lambda *_: False)
        desk.post([call(2), call(3)], WHERE)
    desk.take(desk.core.broker_lost(desk.now))
    desk.take(desk.core.broker_connected(desk.now))
    session, _ = desk.initialized()
    assert opened(desk, session, 5, 6, 7) == [0, 0, 429]


@behaviour("http:limits:open")
def test_without_sessions_a_post_counts_while_its_session_is_greeted() -> None:
    desk = DoorCoreRig(HttpRules(stateless=True, max_open=1))
    x = desk.post(call(2))
    s = desk.word()[0]
    _, greeting, _ = desk.heard("initialize")
    assert desk.status(desk.post(call(3))) == 429
    desk.say(s, StreamOpened("hidden"))
    desk.answer(s, x, greeting["id"], protocolVersion="2025-03-26")
    assert desk.status(desk.post(call(4))) == 429, "it is sent now"
    desk.answer(s, x, 2, content=[])
    x = desk.post(call(5))
    assert x not in desk.answers
    desk.gone(x)
    assert desk.post(call(6)) not in desk.answers


@behaviour("http:limits:open")
def test_what_one_token_has_open_takes_no_place_of_another() -> None:
    gate = AccessRules(tokens={"ann": hash_of("a"), "bob": hash_of("b")})
    desk = DoorCoreRig(HttpRules(max_open=1), gate)
    ann, bob = {"authorization": "Bearer a"}, {"authorization": "Bearer b"}
    session, _ = desk.initialized(session="ann", **ann)
    desk.initialized(session="bob", **bob)
    desk.gone(desk.post(call(2), mcp_session_id=session, **ann))
    assert desk.status(desk.post(call(3), mcp_session_id=session, **ann)) == 429
    assert desk.post(call(2), mcp_session_id="bob", **bob) not in desk.answers


def test_sessions_of_all_principals_together_are_bounded_though_each_has_a_share() -> None:
    quotas = PrincipalQuotas(HttpRules(max_sessions=2))
    quotas.share_sessions(3)
    for principal in ("a", "b"):
        assert not quotas.has_no_room(principal)
        quotas.count_session(principal, 1)
    assert quotas.has_no_room("c")


def test_a_session_of_the_only_principal_may_be_any_of_them() -> None:
    quotas = PrincipalQuotas(HttpRules(max_sessions=2))
    quotas.count_session("a", 1)
    assert not quotas.has_no_room("a")


def test_new_bounds_are_shared_among_the_same_principals() -> None:
    quotas = PrincipalQuotas(HttpRules(max_sessions=8))
    quotas.share_sessions(4)
    quotas.set_rules(HttpRules(max_sessions=4))
    quotas.count_session("a", 1)
    assert quotas.has_no_room("a")
    assert not quotas.has_no_room("b")
