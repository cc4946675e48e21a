"""The door's core: who may come in, how a request is written, the stateless era, the door's own pages."""

from typing import Any

import pytest

from carpool.http.core import pages, shared_questions
from carpool.http.core.access import AccessRules, hash_of
from carpool.http.core.body import INTERNAL_ERROR
from carpool.http.core.effects import HttpRules
from carpool.http.core.own_requests import MAX_ANNOTATED_PAGES, SUPERVISOR_S
from carpool.http.core.pages import HEALTH_KEPT_S, HEALTH_S, METRICS_KEPT_S, METRICS_S
from carpool_protocol.carrier.streams import (
    ANNOTATED_TOOLS,
    ExchangeClientGone,
    ExchangeEnded,
    OpenStream,
    StreamClosed,
    StreamOpened,
)
from tests.behaviours import behaviour
from tests.client.http.door_core_rig import (
    BOTH,
    META,
    DoorCoreRig,
    Json,
    modern,
    modern_headers,
    notification,
    request,
)

LIST = modern(1, "tools/list")


@pytest.fixture
def desk() -> DoorCoreRig:
    return DoorCoreRig()


# --- who may come in ---


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8808", "127.0.0.1:1", "[::1]:8808", "127.9.9.9", "LOCALHOST"]
)
def test_names_of_this_machine_are_good_hosts(desk: DoorCoreRig, host: str) -> None:
    assert desk.status(desk.send("GET", "/none", host=host)) == 404


@pytest.mark.parametrize(
    "host", ["evil.example.org", "127.0.0.1.evil.org", "", "localhost.evil.org:8808", "[::1", "a:b"]
)
@behaviour("http:host-origin")
def test_other_hosts_are_misdirected(desk: DoorCoreRig, host: str) -> None:
    assert desk.status(desk.send("GET", "/health", host=host)) == 421


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:5173", 404),
        ("https://127.0.0.1", 404),
        ("https://app.example.org", 404),
        ("http://evil.example.org", 403),
        ("null", 403),
        ("file://localhost", 403),
        ("http://[", 403),
    ],
)
@behaviour("http:host-origin")
def test_only_pages_of_this_machine_or_allowed_ones_may_ask(origin: str, status: int) -> None:
    desk = DoorCoreRig(gate=AccessRules(origins=["https://app.example.org"]))
    assert desk.status(desk.send("GET", "/none", origin=origin)) == status


@pytest.mark.parametrize(
    ("site", "origin", "status"),
    [
        ("cross-site", None, 403),
        ("same-site", None, 403),
        ("what-comes-next", None, 403),
        ("", None, 403),
        ("same-origin", None, 404),
        ("none", None, 404),
        ("cross-site", "https://app.example.org", 404),
        ("same-site", "http://localhost:5173", 404),
        ("same-origin", "http://evil.example.org", 403),
    ],
)
@behaviour("http:host-origin")
def test_what_other_pages_embed_is_not_asked_for_by_its_reader(
    site: str, origin: str | None, status: int
) -> None:
    """A picture whose address is here comes without `Origin`, and listing tools starts servers."""
    desk = DoorCoreRig(gate=AccessRules(origins=["https://app.example.org"]))
    asked = {"sec-fetch-site": site} | ({} if origin is None else {"origin": origin})
    assert desk.status(desk.send("GET", "/none", **asked)) == status
    assert desk.status(desk.send("GET", "/mcp/tools", **{"sec-fetch-site": "cross-site"})) == 403
    assert not desk.told, "no server is started"


def test_where_any_page_may_ask_it_may_embed_too() -> None:
    desk = DoorCoreRig(gate=AccessRules(origins=["*"]))
    assert desk.status(desk.send("GET", "/none", **{"sec-fetch-site": "cross-site"})) == 404


def test_configured_hosts_are_good_too() -> None:
    desk = DoorCoreRig(gate=AccessRules(hosts=["tools.example.org"]))
    assert desk.status(desk.send("GET", "/none", host="Tools.Example.org:443")) == 404


@pytest.mark.parametrize("told", [None, "Bearer wrong", "Basic secret", "Bearer ", "secret"])
@behaviour("http:tokens")
def test_with_tokens_nobody_comes_in_without(told: str | None) -> None:
    desk = DoorCoreRig(gate=AccessRules(tokens={"ann": hash_of("secret")}))
    x = desk.post(LIST, **modern_headers("tools/list"), **({} if told is None else {"authorization": told}))
    assert (desk.status(x), desk.header(x, "WWW-Authenticate")) == (401, 'Bearer realm="carpool"')
    assert not desk.told


