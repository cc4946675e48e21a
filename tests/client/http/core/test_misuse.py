"""Sessions, tokens and bodies as no honest client uses them: what the door's core does about it."""

import json
import tracemalloc
from typing import Any

import pytest

from carpool.http.core import body
from carpool.http.core.access import ANY_PRINCIPAL, NO_PRINCIPAL, AccessRules, hash_of
from carpool.http.core.core import HttpCore
from carpool.http.core.effects import HttpRequest, HttpRules
from carpool.http.core.limits import MAX_PARAMETERS, HttpLimits
from carpool.http.core.pending import MAX_WAITING
from carpool.http.core.routing import MAX_ARRAY_BYTES
from carpool.http.server import HttpDoorServer
from carpool_protocol.carrier.streams import CloseStream, OpenStream, StreamOpened
from carpool_protocol.wire.json_scan import fields
from tests.behaviours import behaviour
from tests.client.http.door_core_rig import DoorCoreRig, modern, modern_headers, notification, request


def test_a_session_whose_client_left_before_it_knew_of_it_is_ended() -> None:
    desk = DoorCoreRig(HttpRules(max_sessions=1))
    for _ in range(3):
        desk.gone(desk.post(request(1, "initialize", protocolVersion="2025-11-25")))
    assert desk.core.sessions == 0


def test_a_token_that_is_taken_back_ends_what_it_has_open_and_nobody_elses() -> None:
    gate = AccessRules(tokens={"ann": hash_of("a"), "bob": hash_of("b")})
    desk = DoorCoreRig(gate=gate)
    ann, bob = {"authorization": "Bearer a"}, {"authorization": "Bearer b"}
    sid, _ = desk.initialized(session="ann", **ann)
    desk.initialized(session="bob", **bob)
    listening, others = desk.get(sid, **ann), desk.get("bob", **bob)
    asked = desk.post(modern(1, "tools/list"), **modern_headers("tools/list"), **ann)
    waiting = desk.post(request(2, "ping"), mcp_session_id="bob", **bob)
    desk.take(desk.core.set_gate(AccessRules(tokens={"ann": hash_of("new"), "bob": hash_of("b")}), desk.now))
    assert desk.ended == [listening]
    assert desk.status(asked) == 401
    assert others in desk.streams
    assert waiting not in desk.answers
    assert desk.core.sessions == 1


@behaviour("http:tokens:unread")
@pytest.mark.parametrize("answered", [4, 5])
def test_answers_that_wait_for_the_client_of_a_token_that_is_taken_back_are_dropped(answered: int) -> None:
    gate = AccessRules(tokens={"ann": hash_of("a"), "bob": hash_of("b")})
    desk = DoorCoreRig(gate=gate)
    streams = {}
    for name in ("ann", "bob"):
        headers = {"authorization": f"Bearer {name[0]}"}
        session, s = desk.initialized("2025-03-26", session=name, **headers)
        x = streams[name] = desk.post(
            [request(ident, "tools/call", name="t") for ident in (1, 2, 3, 4, 5)],
            mcp_session_id=session,
            **headers,
        )
        for ident in range(1, answered + 1):
            desk.answer(s, x, ident, text="x" * MAX_ARRAY_BYTES)
        desk.take(desk.core.client_blocked(x, desk.now))
        assert len(desk.events(x)) == 1
    desk.take(desk.core.set_gate(AccessRules(tokens={"bob": hash_of("b")}), desk.now))
    assert (streams["ann"] in desk.ended) is (answered == 5), "of the other one an error is still to come"
    for x in streams.values():
        desk.take(desk.core.client_has_room(x))
    desk.continue_turns()
    read = {name: [each["id"] for each in desk.events(x) if "result" in each] for name, x in streams.items()}
    assert read == {"ann": [1], "bob": [*range(1, answered + 1)]}
    assert streams["ann"] in desk.ended
    assert not desk.core.has_open_calls or answered < 5


