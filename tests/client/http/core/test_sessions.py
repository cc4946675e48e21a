"""The door's core with agents of the handshake era: sessions, plain answers and streams of events."""

import pytest

from carpool.http.core.access import AccessRules, hash_of
from carpool.http.core.effects import HttpRules
from carpool.http.core.routing import ABSENT_S, KEEP_ALIVE_S
from carpool_protocol.carrier.streams import (
    ClientAbsent,
    CloseStream,
    ExchangeClientGone,
    ExchangeEnded,
    OpenCallsRaised,
    OpenStream,
    StreamClosed,
    StreamOpened,
    StreamRefused,
)
from tests.behaviours import behaviour
from tests.client.http.door_core_rig import DoorCoreRig, modern, modern_headers, notification, request

CALL = request(2, "tools/call", name="echo", arguments={})
PROGRESS = notification("notifications/progress", progressToken=1, progress=1)


@pytest.fixture
def desk() -> DoorCoreRig:
    return DoorCoreRig()


@behaviour("http:sessions")
def test_initialize_opens_a_session_and_its_answer_names_it(desk: DoorCoreRig) -> None:
    x = desk.post(request(1, "initialize", protocolVersion="2025-11-25"))
    s, word = desk.word()
    assert isinstance(word, OpenStream)
    assert (word.kind, word.server, word.principal) == ("session", "", "")
    assert desk.heard("initialize")[::2] == (s, x)
    desk.say(s, StreamOpened("abc"))
    desk.answer(s, x, 1, protocolVersion="2025-11-25")
    assert desk.status(x) == 200
    assert desk.header(x, "Mcp-Session-Id") == "abc"


def test_initialize_that_fails_leaves_no_session(desk: DoorCoreRig) -> None:
    x = desk.post(request(1, "initialize", protocolVersion="2025-11-25"))
    s = desk.word()[0]
    desk.heard()
    desk.say(s, StreamOpened("abc"))
    desk.error(s, x, -32602)
    assert (desk.status(x), desk.header(x, "Mcp-Session-Id")) == (200, None)
    assert isinstance(desk.word()[1], CloseStream)
    assert desk.status(desk.post(CALL, mcp_session_id="abc")) == 404


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
@pytest.mark.parametrize(("session", "status"), [(None, 400), ("other", 404)])
def test_a_session_id_that_is_missing_or_unknown_is_told_apart(
    desk: DoorCoreRig, method: str, session: str | None, status: int
) -> None:
    desk.initialized()
    headers = {} if session is None else {"mcp_session_id": session}
    if method == "POST":
        x = desk.post(CALL, **headers)
        assert desk.body(x)["id"] == 2
    else:
        x = desk.send(method, accept="text/event-stream", **headers)
    assert desk.status(x) == status
    assert not desk.told


@behaviour("http:json-first")
def test_an_answer_that_comes_first_is_plain_json(desk: DoorCoreRig) -> None:
    session, s = desk.initialized()
    x = desk.post(CALL, mcp_session_id=session)
    assert desk.heard("tools/call")[::2] == (s, x)
    desk.answer(s, x, 2, content=[])
    assert (desk.status(x), desk.answers[x].media) == (200, "application/json")
    assert desk.body(x) == {"jsonrpc": "2.0", "id": 2, "result": {"content": []}}


@behaviour("http:json-first")
def test_progress_turns_the_answer_into_a_stream_that_the_answer_ends(desk: DoorCoreRig) -> None:
    session, s = desk.initialized()
    x = desk.post(CALL, mcp_session_id=session)
    desk.tell(s, PROGRESS, x)
    assert [each["method"] for each in desk.events(x)] == ["notifications/progress"]
    assert x not in desk.ended
    desk.answer(s, x, 2)
    assert desk.events(x)[-1]["id"] == 2
    assert desk.ended == [x]