@behaviour("http:tokens")
def test_a_token_makes_its_name_the_principal() -> None:
    desk = DoorCoreRig(gate=AccessRules(tokens={"ann": hash_of("a"), "bob": hash_of("b")}))
    for token, name in (("a", "ann"), ("b", "bob")):
        desk.post(LIST, **modern_headers("tools/list"), authorization=f"bearer {token}")
        _, word = desk.word()
        assert isinstance(word, OpenStream)
        assert word.principal == name
        desk.told.clear()


@behaviour("profiles:tokens", "profiles:chosen")
def test_a_token_with_a_profile_has_it_whatever_the_url_says() -> None:
    gate = AccessRules(tokens={"ann": hash_of("a"), "bob": hash_of("b")}, profiles={"ann": "reader"})
    desk = DoorCoreRig(gate=gate)
    ann, bob = {"authorization": "Bearer a"}, {"authorization": "Bearer b"}
    for who, path, profile in (
        (ann, "/mcp", "reader"),
        (ann, "/mcp/s/git", "reader"),
        (bob, "/mcp", ""),
        (bob, "/mcp/p/writer", "writer"),
    ):
        desk.post(LIST, path=path, **modern_headers("tools/list"), **who)
        _, word = desk.word()
        assert isinstance(word, OpenStream)
        assert word.profile == profile, path
        desk.told.clear()
    desk.post(LIST, path="/mcp/p/reader", **modern_headers("tools/list"), **ann)
    assert len(desk.told) == 1, "the stream of /mcp serves it: no other is opened"
    desk.told.clear()
    refused = desk.post(LIST, path="/mcp/p/writer", **modern_headers("tools/list"), **ann)
    assert desk.status(refused) == 403
    assert "has the profile reader, and no other" in desk.body(refused)["error"]["message"]
    assert not desk.told


# --- how a request must be written ---


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content_type": "text/plain"}, 415),
        ({"content_type": ""}, 415),
        ({"accept": "application/json"}, 406),
        ({"accept": "text/event-stream"}, 406),
        ({"accept": ""}, 406),
        ({"accept": "application/json, text/event-stream;q=0"}, 406),
        ({"accept": "*/*"}, 400),
        ({"accept": "Application/JSON; q=0.5, text/*"}, 400),
        ({"content_type": "application/json; charset=utf-8"}, 400),
    ],
)
def test_content_type_and_accept_are_checked_first(
    desk: DoorCoreRig, headers: dict[str, str], status: int
) -> None:
    assert desk.status(desk.post(b"no json", **headers)) == status


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", -32700),
        (b"{", -32700),
        (b'{"jsonrpc":"2.0"} x', -32700),
        (b"[" * 100_000, -32700),
        (b'{"a":' * 100_000, -32700),
        (b'"text"', -32600),
        (b"[]", -32600),
        (b"{}", -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":[1],"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', -32600),
        (b'{"jsonrpc":"2.0","id":1}', -32600),
    ],
)
def test_what_is_no_message_is_refused_with_its_code(desk: DoorCoreRig, body: bytes, code: int) -> None:
    x = desk.post(body)
    assert (desk.status(x), desk.code(x)) == (400, code)
    assert not desk.told


def test_an_answer_to_a_body_that_is_no_utf_8_is(desk: DoorCoreRig) -> None:
    """The id is echoed, and an answer is JSON."""
    for session in ({}, {"mcp_session_id": "nobody"}):
        x = desk.post(b'{"jsonrpc":"2.0","id":"S\xa96","method":"ping"}', **session)
        assert desk.status(x) == 400
        assert desk.code(x) == -32700


def test_a_body_of_several_lines_is_one_line_for_the_broker(desk: DoorCoreRig) -> None:
    session, _ = desk.initialized()
    desk.told.clear()
    desk.post(b'{\r\n "jsonrpc": "2.0",\n "id": 5,\n "method": "ping"\n}\n', mcp_session_id=session)
    assert desk.heard("ping")[1]["id"] == 5