@behaviour("profiles:tokens")
def test_a_token_that_gets_another_profile_ends_what_it_has_open() -> None:
    tokens = {"ann": hash_of("a")}
    desk = DoorCoreRig(gate=AccessRules(tokens=tokens))
    ann = {"authorization": "Bearer a"}
    sid, _ = desk.initialized(session="ann", **ann)
    listening = desk.get(sid, **ann)
    desk.take(desk.core.set_gate(AccessRules(tokens=tokens), desk.now))
    assert desk.ended == []
    desk.take(desk.core.set_gate(AccessRules(tokens=tokens, profiles={"ann": "reader"}), desk.now))
    assert desk.ended == [listening]
    assert desk.status(desk.post(request(2, "ping"), mcp_session_id="ann", **ann)) == 404


@pytest.mark.parametrize("headers", [{"mcp_session_id": "sid-1, sid-1"}, {"mcp_session_id": "SID-1"}])
def test_a_session_id_is_that_one_exactly(headers: dict[str, str]) -> None:
    desk = DoorCoreRig()
    desk.initialized()
    assert desk.status(desk.post(request(2, "ping"), **headers)) == 404


def test_two_tokens_are_none() -> None:
    desk = DoorCoreRig(gate=AccessRules(tokens={"ann": hash_of("a")}))
    assert desk.status(desk.post(request(1, "initialize"), authorization="Bearer a, Bearer a")) == 401


def test_a_message_too_long_for_the_broker_stays_here_on_the_old_transport_as_well() -> None:
    desk = DoorCoreRig()
    x = desk.send("GET", "/sse", accept="text/event-stream")
    s = desk.word()[0]
    desk.say(s, StreamOpened("old"))
    assert x in desk.streams
    long = notification("x", text="a" * 9_000_000)
    x = desk.send("POST", "/messages?session=old", json.dumps(long).encode())
    assert desk.status(x) == 413
    assert desk.body(x)["error"]["data"]["code"] == "too_large"
    assert not desk.told


@pytest.mark.parametrize("code", ["text", None, {}, 1.5, 10**30])
def test_an_error_with_any_code_is_an_answer(code: object) -> None:
    desk = DoorCoreRig()
    sid, s = desk.initialized()
    x = desk.post(request(2, "tools/list"), mcp_session_id=sid)
    desk.tell(s, {"jsonrpc": "2.0", "id": 2, "error": {"code": code, "message": "m"}}, x)
    assert desk.status(x) == 200


CUT = rb'"arguments":{"t":"\ud83d \\"}'


def test_half_of_a_surrogate_pair_which_javascript_writes_for_a_cut_emoji_passes_in_both_eras() -> None:
    desk = DoorCoreRig()
    sid, _ = desk.initialized()
    line = b'{"jsonrpc":"2.0","id":"a\\\\b","method":"tools/call","params":{"name":"n\\\\",%b}}' % CUT
    x = desk.post(line, mcp_session_id=sid)
    assert x not in desk.answers
    assert desk.heard("tools/call")[1]["params"]["arguments"] == {"t": "\ud83d \\"}
    meta = json.dumps(modern(1, "x")["params"]["_meta"]).encode()
    line = b'{"jsonrpc":"2.0","id":2,"method":"prompts/get","params":{"name":"n\\\\","_meta":%b,%b}}' % (
        meta,
        CUT,
    )
    x = desk.post(line, **modern_headers("prompts/get", "n\\"))
    assert x not in desk.answers
    assert desk.word()
    assert desk.heard("prompts/get")