@behaviour("http:own-stream")
def test_a_question_of_the_server_comes_on_the_stream_of_its_own_request(desk: DoorCoreRig) -> None:
    session, s = desk.initialized()
    get = desk.get(session)
    one, other = (desk.post(request(n, "tools/call"), mcp_session_id=session) for n in (2, 3))
    desk.tell(s, request("a", "elicitation/create"), other)
    assert [each["id"] for each in desk.events(other)] == ["a"]
    assert one not in desk.streams
    assert not desk.events(get)
    desk.told.clear()
    x = desk.post({"jsonrpc": "2.0", "id": "a", "result": {}}, mcp_session_id=session)
    assert desk.status(x) == 202
    assert desk.heard()[1:] == ({"jsonrpc": "2.0", "id": "a", "result": {}}, 0)


@pytest.mark.parametrize(("version", "primed"), [("2025-11-25", True), ("2025-06-18", False)])
def test_a_stream_begins_with_an_id_alone_since_2025_11_25(
    desk: DoorCoreRig, version: str, primed: bool
) -> None:
    session, s = desk.initialized(version)
    x = desk.post(CALL, mcp_session_id=session)
    desk.tell(s, PROGRESS, x)
    assert desk.ids(x) == [f"{x}-0", f"{x}-1"][not primed :]


def test_a_request_without_news_becomes_a_stream_before_a_proxy_gives_up(desk: DoorCoreRig) -> None:
    session, s = desk.initialized()
    x = desk.post(CALL, mcp_session_id=session)
    desk.wait(14.0)
    assert x not in desk.streams
    desk.wait(2.0)
    assert desk.streams[x]
    desk.wait(16.0)
    data = desk.streams[x][-1].data
    assert data == b":\n", "a comment keeps it alive; an empty line would be an event to some readers"
    desk.answer(s, x, 2)
    assert desk.ended == [x]


def test_what_belongs_to_no_request_goes_to_the_get_and_to_the_newest_only(desk: DoorCoreRig) -> None:
    session, s = desk.initialized()
    old = desk.get(session)
    new = desk.get(session)
    assert desk.ended == [old]
    desk.tell(s, notification("notifications/tools/list_changed"))
    assert [each["method"] for each in desk.events(new)] == ["notifications/tools/list_changed"]


def test_what_nobody_heard_is_kept_for_the_next_get(desk: DoorCoreRig) -> None:
    session, s = desk.initialized()
    desk.tell(s, notification("notifications/tools/list_changed"))
    assert len(desk.events(desk.get(session))) == 1
    assert desk.events(desk.get(session)) == []


@behaviour("http:resumption")
def test_a_client_that_comes_back_gets_the_rest_of_its_own_stream(desk: DoorCoreRig) -> None:
    session, s = desk.initialized()
    x = desk.post(CALL, mcp_session_id=session)
    other = desk.post(request(3, "tools/call"), mcp_session_id=session)
    desk.tell(s, PROGRESS, x)
    desk.tell(s, PROGRESS, other)
    desk.told.clear()
    desk.gone(x)
    assert not desk.told, "hanging up is no cancel"
    desk.tell(s, PROGRESS | {"params": {"progress": 2}}, x)
    back = desk.get(session, last_event_id=f"{x}-1")
    assert [each["params"]["progress"] for each in desk.events(back)] == [2]
    desk.answer(s, x, 2)
    assert desk.events(back)[-1]["id"] == 2
    assert back in desk.ended


def test_a_finished_stream_can_be_had_again_for_a_minute(desk: DoorCoreRig) -> None:
    session, s = desk.initialized()
    x = desk.post(CALL, mcp_session_id=session)
    desk.tell(s, PROGRESS, x)
    desk.gone(x)
    desk.answer(s, x, 2)
    desk.wait(50.0)
    back = desk.get(session, last_event_id=f"{x}-1")
    assert [each["id"] for each in desk.events(back)] == [2]
    assert back in desk.ended
    desk.wait(20.0)
    assert desk.status(desk.get(session, last_event_id=f"{x}-1")) == 400