def test_a_version_nobody_knows_is_taken_for_a_newer_one(desk: DoorCoreRig) -> None:
    session, _ = desk.initialized()
    x = desk.post(request(2, "ping"), mcp_session_id=session, mcp_protocol_version="2099-01-01")
    assert (desk.status(x), desk.code(x)) == (400, -32602)
    x = desk.get(session, mcp_protocol_version="2099-01-01")
    assert desk.status(x) == 400


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@behaviour("http:stateless:post-only")
def test_the_stateless_era_is_post_only(desk: DoorCoreRig, method: str) -> None:
    session, _ = desk.initialized()
    x = desk.send(method, mcp_session_id=session, mcp_protocol_version="2026-07-28", accept=BOTH)
    assert (desk.status(x), desk.header(x, "Allow")) == (405, "POST")


# --- the stateless era ---


def test_requests_of_all_agents_of_a_principal_share_a_stream_and_ids_do_not_matter(
    desk: DoorCoreRig,
) -> None:
    one = desk.post(LIST, **modern_headers("tools/list"))
    s, word = desk.word()
    assert isinstance(word, OpenStream)
    assert word.kind == "shared"
    other = desk.post(LIST, **modern_headers("tools/list"), mcp_session_id="ignored")
    assert [desk.heard()[::2], desk.heard()[::2]] == [(s, one), (s, other)]
    desk.answer(s, other, 1, n=2)
    desk.answer(s, one, 1, n=1)
    assert [desk.body(x)["result"]["n"] for x in (one, other)] == [1, 2]
    desk.post(LIST, "/mcp/s/git", **modern_headers("tools/list"))
    assert isinstance(desk.word()[1], OpenStream)


@pytest.mark.parametrize(
    "meta",
    [
        None,
        {},
        {"io.modelcontextprotocol/protocolVersion": "2026-07-28"},
        {"io.modelcontextprotocol/clientCapabilities": {}},
        {**META, "io.modelcontextprotocol/protocolVersion": 7},
        {**META, "io.modelcontextprotocol/clientCapabilities": []},
        "text",
    ],
)
def test_a_request_without_its_whole_meta_is_invalid(desk: DoorCoreRig, meta: Any) -> None:
    body = request(1, "tools/list") if meta is None else request(1, "tools/list", _meta=meta)
    x = desk.post(body, **modern_headers("tools/list"))
    assert (desk.status(x), desk.code(x), desk.body(x)["id"]) == (400, -32602, 1)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"mcp_method": "tools/list"},
        {"mcp_protocol_version": "2026-07-28"},
        {"mcp_protocol_version": "2026-07-28", "mcp_method": "TOOLS/LIST"},
        {"mcp_protocol_version": "2025-11-25", "mcp_method": "tools/list"},
        {"mcp_protocol_version": "2026-07-28", "mcp_method": "tools/call"},
    ],
)
@behaviour("http:stateless:headers")
def test_headers_that_are_not_those_of_the_body_are_a_mismatch(
    desk: DoorCoreRig, headers: dict[str, str]
) -> None:
    x = desk.post(LIST, **headers)
    assert (desk.status(x), desk.code(x), desk.body(x)["id"]) == (400, -32020, 1)


@pytest.mark.parametrize(
    ("told", "good"),
    [
        ("ä☂", False),
        ("=?base64?w6TimII=?=", True),
        ("=?base64?!!?=", False),
        ("=?base64?/w==?=", False),
        (None, False),
        ("other", False),
    ],
)
def test_a_name_may_be_told_in_base64(desk: DoorCoreRig, told: str | None, good: bool) -> None:
    body = modern(1, "resources/read", uri="ä☂" if told != "ä☂" else "x")
    x = desk.post(body, **modern_headers("resources/read", told))
    assert (x not in desk.answers) == good


STATUSES = {
    -32601: 404,
    -32020: 400,
    -32021: 400,
    -32022: 400,
    -32600: 400,
    -32700: 400,
    -32602: 200,
    -32603: 200,
}


@pytest.mark.parametrize(("code", "status"), list(STATUSES.items()))
@behaviour("http:stateless:statuses")
def test_an_error_of_the_stateless_era_has_its_status(desk: DoorCoreRig, code: int, status: int) -> None:
    x = desk.post(LIST, **modern_headers("tools/list"))
    desk.error(desk.word()[0], x, code)
    assert desk.status(x) == status