def test_a_very_long_body_with_half_of_a_surrogate_pair_is_refused_and_one_of_ordinary_text_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("carpool.http.core.body.MAX_UNUSUAL_BYTES", 100_000)
    desk = DoorCoreRig()
    sid, _ = desk.initialized()

    def post(text: bytes) -> int:
        text = b'{"name":"n","arguments":{"t":"%b"}}' % (text + b"y" * 100_000)
        call = b'{"jsonrpc":"2.0","id":3,"method":"tools/call","params":%b}'
        return desk.post(call % text, mcp_session_id=sid)

    assert post(b"x") not in desk.answers
    assert "half of a surrogate pair" in desk.body(post(b"\\ud83d"))["error"]["message"]


HALF = "cut \ud83d and \\ud83d"


@behaviour("http:half-pairs")
@pytest.mark.parametrize("era", ["handshake", "stateless"])
@pytest.mark.parametrize("kind", ["result", "error"])
def test_an_answer_with_half_of_a_surrogate_pair_ends_its_request_and_is_not_asked_for_again(
    era: str, kind: str
) -> None:
    desk = DoorCoreRig()
    if era == "handshake":
        sid, s = desk.initialized()
        x = desk.post(request(7, "tools/call", name="n"), mcp_session_id=sid)
    else:
        x = desk.post(modern(7, "prompts/get", name="n"), **modern_headers("prompts/get", "n"))
        s = desk.word()[0]
    desk.told.clear()
    said: Any = (
        {"content": [{"type": "text", "text": HALF}]} if kind == "result" else {"code": -1, "message": HALF}
    )
    desk.tell(s, {"jsonrpc": "2.0", "id": 7, kind: said}, x)
    assert desk.body(x) == {"jsonrpc": "2.0", "id": 7, kind: said}
    desk.take(desk.core.broker_lost(desk.now))
    desk.take(desk.core.broker_connected(desk.now))
    told = [each.get("method") for _, each, _ in desk.told if isinstance(each, dict)]
    assert not {"tools/call", "prompts/get"} & set(told)


@behaviour("http:half-pairs")
def test_a_list_with_half_of_a_surrogate_pair_is_shown_with_a_replacement_character() -> None:
    desk = DoorCoreRig()
    x = desk.send("GET", "/mcp/tools")
    s = desk.word()[0]
    _, _, own = desk.heard("tools/list")
    desk.answer(s, own, 1, tools=[{"name": "a", "description": HALF}])
    shown = {"tools": [{"name": "a", "description": HALF.replace("\ud83d", "\ufffd", 1)}]}
    assert desk.body(x) == shown


def test_where_there_are_no_sessions_an_array_is_not_asked_for_one() -> None:
    desk = DoorCoreRig(HttpRules(stateless=True))
    x = desk.post([request(1, "ping")])
    assert desk.status(x) == 400
    assert "one message" in desk.body(x)["error"]["message"]


@behaviour("http:shares")
def test_a_token_takes_no_more_than_its_share_of_the_sessions() -> None:
    tokens = {"ann": hash_of("a"), "bob": hash_of("b")}
    desk = DoorCoreRig(HttpRules(max_sessions=5), AccessRules(tokens=tokens))

    def begin(token: str) -> int:
        x = desk.post(request(1, "initialize"), authorization=f"Bearer {token}")
        return desk.status(x) if x in desk.answers else 0

    assert [begin("a") for _ in range(4)] == [0, 0, 503, 503]
    assert [begin("b") for _ in range(3)] == [0, 0, 503]
    assert desk.status(desk.send("GET", "/sse", authorization="Bearer a")) == 503
    desk.take(desk.core.set_gate(AccessRules(tokens={"bob": hash_of("b")}), desk.now))
    assert [begin("b") for _ in range(4)] == [0, 0, 0, 503], "those of a token that is gone are free"


def ended(desk: DoorCoreRig) -> list[int]:
    """The streams that the broker was told to end since the last look."""
    told, desk.told = desk.told, [each for each in desk.told if not isinstance(each[1], CloseStream)]
    return [s for s, word, _ in told if isinstance(word, CloseStream)]


