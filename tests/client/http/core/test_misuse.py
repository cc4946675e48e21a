"""Sessions, tokens and bodies as no honest client uses them: what the door's core does about it."""

import json
from typing import Any

import pytest

from carpool.http.core.access import AccessRules, hash_of
from carpool.http.core.core import HttpCore
from carpool.http.core.effects import HttpRequest, HttpRules
from carpool.http.core.limits import HttpLimits
from carpool.http.server import HttpDoorServer
from carpool_protocol.carrier.streams import StreamOpened
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


class FakeConnection:
    """A connection as the shell knows it."""

    def __init__(self) -> None:
        self.is_cut = self.is_finished = False
        self.answers: list[int] = []

    def abort(self) -> None:
        self.is_cut = True

    def close_after_write(self) -> None:
        self.is_finished = True

    def respond(self, status: int, *_: object) -> None:
        self.answers.append(status)


@behaviour("http:shares")
def test_connections_are_shared_by_tokens_and_those_without_one_give_way() -> None:
    tokens = {"ann": hash_of("a"), "bob": hash_of("b")}
    door = HttpDoorServer("", HttpCore(HttpRules(), AccessRules(tokens=tokens)), HttpLimits(), 16)

    def connect(token: str = "") -> Any:
        wire: Any = FakeConnection()
        assert door.client_connected(wire) is None
        if token:
            headers = {"host": "localhost", "authorization": f"Bearer {token}"}
            door.request_received(wire, HttpRequest("GET", "/nothing", "", headers, b""))
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