@behaviour("http:stateless:hang-up")
def test_hanging_up_cancels_a_stateless_request(desk: DoorCoreRig) -> None:
    x = desk.post(LIST, **modern_headers("tools/list"))
    s = desk.word()[0]
    desk.heard()
    desk.tell(s, notification("notifications/progress"), x)
    assert desk.ids(x) == [], "no event ids in this era"
    desk.gone(x)
    assert desk.word() == (s, ExchangeClientGone(x))
    desk.answer(s, x, 1)


def test_a_listen_is_a_stream_and_needs_no_place_among_open_requests() -> None:
    desk = DoorCoreRig(HttpRules(max_open=1, json_response=True))
    listens = [
        desk.post(modern(1, "subscriptions/listen"), **modern_headers("subscriptions/listen"))
        for _ in range(3)
    ]
    s = desk.word()[0]
    for x in listens:
        desk.tell(s, notification("notifications/subscriptions/acknowledged"), x)
        assert len(desk.events(x)) == 1
    assert desk.post(LIST, **modern_headers("tools/list")) not in desk.answers
    assert desk.status(desk.post(LIST, **modern_headers("tools/list"))) == 429


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ([LIST], 400),
        ({"jsonrpc": "2.0", "id": 1, "result": {}}, 400),
        (notification("notifications/cancelled", requestId=1, _meta=META), 202),
    ],
)
def test_only_requests_do_something_in_the_stateless_era(desk: DoorCoreRig, body: Any, status: int) -> None:
    x = desk.post(body, **modern_headers("notifications/cancelled"))
    assert desk.status(x) == status
    assert not desk.told


# --- arguments told in headers ---

SCHEMA = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "place": {"type": "object", "properties": {"floor": {"type": "integer", "x-mcp-header": "Floor"}}},
        "loud": {"type": "boolean", "x-mcp-header": "Loud"},
    },
}


def called(desk: DoorCoreRig, arguments: Json, /, **told: str) -> int:
    headers = {f"mcp_param_{name}": value for name, value in told.items()}
    return desk.post(
        modern(1, "tools/call", name="t", arguments=arguments), **modern_headers("tools/call", "t"), **headers
    )


def listed(desk: DoorCoreRig, *schemas: Json) -> int:
    """The door has asked for the list that it checks by, and has got it; the stream."""
    s = desk.word()[0]
    desk.heard("subscriptions/listen")
    _, _, x = desk.heard("tools/list")
    desk.answer(s, x, 1, tools=[{"name": "t", "inputSchema": schema} for schema in schemas])
    return s


@pytest.mark.parametrize(
    ("arguments", "told", "good"),
    [
        ({"region": "eu"}, {"region": "eu"}, True),
        ({"region": "eu"}, {}, False),
        ({"region": "eu"}, {"region": "us"}, False),
        ({"region": None}, {}, True),
        ({}, {"region": "eu"}, False),
        ({"place": {"floor": 3}}, {"floor": "3"}, True),
        ({"place": {"floor": 3}}, {"floor": "03"}, True),
        ({"place": {"floor": 3}}, {"floor": "3x"}, False),
        ({"loud": True}, {"loud": "true"}, True),
        ({"loud": True}, {"loud": "1"}, False),
        ({"region": "ä"}, {"region": "=?base64?w6Q=?="}, True),
        ({}, {}, True),
    ],
)
@behaviour("http:stateless:headers")
def test_arguments_told_in_headers_must_be_those_of_the_body(
    desk: DoorCoreRig, arguments: Json, told: dict[str, str], good: bool
) -> None:
    x = called(desk, arguments, **told)
    listed(desk, SCHEMA)
    if good:
        assert desk.heard("tools/call")[2] == x
    else:
        assert (desk.status(x), desk.code(x)) == (400, -32020)


@behaviour("http:stateless:headers")
def test_the_door_asks_for_annotated_tools_only_and_reads_no_more_pages_than_it_may(
    desk: DoorCoreRig,
) -> None:
    x = called(desk, {"region": "eu"})
    s = desk.word()[0]
    desk.heard("subscriptions/listen")
    cursor = ANNOTATED_TOOLS
    for at in range(MAX_ANNOTATED_PAGES):
        _, asked, own = desk.heard("tools/list")
        assert asked["params"]["cursor"] == cursor
        cursor = f"{ANNOTATED_TOOLS}.{at}"
        tools = [{"name": "t", "inputSchema": SCHEMA}, {"name": 7}, 7, {"name": f"t{at}"}]
        desk.answer(s, own, asked["id"], tools=tools, nextCursor=cursor)
    assert not desk.told
    assert (desk.status(x), desk.code(x)) == (400, -32020)