@behaviour("http:resumption")
def test_events_of_another_session_cannot_be_had(desk: DoorCoreRig) -> None:
    one, s = desk.initialized()
    x = desk.post(CALL, mcp_session_id=one)
    desk.tell(s, PROGRESS, x)
    other, _ = desk.initialized(session="sid-2")
    assert desk.status(desk.get(other, last_event_id=f"{x}-0")) == 400


def test_a_client_that_leaves_before_any_event_gives_its_exchange_up(desk: DoorCoreRig) -> None:
    session, s = desk.initialized()
    x = desk.post(CALL, mcp_session_id=session)
    desk.heard()
    desk.gone(x)
    assert desk.word() == (s, ExchangeClientGone(x))
    desk.tell(s, {"jsonrpc": "2.0", "id": 2, "result": {}})
    assert not desk.events(desk.get(session)), "a late answer is for nobody"


def test_a_cancelled_request_ends_without_an_answer(desk: DoorCoreRig) -> None:
    session, s = desk.initialized()
    x = desk.post(CALL, mcp_session_id=session)
    assert (
        desk.status(desk.post(notification("notifications/cancelled", requestId=2), mcp_session_id=session))
        == 202
    )
    desk.say(s, ExchangeEnded(x))
    assert (desk.events(x), desk.ended) == ([], [x])


@behaviour("http:sessions")
def test_delete_ends_the_session_for_good(desk: DoorCoreRig) -> None:
    session, s = desk.initialized()
    get = desk.get(session)
    x = desk.send("DELETE", mcp_session_id=session)
    assert desk.status(x) == 200
    assert desk.ended == [get]
    assert desk.word() == (s, CloseStream())
    assert desk.status(desk.post(CALL, mcp_session_id=session)) == 404


def test_a_session_that_the_broker_ends_is_unknown_from_then_on(desk: DoorCoreRig) -> None:
    session, s = desk.initialized()
    x = desk.post(CALL, mcp_session_id=session)
    desk.say(s, StreamClosed("too slow"))
    assert desk.status(x) == 404
    assert desk.body(x)["error"]["message"] == "too slow"
    assert desk.status(desk.post(CALL, mcp_session_id=session)) == 404


def test_an_idle_session_ends_and_one_that_listens_does_not() -> None:
    desk = DoorCoreRig(HttpRules(session_idle_s=60.0))
    idle, s = desk.initialized()
    listening, _ = desk.initialized(session="sid-2")
    desk.get(listening)
    desk.wait(61.0)
    assert desk.word() == (s, CloseStream())
    assert desk.status(desk.post(CALL, mcp_session_id=idle)) == 404
    assert desk.post(CALL, mcp_session_id=listening) not in desk.answers


@behaviour("lease:absent-makes-room")
def test_the_broker_is_told_of_a_client_without_a_connection_and_of_its_return() -> None:
    desk = DoorCoreRig(HttpRules())
    session, s = desk.initialized()
    listening, _ = desk.initialized(session="sid-2")
    desk.get(listening)
    desk.wait(ABSENT_S)
    assert desk.word() == (s, ClientAbsent(True)), "the other one listens"
    desk.post(CALL, mcp_session_id=session)
    assert desk.told.pop(0)[0] == s, "the call"
    desk.wait(1.0)
    assert desk.word() == (s, ClientAbsent(False))


def test_a_refused_server_is_not_found(desk: DoorCoreRig) -> None:
    x = desk.post(request(1, "initialize"), "/mcp/s/none")
    s, word = desk.word()
    assert isinstance(word, OpenStream)
    assert word.server == "none"
    desk.say(s, StreamRefused("there is no server none", "unknown_server"))
    assert desk.status(x) == 404
    assert "no server none" in desk.body(x)["error"]["message"]