def ask_at(desk: DoorCoreRig, length: int) -> tuple[int, int]:
    """A stateless request at a URL of its own: its number, and its stream (0: it is refused)."""
    desk.told = [each for each in desk.told if isinstance(each[1], CloseStream)]
    x = desk.post(modern(1, "tools/list"), f"/mcp?tool-name-length={length}", **modern_headers("tools/list"))
    opened = [s for s, word, _ in desk.told if isinstance(word, OpenStream)]
    return x, opened[0] if opened else 0


@behaviour("http:shares")
def test_streams_of_requests_without_a_session_count_and_end_when_they_are_idle() -> None:
    desk = DoorCoreRig(HttpRules(max_sessions=3, session_idle_s=60.0))
    asked = [ask_at(desk, length) for length in (40, 41, 42)]
    streams = [s for _, s in asked]
    assert len(set(streams)) == 3
    x, s = ask_at(desk, 43)
    assert (desk.status(x), s) == (503, 0), "each waits for its answer, so none gives way"
    for x, s in asked:
        desk.answer(s, x, 1, tools=[])
        desk.wait(1.0)
    x, fourth = ask_at(desk, 43)
    assert fourth
    assert ended(desk) == streams[:1], "the one that is idle for longest"
    desk.wait(61.0)
    assert ended(desk) == streams[1:], "the fourth waits for its answer"
    desk.answer(fourth, x, 1, tools=[])
    desk.wait(61.0)
    assert ended(desk) == [fourth]
    assert desk.core.sessions == 0


@behaviour("http:shares")
def test_an_idle_stream_without_a_session_keeps_no_place_from_a_session() -> None:
    desk = DoorCoreRig(HttpRules(max_sessions=1))
    x, s = ask_at(desk, 40)
    assert desk.status(desk.post(request(1, "initialize"))) == 503
    desk.answer(s, x, 1, tools=[])
    x = desk.post(request(1, "initialize"))
    assert x not in desk.answers
    assert ended(desk) == [s]


class FakeConnection:
    """A connection as the shell knows it."""

    address = "127.0.0.1"

    def __init__(self, *unread_by: str) -> None:
        self.is_cut = self.is_finished = False
        self.unread_by = set(unread_by)
        self.answers: list[int] = []

    def abort(self) -> None:
        self.is_cut = True

    def close_after_write(self) -> None:
        self.is_finished = True

    def respond(self, status: int, *_: object) -> None:
        self.answers.append(status)


def ask(door: HttpDoorServer, wire: Any, token: str) -> None:
    headers = {"host": "localhost", "authorization": f"Bearer {token}"}
    door.request_received(wire, HttpRequest("GET", "/nothing", "", headers, b""))


@behaviour("http:shares")
def test_connections_of_a_token_that_was_replaced_take_nothing_from_the_new_one() -> None:
    door = HttpDoorServer(
        "", HttpCore(HttpRules(), AccessRules(tokens={"ann": hash_of("old")})), HttpLimits(), 16
    )
    old: list[Any] = [FakeConnection() for _ in range(12)]
    for each in old:
        assert door.client_connected(each) is None
        ask(door, each, "old")
    door.set_gate(AccessRules(tokens={"ann": hash_of("new")}))
    for each in old[:3]:
        ask(door, each, "old")
        assert door.principal_of(each, {"authorization": "Bearer old"}) == NO_PRINCIPAL
    for _ in range(12):
        new: Any = FakeConnection()
        assert door.client_connected(new) is None
        ask(door, new, "new")
        assert not new.is_finished
        for each in old:
            if each.is_cut:
                door.connection_closed(each)
    assert [each.is_cut for each in old].count(False) == 3, "they are among those that have shown no token"