def test_the_list_is_asked_for_once_until_it_changes(desk: DoorCoreRig) -> None:
    called(desk, {})
    s = desk.word()[0]
    _, _, listen = desk.heard("subscriptions/listen")
    _, _, x = desk.heard("tools/list")
    desk.answer(s, x, 1, tools=[])
    desk.heard("tools/call")
    called(desk, {})
    desk.heard("tools/call")
    assert not desk.told
    desk.tell(s, notification("notifications/tools/list_changed"), listen)
    called(desk, {"region": "eu"})
    desk.heard("subscriptions/listen")
    assert desk.heard("tools/list")


def test_the_list_is_asked_for_again_when_the_broker_ends_the_listen_without_an_answer(
    desk: DoorCoreRig,
) -> None:
    called(desk, {})
    s = desk.word()[0]
    _, _, listen = desk.heard("subscriptions/listen")
    _, _, x = desk.heard("tools/list")
    desk.answer(s, x, 1, tools=[])
    desk.heard("tools/call")
    desk.say(s, ExchangeEnded(listen))
    called(desk, {"region": "eu"})
    assert desk.heard("subscriptions/listen")
    assert desk.heard("tools/list")


def test_a_list_that_does_not_come_holds_no_call_for_long(desk: DoorCoreRig) -> None:
    x = called(desk, {"region": "eu"})
    desk.told.clear()
    desk.wait(1.0)
    assert not desk.told
    desk.wait(1.5)
    assert desk.heard("tools/call")[2] == x


def test_a_call_whose_client_leaves_while_it_waits_is_not_made(desk: DoorCoreRig) -> None:
    x = called(desk, {})
    desk.gone(x)
    listed(desk, SCHEMA)
    assert not desk.told


def test_the_end_of_a_shared_stream_answers_all_and_the_next_request_opens_another(desk: DoorCoreRig) -> None:
    x, parked = desk.post(LIST, **modern_headers("tools/list")), called(desk, {})
    s = desk.word()[0]
    desk.say(s, StreamClosed("the broker is sorry"))
    assert desk.status(x) == desk.status(parked) == 502
    desk.told.clear()
    desk.post(LIST, **modern_headers("tools/list"))
    assert isinstance(desk.word()[1], OpenStream)


# --- pages of the door itself ---

STATUS = {
    "healthy": True,
    "reason": "ok",
    "broker": {"uptime_s": 7.5},
    "servers": {"git": {"state": "serving", "tools": 3, "instances": [{}, {}], "last_error": "hidden"}},
}


@behaviour("metrics:names")
@pytest.mark.parametrize(("is_up", "healthy"), [(True, "1.0"), (False, "0.0")])
def test_the_metrics_have_the_verdict_of_status_on_the_cluster_too(
    desk: DoorCoreRig, *, is_up: bool, healthy: str
) -> None:
    desk.core.set_cluster({"is_up": is_up, "has_left": False})
    x = desk.send("GET", "/metrics")
    s, _ = desk.word()
    counters = {"enabled": True, "run": "r", "since": "", "age_s": 1.0, "rows": []}
    for method, answer in (("carpool/counters", counters), ("carpool/status", STATUS)):
        desk.answer(s, desk.heard(method)[2], 1, **answer)
    assert f"carpool_healthy {healthy}" in desk.answers[x].body.decode()


def tell_status(desk: DoorCoreRig, s: int, *, healthy: bool = True) -> None:
    """Answer the door's question about the health."""
    _, asked, x = desk.heard("carpool/status")
    desk.answer(s, x, asked["id"], **{**STATUS, "healthy": healthy})


@behaviour("http:health")
def test_requests_for_the_health_at_once_share_one_question_and_others_have_ids_of_their_own(
    desk: DoorCoreRig,
) -> None:
    asking = [desk.send("GET", "/health") for _ in range(3)]
    s = desk.word()[0]
    scraped = desk.send("GET", "/metrics")
    desk.gone(asking[0])
    _, first, x = desk.heard("carpool/status")
    _, other, _ = desk.heard("carpool/counters")
    assert not desk.told
    assert first["id"] != other["id"]
    desk.answer(s, x, first["id"], **STATUS)
    assert [desk.status(each) for each in asking[1:]] == [200, 200]
    assert scraped not in desk.answers