@behaviour("http:sessions")
def test_a_session_belongs_to_the_path_and_the_token_it_began_with() -> None:
    desk = DoorCoreRig(gate=AccessRules(tokens={"ann": hash_of("a"), "bob": hash_of("b")}))
    session, _ = desk.initialized(authorization="Bearer a")
    assert desk.post(CALL, mcp_session_id=session, authorization="Bearer a") not in desk.answers
    assert desk.status(desk.post(CALL, mcp_session_id=session, authorization="Bearer b")) == 404
    assert desk.status(desk.post(CALL, "/mcp/s/git", mcp_session_id=session, authorization="Bearer a")) == 404


def test_the_answer_to_initialize_waits_for_its_header_and_is_no_stream_before(desk: DoorCoreRig) -> None:
    x = desk.post(request(1, "initialize", protocolVersion="2025-11-25"))
    s = desk.word()[0]
    desk.wait(16.0)
    desk.say(s, StreamOpened("sid-1"))
    desk.answer(s, x, 1, protocolVersion="2025-11-25")
    assert desk.header(x, "Mcp-Session-Id") == "sid-1"


def test_with_plain_json_only_progress_is_left_out_and_questions_are_refused() -> None:
    desk = DoorCoreRig(HttpRules(json_response=True))
    session, s = desk.initialized()
    x = desk.post(CALL, mcp_session_id=session, accept="application/json")
    desk.told.clear()
    desk.tell(s, PROGRESS, x)
    desk.tell(s, request("a", "sampling/createMessage"), x)
    assert desk.heard()[1]["error"]["code"] == -32603
    desk.answer(s, x, 2)
    assert desk.status(x) == 200


@behaviour("http:sessionless")
def test_without_sessions_each_post_has_one_for_as_long_as_it_takes() -> None:
    desk = DoorCoreRig(HttpRules(stateless=True))
    x = desk.post(CALL)
    s = desk.word()[0]
    _, greeting, _ = desk.heard("initialize")
    desk.say(s, StreamOpened("hidden"))
    desk.answer(s, x, greeting["id"], protocolVersion="2025-03-26")
    desk.heard("notifications/initialized")
    assert desk.heard("tools/call")[::2] == (s, x)
    desk.answer(s, x, 2, content=[])
    assert desk.body(x)["result"] == {"content": []}
    assert desk.header(x, "Mcp-Session-Id") is None
    assert desk.word() == (s, CloseStream())
    assert desk.status(desk.get("hidden")) == 405
    assert desk.status(desk.post(notification("notifications/initialized"))) == 202


@behaviour("http:sessionless")
@pytest.mark.parametrize("greeted", [False, True])
def test_without_sessions_a_client_that_goes_takes_its_session_along(greeted: bool) -> None:
    desk = DoorCoreRig(HttpRules(stateless=True))
    x = desk.post(CALL)
    s = desk.word()[0]
    _, greeting, _ = desk.heard("initialize")
    desk.say(s, StreamOpened("hidden"))
    if greeted:
        desk.answer(s, x, greeting["id"], protocolVersion="2025-03-26")
        desk.told.clear()
    desk.gone(x)
    assert desk.word() == (s, CloseStream())


def test_without_sessions_what_cannot_be_asked_anew_leaves_no_session() -> None:
    desk = DoorCoreRig(HttpRules(stateless=True))
    desk.core._table._budget.size = 0
    x = desk.post(request(1, "initialize", protocolVersion="2025-11-25"))
    desk.word()
    desk.take(desk.core.broker_lost(desk.now))
    assert desk.status(x) == 502
    desk.told.clear()
    desk.take(desk.core.broker_connected(desk.now))
    assert desk.told == [], "nobody comes back to it"


def test_without_sessions_initialize_is_answered_without_an_id() -> None:
    desk = DoorCoreRig(HttpRules(stateless=True))
    x = desk.post(request(1, "initialize", protocolVersion="2025-11-25"))
    s = desk.word()[0]
    desk.say(s, StreamOpened("hidden"))
    desk.answer(s, x, 1, protocolVersion="2025-11-25")
    assert (desk.status(x), desk.header(x, "Mcp-Session-Id")) == (200, None)


