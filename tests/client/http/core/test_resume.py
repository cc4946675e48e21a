"""The door's core when its broker dies, and when a door before it has died (docs/decisions/0019)."""

import pytest
from msgspec.structs import replace

from carpool.http.core.access import ANY_PRINCIPAL, AccessRules
from carpool.http.core.core import HttpCore
from carpool.http.core.effects import HttpRequest, HttpRules
from carpool.http.core.pending import MAX_WAITING, MAX_WAITING_BYTES, PATIENCE_S, RETURN_S, PendingRequests
from carpool.http.core.shared_budgets import BudgetShare
from carpool_protocol.carrier.attach_line import ResumeSession, WorkspaceChanged
from carpool_protocol.carrier.streams import (
    CloseStream,
    OpenStream,
    ServersStateful,
    StreamOpened,
    StreamRefused,
    SupervisorAssigned,
)
from tests.behaviours import behaviour
from tests.client.http.door_core_rig import DoorCoreRig, Json, modern, modern_headers, notification, request

CALL = request(2, "tools/call", name="echo", arguments={})
PROGRESS = notification("notifications/progress", progressToken=1, progress=1)
ASK = request("ask-1", "elicitation/create", message="?")
SAID: Json = {"jsonrpc": "2.0", "id": "ask-1", "result": {"action": "accept"}}


@pytest.fixture
def desk() -> DoorCoreRig:
    return DoorCoreRig()


def begun(desk: DoorCoreRig, session: str = "sid-1") -> tuple[str, int]:
    """An initialized session that the broker calls s5."""
    desk.told.clear()
    x = desk.post(request(1, "initialize", protocolVersion="2025-11-25"))
    s = desk.word()[0]
    desk.say(s, StreamOpened(session, "s5", "0.mac", "e1"))
    desk.answer(s, x, 1, protocolVersion="2025-11-25")
    desk.post(notification("notifications/initialized"), mcp_session_id=session)
    desk.told.clear()
    return session, s


def died(desk: DoorCoreRig) -> None:
    desk.told.clear()
    desk.take(desk.core.broker_lost(desk.now))
    assert not desk.told, "nobody is there to be told"


def reborn(desk: DoorCoreRig) -> list[Json]:
    """Another broker is there. What the only stream says: its methods or ids, and how it is resumed."""
    desk.take(desk.core.broker_connected(desk.now))
    _, word = desk.word()
    assert isinstance(word, OpenStream)
    assert word.resume is not None
    said = [message for _, message, _ in desk.told if isinstance(message, dict)]
    assert len(said) == word.resume.kept + word.resume.open == len(desk.told)
    return [{"resume": word.resume}, *said]


@behaviour("reattach:http")
def test_what_is_open_is_asked_of_the_next_broker_on_its_own_exchange(desk: DoorCoreRig) -> None:
    session, s = begun(desk)
    plain = desk.post(CALL, mcp_session_id=session)
    stream = desk.post(request(3, "tools/call"), mcp_session_id=session)
    desk.tell(s, PROGRESS, stream)
    get = desk.get(session)
    done = desk.post(request(4, "tools/call"), mcp_session_id=session)
    desk.answer(s, done, 4)
    died(desk)
    first, *said = reborn(desk)
    assert replace(first["resume"], last="") == ResumeSession(
        session="s5", secret="0.mac", supervisor="e1", kept=2, open=2
    )
    assert [each["method"] for each in said] == [
        "initialize",
        "notifications/initialized",
        "tools/call",
        "tools/call",
    ]
    assert [x for *_, x in desk.told] == [0, 0, plain, stream]
    desk.say(s, StreamOpened("another", "s5", "1.mac", "e1"))
    desk.answer(s, plain, 2, a=1)
    desk.answer(s, stream, 3, a=2)
    assert desk.body(plain)["result"] == {"a": 1}
    assert desk.events(stream)[-1]["result"] == {"a": 2}
    assert desk.ended == [stream]
    desk.told.clear()
    assert desk.status(desk.post(notification("notifications/x"), mcp_session_id=session)) == 202, (
        "the client calls its session what it always did"
    )
    desk.tell(s, notification("notifications/tools/list_changed"))
    assert desk.events(get)