@behaviour("http:health")
def test_the_daemon_is_asked_for_the_health_once_a_second_however_often_anybody_asks(
    desk: DoorCoreRig,
) -> None:
    desk.send("GET", "/health")
    s = desk.word()[0]
    tell_status(desk, s)
    desk.wait(HEALTH_KEPT_S - 0.1)
    desk.core.set_full(is_full=True)
    again = [desk.send("GET", "/health") for _ in range(100)]
    assert not desk.told
    assert {desk.status(each) for each in again} == {200}
    assert {desk.body(each)["reason"] for each in again} == {"connections_used_up"}
    desk.wait(0.1)
    later = desk.send("GET", "/health")
    tell_status(desk, s, healthy=False)
    assert desk.status(later) == 503


def tell_metrics(desk: DoorCoreRig, s: int, *, uptime_s: float = 7.5) -> None:
    """Answer both questions of the door for the metrics."""
    counters = {"enabled": True, "run": "r", "since": "", "age_s": 1.0, "rows": []}
    desk.answer(s, desk.heard("carpool/counters")[2], 1, **counters)
    status = {**STATUS, "broker": {"uptime_s": uptime_s}}
    desk.answer(s, desk.heard("carpool/status")[2], 1, **status)


@behaviour("http:questions-once", "metrics:names")
def test_the_broker_is_asked_for_the_metrics_once_a_second_whoever_asks_and_hangs_up(
    desk: DoorCoreRig,
) -> None:
    gone = [desk.send("GET", "/metrics") for _ in range(100)]
    for x in gone:
        desk.gone(x)
    waiting = [desk.send("GET", "/metrics", accept=accept) for accept in ("", "application/openmetrics-text")]
    s = desk.word()[0]
    tell_metrics(desk, s)
    assert desk.told == []
    assert [desk.status(x) for x in waiting] == [200, 200]
    assert [b"# EOF" in desk.answers[x].body for x in waiting] == [False, True]
    assert not desk.answers.keys() & {*gone}
    desk.wait(METRICS_KEPT_S - 0.1)
    kept = desk.send("GET", "/metrics")
    assert desk.answers[kept].body == desk.answers[waiting[0]].body
    desk.wait(0.1)
    later = desk.send("GET", "/metrics")
    tell_metrics(desk, s, uptime_s=99.0)
    assert desk.answers[later].body != desk.answers[kept].body


@behaviour("http:questions-once")
def test_the_metrics_of_a_broker_that_has_died_are_not_those_of_the_next_one(desk: DoorCoreRig) -> None:
    desk.send("GET", "/metrics")
    s = desk.word()[0]
    tell_metrics(desk, s)
    desk.take(desk.core.broker_lost(desk.now))
    desk.take(desk.core.broker_connected(desk.now))
    desk.word()
    desk.send("GET", "/metrics")
    desk.heard("carpool/counters")


def test_metrics_that_cannot_be_had_are_an_error_for_all_who_wait_and_are_asked_for_again(
    desk: DoorCoreRig,
) -> None:
    waiting = [desk.send("GET", "/metrics") for _ in range(2)]
    desk.word()
    desk.wait(METRICS_S)
    assert [desk.status(x) for x in waiting] == [503, 503]
    desk.told.clear()
    desk.send("GET", "/metrics")
    desk.heard("carpool/counters")


@behaviour("http:health")
def test_the_health_of_a_broker_that_has_died_is_not_that_of_the_next_one(desk: DoorCoreRig) -> None:
    desk.send("GET", "/health")
    s = desk.word()[0]
    tell_status(desk, s)
    desk.take(desk.core.broker_lost(desk.now))
    desk.take(desk.core.broker_connected(desk.now))
    desk.word()
    x = desk.send("GET", "/health")
    tell_status(desk, s, healthy=False)
    assert desk.status(x) == 503


@behaviour("http:health")
def test_health_is_what_the_broker_says_and_its_status_code_says_it_too(desk: DoorCoreRig) -> None:
    x = desk.send("GET", "/health")
    s, word = desk.word()
    assert isinstance(word, OpenStream)
    assert word.kind == "control"
    tell_status(desk, s)
    assert desk.status(x) == 200
    desk.wait(HEALTH_KEPT_S)
    ill = desk.send("GET", "/health")
    tell_status(desk, s, healthy=False)
    assert desk.status(ill) == 503
    assert desk.body(ill) == {
        "healthy": False,
        "reason": "ok",
        "silent": None,
        "tool_count": 3,
        "uptime_s": 7.5,
        "servers": {"git": {"state": "serving", "tools": 3, "instances": 2}},
    }