@behaviour("http:tokens:unread")
def test_a_connection_with_unread_answers_is_cut_when_its_token_is_taken_back() -> None:
    gate = AccessRules(tokens={"ann": hash_of("a"), "bob": hash_of("b")})
    door = HttpDoorServer("", HttpCore(HttpRules(), gate), HttpLimits(), 16)
    unread: dict[Any, bool] = {FakeConnection("ann"): True, FakeConnection("bob"): False}
    others: dict[Any, bool] = {FakeConnection("bob", "ann"): True, FakeConnection("bob"): False}
    idle: Any = FakeConnection()
    for each, token in (*zip(unread, "ab", strict=True), *zip(others, "ba", strict=True), (idle, "a")):
        door.client_connected(each)
        ask(door, each, token)
    door.set_gate(AccessRules(tokens={"bob": hash_of("b")}))
    assert not idle.is_cut
    assert {each: each.is_cut for each in unread} == unread
    assert {each: each.is_cut for each in others} == others, "the token that was shown first does not count"


@behaviour("http:tokens:unread")
def test_a_connection_with_unread_answers_is_cut_when_tokens_are_asked_for_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(HttpDoorServer, "_is_let_in", lambda *_: True)
    door = HttpDoorServer("", HttpCore(HttpRules(), AccessRules()), HttpLimits(), 16)
    unread: Any = FakeConnection(ANY_PRINCIPAL)
    door.client_connected(unread)
    door.set_gate(AccessRules(tokens={"bob": hash_of("b")}))
    assert unread.is_cut