@behaviour("http:2024")
def test_the_transport_of_2024_hears_everything_on_its_one_stream(desk: DoorCoreRig) -> None:
    x = desk.send("GET", "/sse", accept="text/event-stream")
    s = desk.word()[0]
    desk.say(s, StreamOpened("old-1"))
    assert desk.streams[x][0].data == b"event: endpoint\ndata: /messages?session=old-1\n\n"
    posted = desk.post(request(1, "initialize"), "/messages?session=old-1")
    assert desk.status(posted) == 202
    assert desk.heard("initialize")[::2] == (s, 0)
    desk.answer(s, 0, 1)
    assert [each["id"] for each in desk.events(x)] == [1]
    desk.gone(x)
    assert desk.word() == (s, CloseStream())
    assert desk.status(desk.post(request(1, "ping"), "/messages?session=old-1")) == 404


def test_a_get_of_2024_hears_no_comment_before_its_session_is_open(desk: DoorCoreRig) -> None:
    x = desk.send("GET", "/sse", accept="text/event-stream")
    s = desk.word()[0]
    desk.wait(KEEP_ALIVE_S)
    assert x not in desk.streams
    desk.say(s, StreamOpened("old-1"))
    desk.wait(KEEP_ALIVE_S)
    assert [each.data for each in desk.streams[x]][1:] == [b":\n"]


@behaviour("http:limits")
def test_more_sessions_and_more_requests_than_allowed_are_refused_for_now() -> None:
    desk = DoorCoreRig(HttpRules(max_sessions=1, max_open=2))
    session, s = desk.initialized()
    x = desk.post(request(1, "initialize"))
    assert (desk.status(x), desk.header(x, "Retry-After")) == (503, "10")
    first = desk.post(CALL, mcp_session_id=session)
    desk.post(request(3, "ping"), mcp_session_id=session)
    x = desk.post(request(4, "ping"), mcp_session_id=session)
    assert (desk.status(x), desk.header(x, "Retry-After"), desk.body(x)["id"]) == (429, "1", 4)
    desk.answer(s, first, 2)
    assert desk.post(request(5, "ping"), mcp_session_id=session) not in desk.answers


@behaviour("http:bounds-at-once")
def test_other_bounds_hold_at_once_and_what_is_open_beyond_them_stays_open() -> None:
    desk = DoorCoreRig(HttpRules(max_sessions=1, max_open=1))
    session, s = desk.initialized()
    first = desk.post(CALL, mcp_session_id=session)
    assert desk.status(desk.post(request(3, "ping"), mcp_session_id=session)) == 429
    desk.take(desk.core.set_rules(HttpRules(max_sessions=2, max_open=3)))
    second = desk.post(request(4, "ping"), mcp_session_id=session)
    assert second not in desk.answers
    desk.initialized(session="sid-2")
    desk.take(desk.core.set_rules(HttpRules(max_sessions=1, max_open=9)))
    assert desk.status(desk.post(request(5, "initialize"))) == 503
    desk.take(desk.core.set_rules(HttpRules(max_sessions=1, max_open=1, session_idle_s=5.0)))
    assert desk.status(desk.post(request(6, "ping"), mcp_session_id=session)) == 429
    for x, ident in ((first, 2), (second, 4)):
        desk.answer(s, x, ident)
        assert desk.status(x) == 200
    desk.wait(5.0)
    assert desk.status(desk.post(request(7, "ping"), mcp_session_id=session)) == 404, "it was idle"


@behaviour("http:bounds-at-once")
def test_the_broker_hears_of_a_higher_bound_of_shared_streams_alone() -> None:
    desk = DoorCoreRig(HttpRules(max_open=2))
    desk.initialized()
    desk.post(modern(1, "tools/list"), **modern_headers("tools/list"))
    s, word = desk.word()
    assert isinstance(word, OpenStream)
    assert word.max_open_calls == 2
    desk.heard("tools/list")
    desk.take(desk.core.set_rules(HttpRules(max_open=1)))
    assert not desk.told
    desk.take(desk.core.set_rules(HttpRules(max_open=9)))
    assert desk.word() == (s, OpenCallsRaised(9))
    assert not desk.told