def test_health_without_a_broker_or_its_answer_says_so() -> None:
    desk = DoorCoreRig(linked=False)
    x = desk.send("GET", "/health")
    assert (desk.status(x), desk.body(x)["reason"]) == (503, "broker_away")
    desk.take(desk.core.broker_connected(desk.now))
    x = desk.send("GET", "/health")
    desk.wait(0.9)
    assert (desk.status(x), desk.body(x)["reason"]) == (503, "broker_silent")


@behaviour("http:health:frozen")
def test_health_keeps_what_the_broker_said_last_while_the_broker_is_silent(desk: DoorCoreRig) -> None:
    well = desk.send("GET", "/health")
    tell_status(desk, desk.word()[0])
    known = desk.body(well)
    desk.wait(HEALTH_KEPT_S)
    for times in range(3):
        x = desk.send("GET", "/health")
        desk.wait(0.9)
        said = desk.body(x)
        assert desk.status(x) == 503
        silent = {"process": "broker", "for_s": round(0.9 * (times + 1), 3)}
        assert said == {**known, "healthy": False, "reason": "broker_silent", "silent": silent}


@behaviour("http:health:frozen")
def test_health_keeps_what_the_broker_said_last_while_the_broker_is_gone(desk: DoorCoreRig) -> None:
    desk.send("GET", "/health")
    tell_status(desk, desk.word()[0])
    desk.take(desk.core.broker_lost(desk.now))
    x = desk.send("GET", "/health")
    assert (desk.status(x), desk.body(x)["reason"], desk.body(x)["tool_count"]) == (503, "broker_away", 3)
    assert desk.body(x)["silent"]["process"] == "broker"


def test_health_asks_the_broker_to_wait_for_the_supervisor_for_less_than_it_waits_itself(
    desk: DoorCoreRig,
) -> None:
    desk.send("GET", "/health")
    desk.word()
    _, asked, _ = desk.heard("carpool/status")
    assert asked["params"]["within_s"] == SUPERVISOR_S < HEALTH_S < 1.0


def test_strangers_hear_how_it_is_but_not_what_runs() -> None:
    desk = DoorCoreRig(gate=AccessRules(tokens={"ann": hash_of("a")}))
    x = desk.send("GET", "/health")
    tell_status(desk, desk.word()[0])
    assert (desk.body(x)["healthy"], desk.body(x)["servers"], desk.body(x)["tool_count"]) == (True, {}, 0)


@behaviour("http:tools-json")
def test_the_list_of_tools_is_to_be_had_as_json_over_all_its_pages(desk: DoorCoreRig) -> None:
    x = desk.send("GET", "/mcp/tools")
    s = desk.word()[0]
    _, _, own = desk.heard("tools/list")
    desk.answer(s, own, 1, tools=[{"name": "a"}], nextCursor="c")
    assert desk.heard("tools/list")[1]["params"]["cursor"] == "c"
    desk.answer(s, own, 1, tools=[{"name": "b"}])
    assert desk.body(x) == {"tools": [{"name": "a"}, {"name": "b"}]}


@behaviour("http:tools-json-bounds")
def test_requests_for_the_same_list_of_tools_share_one(desk: DoorCoreRig) -> None:
    requests = [desk.send("GET", "/mcp/tools") for _ in range(20)]
    other = desk.send("GET", "/mcp/tools?tool-name-length=40")
    asked = [(s, x) for s, said, x in desk.told if isinstance(said, dict)]
    assert len(asked) == 2, "one list for each way to see it"
    desk.gone(requests[0])
    (s, x), (t, y) = asked
    desk.answer(s, x, 1, tools=[{"name": "a"}])
    assert not desk.answers.keys() & {requests[0], other}
    bodies = [desk.answers[each].body for each in requests[1:]]
    assert all(each is bodies[0] for each in bodies), "the memory is that of one list"
    desk.answer(t, y, 1, tools=[{"name": "b"}])
    assert desk.body(other) == {"tools": [{"name": "b"}]}
    desk.told.clear()
    desk.send("GET", "/mcp/tools")
    assert desk.heard("tools/list"), "a later request hears what is there then"