@behaviour("reattach:http")
def test_only_what_makes_the_session_what_it_is_is_said_again_and_under_ids_of_ours(
    desk: DoorCoreRig,
) -> None:
    session, s = begun(desk)

    def ask(method: str, *, error: bool = False, **params: object) -> None:
        x = desk.post(request(1, method, **params), mcp_session_id=session)
        if error:
            desk.error(s, x, -32602)
        else:
            desk.answer(s, x, 1)

    ask("logging/setLevel", level="info")
    ask("logging/setLevel", level="error")
    ask("logging/setLevel", error=True, level="nonsense")
    for uri in ("a:1", "a:2", "a:3"):
        ask("resources/subscribe", uri=uri)
    ask("resources/unsubscribe", uri="a:2")
    ask("resources/unsubscribe", error=True, uri="a:3")
    ask("tools/list")
    ask("tools/list", cursor="c")
    ask("ping")
    pending = desk.post(request(1, "resources/subscribe", uri="a:4"), mcp_session_id=session)
    died(desk)
    first, *said = reborn(desk)
    kept = [(each["method"], (each.get("params") or {}).get("uri")) for each in said[: first["resume"].kept]]
    assert kept == [
        ("initialize", None),
        ("notifications/initialized", None),
        ("logging/setLevel", None),
        ("resources/subscribe", "a:1"),
        ("resources/subscribe", "a:3"),
        ("tools/list", None),
    ]
    assert said[2]["params"] == {"level": "error"}
    ids = [each["id"] for each in said if "id" in each]
    assert len(set(ids)) == len(ids), "the client used one id for all of them"
    assert said[-1]["params"] == {"uri": "a:4"}
    desk.answer(s, pending, 1)
    assert desk.status(pending) == 200
    died(desk)
    assert reborn(desk)[0]["resume"].kept == 7, "now it is a part of the session"


@behaviour("reattach:http")
def test_a_listen_goes_on_and_is_told_as_heard(desk: DoorCoreRig) -> None:
    listen = desk.post(modern(1, "subscriptions/listen"), **modern_headers("subscriptions/listen"))
    s = desk.word()[0]
    desk.say(s, StreamOpened("x", "s6", "0.mac", "e1"))
    late = desk.post(modern(1, "subscriptions/listen"), **modern_headers("subscriptions/listen"))
    ack = notification("notifications/subscriptions/acknowledged", notifications={"toolsListChanged": True})
    desk.tell(s, ack, listen)
    desk.tell(s, notification("notifications/tools/list_changed"), listen)
    for _ in range(2):
        died(desk)
        first, *said = reborn(desk)
        assert (first["resume"].kept, first["resume"].open) == (2, 1)
        assert said[0] == ack, "what it was granted nobody else remembers"
        assert [x for *_, x in desk.told] == [listen, listen, late]
    desk.tell(s, notification("notifications/tools/list_changed"), listen)
    assert len(desk.events(listen)) == 3
    assert not desk.ended
    desk.gone(listen)
    desk.core.check()