@behaviour("http:shares")
def test_clients_without_a_good_token_take_no_room_from_requests_that_wait_for_the_broker() -> None:
    door = HttpDoorServer(
        "", HttpCore(HttpRules(), AccessRules(tokens={"ann": hash_of("a")})), HttpLimits(), 4 * MAX_WAITING
    )
    for path, token in (("/mcp", ""), ("/mcp", "wrong"), ("/", "")):
        for _ in range(MAX_WAITING // 2 if token != "wrong" else 3):
            stranger: Any = FakeConnection()
            door.client_connected(stranger)
            headers = {"host": "localhost"} | ({"authorization": f"Bearer {token}"} if token else {})
            door.request_received(stranger, HttpRequest("GET", path, "", headers, b""))
            assert stranger.answers, "its answer needs no broker"
    ann: Any = FakeConnection()
    door.client_connected(ann)
    ask(door, ann, "a")
    assert ann.answers == [], "it waits"


@behaviour("http:shares:waiting")
def test_a_token_that_fills_the_wait_for_the_broker_shuts_no_other_out_whoever_has_the_connections() -> None:
    gate = AccessRules(tokens={"ann": hash_of("a"), "bob": hash_of("b")})
    door = HttpDoorServer("", HttpCore(HttpRules(), gate), HttpLimits(), 4 * MAX_WAITING)

    def connect(token: str) -> Any:
        wire: Any = FakeConnection()
        door.client_connected(wire)
        ask(door, wire, token)
        return wire

    proxied = connect("b")
    for _ in range(MAX_WAITING + 16):
        ask(door, proxied, "a")  # a proxy sends requests of several tokens on one connection
    bob = [connect("b") for _ in range(20)]
    assert [each.answers for each in bob] == [[]] * 20, "they wait"
    assert abs(len(proxied.answers) - (16 + MAX_WAITING // 2)) <= 1, "half of all wait"


@behaviour("http:shares")
def test_connections_are_shared_by_tokens_and_those_without_one_give_way() -> None:
    tokens = {"ann": hash_of("a"), "bob": hash_of("b")}
    door = HttpDoorServer("", HttpCore(HttpRules(), AccessRules(tokens=tokens)), HttpLimits(), 16)

    def connect(token: str = "") -> Any:
        wire: Any = FakeConnection()
        assert door.client_connected(wire) is None
        if token:
            ask(door, wire, token)
        return wire

    strangers = [connect() for _ in range(100)]
    assert [each.is_cut for each in strangers] == [True] * 96 + [False] * 4
    for each in strangers[:96]:
        door.connection_closed(each)
    ann = [connect("a") for _ in range(8)]
    assert [each.is_finished for each in ann] == [False] * 6 + [True] * 2
    assert ann[-1].answers == [503]
    for each in ann[6:]:
        door.connection_closed(each)
    bob = [connect("b") for _ in range(6)]
    assert not any(each.is_cut or each.is_finished for each in [*ann[:6], *bob])
    for each in ann[:6]:
        door.connection_closed(each)
    assert not connect("a").is_finished


@behaviour("http:proxied")
@pytest.mark.parametrize(
    "header", [{"x-forwarded-for": "10.0.0.1"}, {"forwarded": "for=10.0.0.1"}, {"via": "1.1 proxy"}]
)
def test_a_door_without_tokens_refuses_what_came_through_a_proxy(header: dict[str, str]) -> None:
    for path in ("/mcp", "/mcp/tools", "/health", "/sse"):
        desk = DoorCoreRig()
        assert desk.status(desk.send("GET", path, **header)) == 403
    desk = DoorCoreRig(gate=AccessRules(tokens={"ann": hash_of("a")}))
    assert desk.post(request(1, "initialize"), authorization="Bearer a", **header) not in desk.answers


def test_an_array_with_too_many_elements_is_refused_before_they_are_kept() -> None:
    array = b"[%b0]" % (b"0," * 500_000)
    tracemalloc.start()
    found = body.read_body(array)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(found, body.BadBody)
    assert "holds 1 to 256" in found.text
    assert most_bytes < 2 * len(array)


@behaviour("lines:long-ids")
@pytest.mark.parametrize("sort", ["request", "array", "answer"])
def test_a_message_with_a_very_long_id_is_refused_and_the_broker_hears_nothing_of_it(sort: str) -> None:
    desk = DoorCoreRig()
    sid, _ = desk.initialized(version="2025-03-26")

    def post(ident: str) -> int:
        desk.told.clear()
        said: dict[str, Any] = {
            "request": request(ident, "ping"),
            "array": [request(1, "ping"), request(ident, "ping")],
            "answer": {"jsonrpc": "2.0", "id": ident, "result": {}},
        }
        return desk.post(said[sort], mcp_session_id=sid)

    post("i" * 1022)
    assert desk.told, "with its quotes it has 1024 bytes"
    refused = post("i" * 1023)
    assert not desk.told
    assert desk.status(refused) == 400
    assert desk.body(refused)["id"] == "i" * 1023
    assert "the id has more than 1024 bytes" in desk.body(refused)["error"]["message"]


@behaviour("http:turns")
@pytest.mark.parametrize("path", ["/mcp", "/messages", "/mcp/tools"])
def test_a_url_with_very_many_parameters_is_refused_before_they_are_read(path: str) -> None:
    desk = DoorCoreRig()
    many = "&".join(["%FF=%FF"] * (MAX_PARAMETERS + 1))
    assert desk.status(desk.post(request(1, "ping"), f"{path}?{many}")) == 400
    few = "&".join(["a=b"] * MAX_PARAMETERS)
    assert "parameters" not in str(desk.answers.get(desk.post(request(1, "ping"), f"{path}?{few}")))


@behaviour("http:turns:bodies")
def test_an_unusual_body_is_cut_once_however_many_of_its_members_are_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuts: list[int] = []

    def counted(raw: bytes, readable: bytes) -> dict[str, bytes] | None:
        cuts.append(len(raw))
        return fields(raw, readable)

    monkeypatch.setattr(body, "fields", counted)
    desk = DoorCoreRig()
    meta = json.dumps(modern(1, "x")["params"]["_meta"]).encode()
    line = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"n","_meta":%b,%b}}'
    x = desk.post(line % (meta, CUT), **modern_headers("tools/call", "n"))
    desk.wait(2.5)  # the list of tools does not come
    assert x not in desk.answers
    assert len(cuts) == 2, "the message, and its params"