@behaviour("workspaces:attach")
def test_the_url_names_the_workspace_of_a_session_and_only_that_url_finds_it_again(desk: DoorCoreRig) -> None:
    path = "/mcp?workspace=shop"
    x = desk.post(request(1, "initialize", protocolVersion="2025-11-25"), path)
    s, word = desk.word()
    assert isinstance(word, OpenStream)
    assert (word.workspace, word.cwd) == ("shop", "")
    desk.say(s, StreamOpened("abc"))
    desk.answer(s, x, 1, protocolVersion="2025-11-25")
    desk.told.clear()
    assert desk.status(desk.post(CALL, mcp_session_id="abc")) == 404
    desk.post(CALL, path, mcp_session_id="abc")
    assert desk.heard("tools/call")[0] == s


@behaviour("workspaces:attach")
@pytest.mark.parametrize("path", ["/mcp/s/git?workspace=a%20b", "/sse?workspace=a%20b"])
def test_every_way_in_takes_a_workspace_and_the_broker_judges_it(desk: DoorCoreRig, path: str) -> None:
    if path.startswith("/sse"):
        x = desk.send("GET", path, accept="text/event-stream")
    else:
        x = desk.post(request(1, "initialize", protocolVersion="2025-11-25"), path)
    s, word = desk.word()
    assert isinstance(word, OpenStream)
    assert word.workspace == "a b"
    desk.say(s, StreamRefused("no workspace of that name (there are: shop)", "unknown_workspace"))
    assert desk.status(x) == 404
    assert "there are: shop" in str(desk.body(x))


@behaviour("names:length")
@pytest.mark.parametrize("path", ["/mcp", "/mcp/s/git", "/mcp/p/reader", "/sse"])
def test_the_url_says_the_bound_on_names_and_one_that_is_none_is_refused(
    desk: DoorCoreRig, path: str
) -> None:
    def come(query: str) -> int:
        if path == "/sse":
            return desk.send("GET", path + query, accept="text/event-stream")
        return desk.post(request(1, "initialize", protocolVersion="2025-11-25"), path + query)

    for said in ("0050", "5", "65", "x", "-50", "\u0665\u0660"):
        refused = come(f"?tool-name-length={said}")
        assert desk.status(refused) == 400
        assert "a number from 32 to 64" in desk.body(refused)["error"]["message"]
    come("?workspace=shop&tool-name-length=50")
    _, word = desk.word()
    assert isinstance(word, OpenStream)
    assert (word.workspace, word.tool_name_length) == ("shop", 50)


@behaviour("workspaces:attach")
@pytest.mark.parametrize("path", ["/mcp/tools?workspace=x", "/mcp?workspace=x"])
def test_where_the_door_asks_first_a_refusal_of_the_broker_is_told_too(path: str) -> None:
    desk = DoorCoreRig(HttpRules(stateless=True))
    x = desk.post(request(1, "tools/list"), path) if path.startswith("/mcp?") else desk.send("GET", path)
    desk.say(
        desk.word()[0], StreamRefused("no workspace of that name (there are: shop)", "unknown_workspace")
    )
    assert desk.status(x) == 404
    assert "there are: shop" in str(desk.body(x))


@behaviour("workspaces:attach")
def test_stateless_agents_of_two_workspaces_share_no_session(desk: DoorCoreRig) -> None:
    streams = set()
    for path in ("/mcp?workspace=shop", "/mcp?workspace=bank", "/mcp"):
        desk.post(modern(1, "tools/list"), path, **modern_headers("tools/list"))
        s, word = desk.word()
        assert isinstance(word, OpenStream)
        streams.add((s, word.workspace))
        desk.told.clear()
    assert len(streams) == 3