@behaviour("reattach:http")
def test_a_listen_of_which_there_was_no_room_to_keep_what_was_granted_ends_with_its_broker(
    desk: DoorCoreRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen = desk.post(modern(1, "subscriptions/listen"), **modern_headers("subscriptions/listen"))
    s = desk.word()[0]
    desk.say(s, StreamOpened("x", "s6", "0.mac", "e1"))
    monkeypatch.setattr(BudgetShare, "reserve", lambda *_: False)
    desk.tell(s, notification("notifications/subscriptions/acknowledged"), listen)
    died(desk)
    assert desk.ended == [listen]


@behaviour("reattach:http")
def test_stateless_requests_keep_their_exchange_and_so_their_name_in_the_record(desk: DoorCoreRig) -> None:
    x = desk.post(modern(1, "prompts/get", name="p"), **modern_headers("prompts/get", "p"))
    s = desk.word()[0]
    desk.say(s, StreamOpened("x", "s6", "0.mac", "e1"))
    desk.say(s, SupervisorAssigned("e2"))
    died(desk)
    first, *_ = reborn(desk)
    assert replace(first["resume"], last="") == ResumeSession(
        session="s6", secret="0.mac", supervisor="e2", open=1
    )
    assert desk.told[0][::2] == (s, x)


def test_what_may_have_been_run_by_a_session_without_a_name_is_lost(desk: DoorCoreRig) -> None:
    call = desk.post(modern(1, "prompts/get", name="p"), **modern_headers("prompts/get", "p"))
    harmless = desk.post(modern(1, "tools/list"), **modern_headers("tools/list"))
    desk.told.clear()
    desk.take(desk.core.broker_lost(desk.now))
    assert (desk.status(call), desk.code(call)) == (502, -32603)
    desk.take(desk.core.broker_connected(desk.now))
    _, word = desk.word()
    assert isinstance(word, OpenStream)
    assert word.resume is None, "the broker may never have heard of it"
    assert desk.heard("tools/list")[2] == harmless


@behaviour("reattach:http:asks")
def test_a_question_is_told_as_asked_until_it_is_answered_and_the_answer_is_said_again(
    desk: DoorCoreRig,
) -> None:
    session, s = begun(desk)
    x = desk.post(CALL, mcp_session_id=session)
    desk.tell(s, ASK, x)
    died(desk)
    assert reborn(desk)[0]["resume"].asks == ["ask-1"]
    desk.told.clear()
    desk.post(SAID, mcp_session_id=session)
    died(desk)
    first, *said = reborn(desk)
    assert first["resume"].asks == []
    assert said[-2:] == [CALL, SAID], "whether it arrived, only the end of its call shows"
    desk.answer(s, x, 2)
    died(desk)
    assert reborn(desk)[0]["resume"].open == 0


def test_a_request_that_its_client_cancelled_is_over_when_the_broker_dies(desk: DoorCoreRig) -> None:
    session, _ = begun(desk)
    x = desk.post(CALL, mcp_session_id=session)
    desk.post(notification("notifications/cancelled", requestId=2), mcp_session_id=session)
    died(desk)
    assert x in desk.ended
    assert reborn(desk)[0]["resume"].open == 0


def test_what_the_client_answered_to_questions_of_a_call_is_over_with_it_when_it_is_cancelled(
    desk: DoorCoreRig,
) -> None:
    session, s = begun(desk)
    used = desk.core._table._budget.used
    x = desk.post(CALL, mcp_session_id=session)
    desk.gone(x)
    desk.tell(s, ASK)
    desk.post(SAID, mcp_session_id=session)
    desk.post(notification("notifications/cancelled", requestId=2), mcp_session_id=session)
    assert desk.core._table._budget.used == used


@behaviour("reattach:http")
def test_a_call_whose_client_went_away_is_not_cancelled_by_the_death_of_the_broker(desk: DoorCoreRig) -> None:
    session, s = begun(desk)
    x = desk.post(CALL, mcp_session_id=session)
    desk.gone(x)
    died(desk)
    first, *said = reborn(desk)
    assert (first["resume"].open, said[-1]) == (1, CALL)
    assert desk.told[-1][2] == 0, "of no exchange"
    desk.answer(s, 0, 2)
    died(desk)
    assert reborn(desk)[0]["resume"].open == 0


def test_of_an_array_only_what_has_no_answer_is_asked_again(desk: DoorCoreRig) -> None:
    session, s = desk.initialized("2025-03-26")
    desk.say(s, StreamOpened(session, "s5", "0.mac", "e1"))
    pair = [request(2, "tools/call"), request(3, "tools/call")]
    x = desk.post([*pair], mcp_session_id=session)
    desk.answer(s, x, 2)
    died(desk)
    assert reborn(desk)[-1] == pair[1]
    desk.answer(s, x, 3)
    assert [each["id"] for each in desk.body(x)] == [2, 3]


def test_the_transport_of_2024_goes_on_as_well(desk: DoorCoreRig) -> None:
    get = desk.send("GET", "/sse")
    s = desk.word()[0]
    desk.say(s, StreamOpened("sid-9", "s7", "0.mac", "e1"))
    where = "/messages?session=sid-9"
    desk.post(request(1, "initialize", protocolVersion="2024-11-05"), where)
    desk.answer(s, 0, 1)
    desk.post(notification("notifications/initialized"), where)
    desk.post(CALL, where)
    desk.tell(s, ASK)
    died(desk)
    first, *said = reborn(desk)
    assert first["resume"].asks == ["ask-1"]
    assert (first["resume"].kept, said[-1]) == (2, CALL)
    desk.answer(s, 0, 2)
    assert desk.events(get)[-1]["id"] == 2
    assert not desk.ended


def test_a_call_of_the_transport_of_2024_that_a_later_broker_cannot_hear_of_gets_an_error(
    desk: DoorCoreRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    get = desk.send("GET", "/sse")
    s = desk.word()[0]
    desk.say(s, StreamOpened("sid-9", "s7", "0.mac", "e1"))
    monkeypatch.setattr(BudgetShare, "reserve", lambda *_: False)
    desk.post(CALL, "/messages?session=sid-9")
    desk.post(request(3, "tools/list"), "/messages?session=sid-9")
    died(desk)
    assert [(each["id"], each["error"]["code"]) for each in desk.events(get)] == [(2, -32603), (3, -32603)]
    assert not desk.core._table.sessions["sid-9"].kept.pending
    assert len(reborn(desk)) == 1, "the stream is opened, and neither is sent again"
    assert not desk.ended


@behaviour("reattach:http:given-up")
def test_after_a_while_without_a_broker_what_is_open_is_answered_and_every_session_ended(
    desk: DoorCoreRig,
) -> None:
    session, s = begun(desk)
    plain = desk.post(CALL, mcp_session_id=session)
    stream = desk.post(request(3, "tools/call"), mcp_session_id=session)
    desk.tell(s, PROGRESS, stream)
    get = desk.get(session)
    died(desk)
    desk.wait(RETURN_S - 1)
    assert plain not in desk.answers
    desk.wait(2)
    assert desk.events(plain)[-1]["error"]["code"] == -32603
    assert desk.events(stream)[-1]["error"]["code"] == -32603
    assert set(desk.ended) == {plain, stream, get}
    assert desk.status(desk.post(CALL, mcp_session_id=session)) == 503
    desk.told.clear()
    desk.take(desk.core.broker_connected(desk.now))
    assert not desk.told
    assert desk.status(desk.post(CALL, mcp_session_id=session)) == 404


def test_how_long_a_request_waits_for_the_broker() -> None:
    desk = DoorCoreRig(linked=False)
    assert desk.core.waits_until("/mcp", {"host": "localhost"}, 5.0) == 5.0 + PATIENCE_S
    desk.take(desk.core.broker_connected(desk.now))
    desk.take(desk.core.broker_lost(50.0))
    assert desk.core.waits_until("/mcp", {"host": "localhost"}, 60.0) == 50.0 + RETURN_S
    assert desk.core.waits_until("/health", {"host": "localhost"}, 60.0) == 60.0, (
        "whoever asks how it is, hears it at once"
    )


def test_the_lobby_holds_so_many_requests_and_so_much() -> None:
    lobby = PendingRequests()
    ask = [_request(b""), _request(b"x" * MAX_WAITING_BYTES)]
    assert lobby.add(1, ask[1], ANY_PRINCIPAL, 10.0)
    assert lobby.add(2, ask[0], ANY_PRINCIPAL, 20.0)
    assert not lobby.add(3, _request(b"y"), ANY_PRINCIPAL, 20.0), "as much as it may"
    assert lobby.remove(1)
    assert not lobby.remove(1)
    assert all(lobby.add(x, ask[0], ANY_PRINCIPAL, 30.0) for x in range(3, MAX_WAITING + 2))
    assert not lobby.add(9999, ask[0], ANY_PRINCIPAL, 30.0), "as many as it may"
    assert [x for x, _ in lobby.take_due(20.0)] == [2]
    assert len(lobby) == MAX_WAITING - 1
    lobby.check()


@behaviour("http:shares:waiting")
def test_requests_of_one_token_that_wait_for_a_broker_leave_room_for_those_of_others() -> None:
    lobby = PendingRequests()
    small, large = _request(b""), _request(b"x" * (MAX_WAITING_BYTES // 8))
    waits = [lobby.add(x, small, "ann", 10.0) for x in range(MAX_WAITING)]
    assert waits.count(True) == MAX_WAITING // 2
    assert [lobby.add(2000 + x, large, "bob", 20.0) for x in range(6)] == [True] * 4 + [False] * 2
    assert [lobby.add(3000 + x, large, "cid", 20.0) for x in range(3)] == [True] * 2 + [False]
    lobby.check()
    lobby.extend(15.0)
    assert lobby.take_due(14.0) == []
    assert len(lobby.take_due(15.0)) == MAX_WAITING // 2
    assert lobby.remove(2000)
    assert lobby.remove(2001)
    assert lobby.add(4000, large, "bob", 20.0), "what waits no longer leaves its room"
    lobby.check()


def _request(body: bytes) -> HttpRequest:
    return HttpRequest("POST", "/mcp", "", {}, body)


@behaviour("reattach:http:bounded")
def test_what_there_was_no_room_to_keep_is_told_as_lost() -> None:
    desk = DoorCoreRig()
    session, _ = begun(desk)
    budget = desk.core._table._budget
    budget.size = budget.used + 200
    big = desk.post(request(2, "tools/call", x="x" * 300), mcp_session_id=session)
    small = desk.post(request(3, "tools/call"), mcp_session_id=session)
    desk.take(desk.core.broker_lost(desk.now))
    assert desk.status(big) == 502
    assert small not in desk.answers


# --- a door before this one has died ---


def heir(now: float = 100.0) -> DoorCoreRig:
    desk = DoorCoreRig(linked=False)
    desk.core = HttpCore(HttpRules(max_open=8), AccessRules(), first=1000, heir_s=30.0)
    desk.take(desk.core.broker_connected(now))
    return desk


@behaviour("reattach:http:door")
def test_a_session_that_the_door_does_not_know_is_asked_of_the_broker_and_goes_on() -> None:
    desk = heir()
    call = desk.post(CALL, mcp_session_id="sid-1")
    get = desk.get("sid-1")
    s, word = desk.word()
    assert isinstance(word, OpenStream)
    assert word.resume == ResumeSession(session="", secret="sid-1")
    assert not desk.told, "asked once"
    desk.say(s, StreamOpened("sid-1", "s5", "0.mac", "e1", "2025-11-25"))
    assert desk.heard("tools/call")[::2] == (s, call)
    assert call > 1000
    desk.answer(s, call, 2)
    assert desk.status(call) == 200
    assert desk.ids(get) == ["0-0"], "by its version a stream begins with an id"
    assert desk.status(desk.send("DELETE", mcp_session_id="sid-1")) == 200


@behaviour("reattach:http:door")
def test_a_session_that_the_broker_does_not_know_either_is_not_found() -> None:
    desk = heir()
    x = desk.post(CALL, mcp_session_id="sid-1")
    gone = desk.post(CALL, mcp_session_id="sid-1")
    desk.gone(gone)
    s = desk.word()[0]
    desk.say(s, StreamRefused("no", "unknown_session"))
    assert (desk.status(x), desk.code(x)) == (404, -32001)
    assert desk.body(x)["id"] == 2, "the id of the request"
    assert not desk.told
    desk.wait(31.0)
    assert desk.status(desk.post(CALL, mcp_session_id="sid-2")) == 404
    assert not desk.told, "so late nobody's session is there any more"


def test_what_a_client_calls_its_session_is_not_asked_at_any_length_or_number() -> None:
    desk = heir()
    assert desk.status(desk.post(CALL, mcp_session_id="x" * 65)) == 404
    waiting = [desk.post(CALL, mcp_session_id=f"sid-{at}") for at in range(8)]
    assert desk.status(desk.post(CALL, mcp_session_id="one-more")) == 404
    desk.take(desk.core.broker_lost(desk.now))
    assert {desk.status(x) for x in waiting} == {404}, "of a broker that died nobody knows them"


def test_a_session_of_a_door_that_died_ends_with_the_broker_as_its_greeting_is_not_known() -> None:
    desk = heir()
    first = desk.get("sid-1")
    s = desk.word()[0]
    desk.say(s, StreamOpened("sid-1", "s5", "0.mac", "e1", "2025-11-25"))
    call = desk.post(CALL, mcp_session_id="sid-1")
    died(desk)
    assert desk.status(call) == 502
    assert desk.ended == [first]
    desk.take(desk.core.broker_connected(desk.now))
    assert not [word for _, word, _ in desk.told if not isinstance(word, CloseStream)]
    assert desk.status(desk.post(CALL, mcp_session_id="sid-1")) == 404


@behaviour("workspaces:moved-survives")
def test_where_a_session_has_moved_is_said_to_the_next_broker(desk: DoorCoreRig) -> None:
    _, s = begun(desk)
    desk.say(s, WorkspaceChanged("shop"))
    died(desk)
    assert reborn(desk)[0]["resume"].moved == WorkspaceChanged("shop")


@behaviour("lease:everything-died")
def test_where_a_session_may_have_state_is_said_to_the_next_broker(desk: DoorCoreRig) -> None:
    _, s = begun(desk)
    desk.say(s, ServersStateful(["browser"]))
    desk.say(s, ServersStateful(["browser", "counter"]))
    died(desk)
    assert reborn(desk)[0]["resume"].stateful == ["browser", "counter"]


@behaviour("reattach:used-again")
@pytest.mark.parametrize("answered", [False, True])
def test_the_next_broker_hears_whose_id_was_used_before(desk: DoorCoreRig, answered: bool) -> None:
    session, s = begun(desk)
    if answered:
        x = desk.post(request(7, "tools/call", a=1), mcp_session_id=session)
        desk.answer(s, x, 7)
    for number in (6, 7):
        desk.post(request(number, "tools/call", a=1), mcp_session_id=session)
    died(desk)
    first, *said = reborn(desk)
    assert first["resume"].again == ([1] if answered else [])
    assert said[-1]["id"] == 7


@behaviour("reattach:used-again")
def test_on_a_stream_of_many_agents_no_id_is_used_again(desk: DoorCoreRig) -> None:
    done, _ = [
        desk.post(modern(1, "prompts/get", name="p"), **modern_headers("prompts/get", "p")) for _ in range(2)
    ]
    s = desk.word()[0]
    desk.say(s, StreamOpened("x", "s6", "0.mac", "e1"))
    desk.answer(s, done, 1)
    died(desk)
    first, *said = reborn(desk)
    assert (first["resume"].open, first["resume"].again, len(said)) == (1, [], 1)