@behaviour("http:tools-json-bounds")
def test_a_request_for_the_list_of_tools_counts_as_an_open_one() -> None:
    desk = DoorCoreRig(HttpRules(max_open=3), AccessRules(tokens={"ann": hash_of("a"), "bob": hash_of("b")}))
    waiting = [desk.send("GET", "/mcp/tools", authorization="Bearer a") for _ in range(3)]
    refused = desk.send("GET", "/mcp/tools", authorization="Bearer a")
    assert (desk.status(refused), desk.body(refused)["error"]["code"]) == (429, INTERNAL_ERROR)
    assert "3 requests of yours are open" in desk.body(refused)["error"]["message"]
    other = desk.send("GET", "/mcp/tools", authorization="Bearer b")
    assert other not in desk.answers
    desk.gone(waiting[0])
    again = desk.send("GET", "/mcp/tools", authorization="Bearer a")
    asked = [(s, x) for s, said, x in desk.told if isinstance(said, dict)]
    for s, x in asked:
        desk.answer(s, x, 1, tools=[])
    assert [desk.status(each) for each in (*waiting[1:], other, again)] == [200] * 4
    for _ in range(3):
        assert desk.send("GET", "/mcp/tools", authorization="Bearer a") not in desk.answers


@behaviour("http:tools-json-bounds")
def test_lists_of_tools_that_are_collected_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MAX_LIST_BYTES", 1000)
    desk = DoorCoreRig()
    for _ in range(2):
        waiting = [desk.send("GET", "/mcp/tools") for _ in range(2)]
        s, x = next((s, x) for s, said, x in desk.told if isinstance(said, dict))
        for _ in range(2):
            desk.answer(s, x, 1, tools=[{"name": "a" * 500}], nextCursor="c")
        assert [desk.status(each) for each in waiting] == [503, 503]
        assert "tools/list" in desk.body(waiting[0])["error"]["message"]
        desk.told.clear()  # what was collected is free again, so a short list fits
        short = desk.send("GET", "/mcp/tools")
        x = next(x for _, said, x in desk.told if isinstance(said, dict))
        desk.answer(s, x, 1, tools=[{"name": "a" * 500}])
        assert desk.status(short) == 200
        desk.told.clear()


@behaviour("http:tools-json-bounds")
def test_a_long_list_of_tools_is_sent_to_those_who_wait_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_questions, "ANSWER_TURN_BYTES", 1000)
    desk = DoorCoreRig()
    waiting = [desk.send("GET", "/mcp/tools") for _ in range(7)]
    s, x = next((s, x) for s, said, x in desk.told if isinstance(said, dict))
    desk.answer(s, x, 1, tools=[{"name": "a" * 500}])
    answered = [len(desk.answers.keys() & {*waiting})]
    desk.gone(waiting[-1])
    while len(desk.answers.keys() & {*waiting}) < 6:
        desk.take(desk.core.continue_answers())
        answered.append(len(desk.answers.keys() & {*waiting}))
    assert answered == [2, 4, 6]
    assert all(desk.status(each) == 200 for each in waiting[:-1])


def test_a_list_of_tools_that_cannot_be_had_is_an_error_for_all_who_wait(desk: DoorCoreRig) -> None:
    waiting = [desk.send("GET", "/mcp/tools") for _ in range(3)]
    s = desk.word()[0]
    desk.say(s, StreamClosed("it ended"))
    assert [desk.status(each) for each in waiting] == [502] * 3


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", "/mcp", 405),
        ("POST", "/health", 405),
        ("GET", "/mcp", 406),
        ("GET", "/", 404),
        ("GET", "/mcp/s/", 404),
        ("GET", "/mcp/s/a/b", 404),
        ("GET", "/mcp/s/..%2f", 404),
        ("GET", "/mcpx", 404),
    ],
)
def test_other_methods_and_paths_are_refused(desk: DoorCoreRig, method: str, path: str, status: int) -> None:
    assert desk.status(desk.send(method, path)) == status


def test_a_frame_for_what_is_not_open_is_dropped_and_no_frame_is_told(desk: DoorCoreRig) -> None:
    desk.answer(99, 7, 1)
    desk.say(99, StreamOpened("x"))
    assert desk.core.line_received(b"{}", desk.now) is None