def bound_desk(*workspaces: str) -> DoorCoreRig:
    """A door whose token `ann` is for these workspaces, beside one for any."""
    tokens = {"ann": hash_of("a"), "bob": hash_of("b")}
    return DoorCoreRig(gate=AccessRules(tokens=tokens, workspaces={"ann": workspaces}))


BOUND = {"authorization": "Bearer a"}


@behaviour("workspaces:tokens")
@pytest.mark.parametrize("path", ["/mcp", "/mcp/s/git", "/mcp/p/reader", "/mcp/tools", "/sse"])
def test_a_token_enters_the_workspaces_that_it_is_bound_to_and_no_other(path: str) -> None:
    desk = bound_desk("shop", "lab")

    def come(query: str, token: str = "a") -> int:
        headers = {"authorization": f"Bearer {token}"}
        if path in {"/sse", "/mcp/tools"}:
            return desk.send("GET", path + query, accept="text/event-stream", **headers)
        return desk.post(request(1, "initialize", protocolVersion="2025-11-25"), path + query, **headers)

    for query in ("", "?workspace=", "?workspace=bank", "?workspace=/etc", "?workspace=bank&workspace=shop"):
        refused = come(query)
        assert desk.status(refused) == 403, query
        assert "for these workspaces only: shop, lab" in desk.body(refused)["error"]["message"]
        assert not desk.told, "the broker hears nothing of it"
    for query, place in (("?workspace=lab", "lab"), ("?workspace=shop&workspace=bank", "shop")):
        come(query)
        _, word = desk.word()
        assert isinstance(word, OpenStream)
        assert (word.workspace, word.workspaces) == (place, ["shop", "lab"])
        desk.told.clear()
    come("?workspace=bank", "b")
    _, word = desk.word()
    assert isinstance(word, OpenStream)
    assert (word.workspace, word.workspaces) == ("bank", [])


@behaviour("workspaces:tokens")
def test_a_token_for_one_workspace_is_there_without_naming_it() -> None:
    desk = bound_desk("shop")
    desk.post(modern(1, "tools/list"), "/mcp", **modern_headers("tools/list"), **BOUND)
    _, word = desk.word()
    assert isinstance(word, OpenStream)
    assert (word.kind, word.workspace, word.workspaces) == ("shared", "shop", ["shop"])


@behaviour("workspaces:tokens")
def test_a_token_that_is_bound_to_other_workspaces_loses_its_sessions() -> None:
    desk = bound_desk("shop")
    x = desk.post(request(1, "initialize", protocolVersion="2025-11-25"), **BOUND)
    s, _ = desk.word()
    desk.say(s, StreamOpened("abc"))
    desk.answer(s, x, 1, protocolVersion="2025-11-25")
    tokens = {"ann": hash_of("a"), "bob": hash_of("b")}
    desk.take(desk.core.set_gate(AccessRules(tokens=tokens, workspaces={"ann": ("lab",)}), desk.now))
    assert desk.status(desk.post(CALL, mcp_session_id="abc", **BOUND)) == 404


@behaviour("workspaces:tokens")
def test_a_bound_token_does_not_see_what_runs_elsewhere() -> None:
    gate = bound_desk("shop").core.gate
    assert [gate.sees_all(name) for name in ("ann", "bob")] == [False, True]


def test_no_comment_is_written_while_the_client_of_an_array_has_not_read_its_last_event(
    desk: DoorCoreRig,
) -> None:
    """The comment would count as left unread, and the HTTP door would cut a client that reads slowly."""
    session, s = desk.initialized("2025-03-26")
    x = desk.post([request(i, "tools/call", name="t") for i in (2, 3)], mcp_session_id=session)
    desk.answer(s, x, 2, text="x" * 5_000_000)
    desk.take(desk.core.client_blocked(x, desk.now))
    before = len(desk.streams[x])
    desk.wait(16.0)
    assert len(desk.streams[x]) == before
    desk.take(desk.core.client_has_room(x))
    desk.wait(16.0)
    assert desk.streams[x][-1].data == b":\n"
