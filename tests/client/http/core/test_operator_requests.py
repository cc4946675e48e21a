"""Requests of operators at the door's core: the right of each token, and what the broker is asked."""

import hashlib
import json
from typing import Any

import pytest

from carpool.http.core.access import AccessRules, hash_of
from carpool.http.core.effects import LogsFound
from carpool.http.core.operator_requests import ACT_S, READ_S, VERBS
from carpool.http.core.shared_questions import MAX_QUESTIONS
from carpool.readings.call_steps import Crossing, StoryStep, node_story
from carpool_protocol.carrier.streams import OpenStream, StreamOpened
from carpool_protocol.wire.json_scan import MAX_PARTS
from tests.behaviours import behaviour
from tests.client.http.door_core_rig import DoorCoreRig, request
from tests.kit.top_readings import CLUSTER

ACTS = sorted(name for name, verb in VERBS.items() if verb.changes)
READS = sorted(VERBS.keys() - {*ACTS})
BODIES: dict[str, dict[str, Any]] = {
    "cancel": {"call": "c1"},
    "disconnect": {"session": "s1"},
    "pause": {"servers": ["a"]},
    "resume": {"servers": ["a"]},
    "start": {"all": True},
    "stop": {"servers": ["a"]},
    "restart": {"servers": ["a"]},
    "enable": {"server": "a"},
    "disable": {"server": "a"},
}
TOKENS = {name: hash_of(name) for name in ("agent", "limited", "reader", "full")}


def rig() -> DoorCoreRig:
    gate = AccessRules(tokens=TOKENS, profiles={"limited": "p"}, operators={"reader": "read", "full": "full"})
    return DoorCoreRig(gate=gate)


def send(door: DoorCoreRig, verb: str, token: str = "", body: Any = None, **headers: str) -> int:
    shown = {"authorization": f"Bearer {token}", **headers} if token else headers
    if verb.partition("?")[0] in READS:
        return door.send("GET", f"/operator/{verb}", **shown)
    data = json.dumps(BODIES.get(verb, {}) if body is None else body).encode()
    return door.send("POST", f"/operator/{verb}", data, **{"content_type": "application/json", **shown})


def asked(door: DoorCoreRig) -> tuple[int, dict[str, Any], int]:
    """What the broker is asked; its stream is a control stream of the operator."""
    s, word = door.word()
    assert isinstance(word, OpenStream)
    assert word.kind == "control"
    assert word.principal in {"reader", "full"}
    door.say(s, StreamOpened("sid"))
    return door.heard()


@behaviour("operate:http")
@pytest.mark.parametrize("verb", sorted(VERBS))
def test_only_operators_may_ask_and_only_full_ones_may_change(verb: str) -> None:
    door = rig()
    assert door.status(send(door, verb)) == 401
    for token in ("agent", "limited"):
        x = send(door, verb, token)
        assert door.status(x) == 403
        assert "operator's token" in door.body(x)["error"]["message"]
    x = send(door, verb, "reader")
    if verb in ACTS:
        assert door.status(x) == 403
        assert "may read" in door.body(x)["error"]["message"]
    assert door.told == [] or verb in READS
    if verb in ACTS:
        send(door, verb, "full")
        assert asked(door)[1]["method"] == VERBS[verb].method


@behaviour("operate:http")
@pytest.mark.parametrize("verb", sorted(VERBS))
def test_without_tokens_nobody_is_an_operator_over_http(verb: str) -> None:
    door = DoorCoreRig()
    assert door.status(send(door, verb)) == 403
    assert not door.told


@behaviour("operate:http")
@pytest.mark.parametrize("path", ["/mcp", "/mcp/tools", "/mcp/s/a", "/sse"])
def test_an_operators_token_is_no_agents(path: str) -> None:
    door = rig()
    x = door.post(request(1, "initialize"), path, authorization="Bearer full")
    assert door.status(x) == 403
    assert "agents need a token" in door.body(x)["error"]["message"]
    assert not door.told


@behaviour("operate:http", "metrics:access")
@pytest.mark.parametrize(("token", "status"), [("agent", 403), ("limited", 403), ("reader", 0), ("full", 0)])
def test_with_tokens_metrics_are_for_operators(token: str, status: int) -> None:
    door = rig()
    x = door.send("GET", "/metrics", authorization=f"Bearer {token}")
    assert (door.status(x) if x in door.answers else 0) == status
    assert bool(door.told) is not bool(status)


@behaviour("operate:http")
def test_a_page_of_another_origin_may_not_act_even_with_the_token() -> None:
    door = rig()
    assert door.status(send(door, "stop", "full", origin="https://evil.example")) == 403
    assert door.status(send(door, "stop", "full", host="evil.example")) == 421
    assert not door.told


@behaviour("operate:http")
@pytest.mark.parametrize(
    ("verb", "body", "text"),
    [
        ("cancel", {}, "missing required field `call`"),
        ("cancel", {"call": 1}, "Expected `str`, got `int`"),
        ("cancel", {"call": "c1", "more": 1}, "a field or a value that is not known; it may have `call`"),
        ("stop", {"more": 1}, "it may have `servers`, `all`"),
        ("stop", {"servers": [1]}, "Expected `str`, got `int` - at `$.servers[0]`"),
        ("cancel", [], "Expected `object`, got `array`"),
        ("stop", {}, 'name the servers, or say {"all": true}'),
        ("stop", {"servers": ["a"], "all": True}, 'name the servers, or say {"all": true}'),
        ("stop", {"servers": []}, "names no server"),
        ("stop", {"servers": [], "all": True}, 'name the servers, or say {"all": true}'),
        ("pause", {"servers": []}, "names no server"),
        ("pause", {"servers": [0] * MAX_PARTS}, "more than 20,000 parts"),
        ("resume", {"servers": []}, "names no server"),
        ("pause", {"servers": ["a"] * 1001}, "more than 1000"),
    ],
)
def test_a_body_in_another_form_is_refused_before_the_broker_is_asked(
    verb: str, body: Any, text: str
) -> None:
    door = rig()
    x = send(door, verb, "full", body)
    assert (door.status(x), door.code(x)) == (400, -32602)
    assert text in door.body(x)["error"]["message"]
    assert not door.told


@behaviour("operate:http")
@pytest.mark.parametrize("verb", ["enable", "disable"])
@pytest.mark.parametrize("session", ["", "s3"])
def test_a_server_is_enabled_or_disabled_for_all_or_for_one_session(verb: str, session: str) -> None:
    door = rig()
    send(door, verb, "full", {"server": "a", "session": session} if session else {"server": "a"})
    params = asked(door)[1]["params"]
    assert params == {"server": "a", "on": verb == "enable"} | ({"session": session} if session else {})


SECRET = "hunter2"


@behaviour("operate:http")
@pytest.mark.parametrize(
    ("verb", "body"),
    [
        *((verb, body) for verb in ACTS for body in (
            SECRET, {SECRET: 1}, {**BODIES[verb], SECRET: SECRET}, {"call": [SECRET]}, {"servers": SECRET},
            {"servers": {SECRET: SECRET}}, {"servers": [[SECRET]]}, {"session": {SECRET: 1}}, {"all": SECRET},
        )),
        *((f"{verb}?{SECRET}={SECRET}", None) for verb in READS),
        (f"calls?state={SECRET}", None),
        (f"calls?server=a&{SECRET}", None),
        (SECRET, {}),
    ],
)  # fmt: skip
def test_no_error_repeats_anything_of_the_request(verb: str, body: Any) -> None:
    door = rig()
    x = send(door, verb, "full", body)
    assert door.status(x) in {400, 404}
    assert SECRET not in door.answers[x].body.decode()
    assert not door.told


@behaviour("operate:http")
def test_a_state_that_does_not_exist_is_refused_with_those_that_do() -> None:
    door = rig()
    x = send(door, "calls?state=odd", "reader")
    assert "`state` (waiting, running, asking)" in door.body(x)["error"]["message"]


@behaviour("operate:http")
@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 5000, b"null"])
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    door = rig()
    x = door.send(
        "POST", "/operator/stop", body, content_type="application/json", authorization="Bearer full"
    )
    assert door.status(x) == 400
    assert not door.told


@behaviour("operate:http")
def test_another_method_media_type_or_verb_is_refused() -> None:
    door = rig()
    full = {"authorization": "Bearer full"}
    x = door.send("GET", "/operator/stop", **full)
    assert (door.status(x), door.header(x, "Allow")) == (405, "POST")
    x = door.send("POST", "/operator/status", b"{}", content_type="application/json", **full)
    assert (door.status(x), door.header(x, "Allow")) == (405, "GET")
    x = door.send("POST", "/operator/stop", b"{}", content_type="text/plain", **full)
    assert door.status(x) == 415
    for path in ("/operator/", "/operator/nothing", "/operator/stop/"):
        assert door.status(door.send("GET", path, **full)) == 404
    for query in ("servr=a", "state=odd"):
        assert door.status(door.send("GET", f"/operator/calls?{query}", **full)) == 400
    assert not door.told


@behaviour("operate:http")
def test_the_brokers_result_and_its_error_are_the_answer() -> None:
    door = rig()
    x = send(door, "calls?server=a&state=running", "reader")
    s, message, number = asked(door)
    assert message["params"] == {"server": "a", "session": "", "state": "running"}
    door.answer(s, number, calls=[], total=0)
    assert (door.status(x), door.body(x)) == (200, {"calls": [], "total": 0})
    assert door.header(x, "Cache-Control") == "no-store"
    x = send(door, "calls", "reader")
    _, message, number = door.heard("carpool/calls")
    door.error(s, number, -32602)
    assert (door.status(x), door.code(x)) == (400, -32602)
    x = send(door, "calls", "reader")
    gone = {"code": -32602, "message": "m", "data": {"code": "not_found"}}
    door.tell(s, {"jsonrpc": "2.0", "id": 1, "error": gone}, door.heard()[2])
    assert (door.status(x), door.code(x)) == (404, -32602)
    x = send(door, "calls", "reader")
    door.error(s, door.heard()[2], -32000)
    assert (door.status(x), door.code(x)) == (503, -32000)


@behaviour("operate:http")
def test_a_read_is_asked_again_of_the_next_broker_and_an_act_is_not() -> None:
    door = rig()
    reading = send(door, "status", "full")
    asked(door)
    acting = send(door, "restart", "full")
    door.told.clear()
    door.take(door.core.broker_lost(door.now))
    assert reading not in door.answers
    assert door.status(acting) == 504
    assert "may have been done" in door.body(acting)["error"]["message"]
    door.take(door.core.broker_connected(door.now))
    methods = [message["method"] for _, message, _ in door.told if isinstance(message, dict)]
    assert methods == ["carpool/status"]
    door.told.clear()


@behaviour("operate:http")
def test_a_broker_that_does_not_answer_is_said_as_such() -> None:
    door = rig()
    reading, acting = send(door, "status", "full"), send(door, "stop", "full")
    door.wait(READ_S + 1)
    assert door.status(reading) == 503
    assert acting not in door.answers
    door.wait(ACT_S)
    assert door.status(acting) == 504


@behaviour("operate:http")
def test_a_token_that_loses_its_right_loses_what_it_has_open() -> None:
    door = rig()
    x = send(door, "status", "reader")
    door.take(door.core.set_gate(AccessRules(tokens=TOKENS), door.now))
    assert door.status(x) in {401, 503}
    assert door.status(send(door, "status", "reader")) == 403


@behaviour("operate:http")
def test_operators_do_not_divide_the_sessions_of_agents() -> None:
    everyone = AccessRules(tokens=TOKENS, operators={"reader": "read", "full": "full"})
    assert (everyone.principals, everyone.agent_principals) == (4, 2)
    alone = AccessRules(tokens={"full": hash_of("x")}, operators={"full": "full"})
    assert (alone.agent_principals, alone.is_open) == (1, False)


KEY = "key-of-the-page"
KEYED = AccessRules(page_key=hashlib.sha256(KEY.encode()).digest(), knows_owners=True)
OWN_PAGE = {"sec_fetch_site": "same-origin"}


@behaviour("web:access")
@pytest.mark.parametrize("verb", ACTS)
def test_acts_of_the_page_need_its_key(verb: str) -> None:
    door = DoorCoreRig(gate=KEYED)
    x = send(door, verb, **OWN_PAGE)
    assert door.status(x) == 403
    assert "`carpool web`" in door.body(x)["error"]["message"]
    assert door.status(send(door, verb, "another key", **OWN_PAGE)) == 403
    assert not door.told
    send(door, verb, KEY, **OWN_PAGE)
    _, word = door.word()
    assert isinstance(word, OpenStream)
    assert word.principal == "carpool web", "the audit names it"


@behaviour("web:access")
@pytest.mark.parametrize("headers", [{}, {"sec_fetch_site": "none"}, {"sec_fetch_site": "same-site"}])
def test_without_the_key_only_a_page_of_the_door_itself_may_read(headers: dict[str, str]) -> None:
    door = DoorCoreRig(gate=KEYED)
    assert door.status(send(door, "status", **headers)) == 403
    x = send(door, "status", **OWN_PAGE, origin="http://localhost:3000")
    assert x not in door.answers, "a browser never sends both; another program of the user may"
    door.told.clear()
    assert send(door, "status", **OWN_PAGE) not in door.answers


@behaviour("web:access")
def test_without_the_key_a_page_at_a_name_that_has_several_addresses_may_not_read() -> None:
    door = DoorCoreRig(gate=KEYED)
    assert door.status(send(door, "status", host="localhost:8808", **OWN_PAGE)) == 403
    assert send(door, "status", host="[::1]:8808", **OWN_PAGE) not in door.answers


@behaviour("web:access")
def test_where_the_system_does_not_tell_whose_a_connection_is_the_page_needs_the_key() -> None:
    door = DoorCoreRig(gate=AccessRules(page_key=hashlib.sha256(KEY.encode()).digest()))
    assert door.status(send(door, "status", **OWN_PAGE)) == 403
    assert send(door, "status", KEY) not in door.answers


@behaviour("web:access")
def test_with_tokens_a_page_without_one_may_not_read() -> None:
    gate = AccessRules(tokens=TOKENS, knows_owners=True, page_key=hashlib.sha256(KEY.encode()).digest())
    door = DoorCoreRig(gate=gate)
    assert door.status(send(door, "status", **OWN_PAGE)) == 401
    assert send(door, "status", KEY, **OWN_PAGE) not in door.answers


@behaviour("web:access")
def test_the_key_of_the_page_is_no_agents() -> None:
    door = DoorCoreRig(gate=KEYED)
    x = door.post(request(1, "initialize"), "/mcp", authorization=f"Bearer {KEY}")
    assert door.status(x) == 403
    named = AccessRules(tokens={"carpool web": hash_of("t")}, page_key=b"k" * 32, needs_token=True)
    assert named.principal("Bearer t") is None, "no token has the name of the page"


@behaviour("web:access")
def test_logs_need_the_full_right() -> None:
    door = rig()
    x = send(door, "logs?log=server-a", "reader")
    assert door.status(x) == 403
    x = send(door, "logs?log=server-a&lines=99999", "full")
    (wanted,) = door.logs
    assert (wanted.x, wanted.log, wanted.count) == (x, "server-a", 500)
    door.take(door.core.log_read(x, LogsFound(["server-a"], [{"at": "t", "message": "y" * 9000}])))
    assert door.body(x)["logs"] == ["server-a"]
    (line,) = door.body(x)["lines"]
    assert len(line["message"]) == 4000
    x = send(door, "logs?log=..%2Fsecret", "full")
    door.take(door.core.log_read(x, LogsFound(["server-a"], None)))
    assert door.status(x) == 404
    x = send(door, "logs", "full")
    assert door.logs[-1].log == "", "only the names are wanted"
    door.take(door.core.log_read_failed(x))
    assert door.status(x) == 503
    keyless = DoorCoreRig(gate=KEYED)
    assert keyless.status(send(keyless, "logs?log=broker", **OWN_PAGE)) == 403


def test_tools_are_listed_without_definitions_until_one_is_named() -> None:
    door = rig()
    found = {"tools": [{"name": "a__x", "definition": {"inputSchema": {}}}]}
    x = send(door, "tools", "reader")
    s, message, exchange = asked(door)
    assert message["params"] == {"name": None, "offline": True}
    door.answer(s, exchange, 1, **found)
    assert door.body(x)["tools"] == [{"name": "a__x", "definition": None}]
    x = send(door, "tools?name=a__x", "reader")
    s, message, exchange = door.heard()
    assert message["params"]["name"] == "a__x"
    door.answer(s, exchange, 1, **found)
    assert door.body(x) == found


def test_a_story_is_told_in_words() -> None:
    door = rig()
    x = send(door, "story?call=c7", "reader")
    s, _, exchange = asked(door)
    arrived = {"at": 2.0, "event": {"type": "CallRequested", "session": "s2"}, "effects": []}
    door.answer(s, exchange, 1, call="c7", run="", broker=[arrived], supervisor=[], pids={}, nodes={})
    assert door.body(x)["steps"] == [{"at": 2.0, "where": "broker", "text": "came from s2"}]
    assert (door.body(x)["nodes"], door.node_questions) == ([], [])


@behaviour("operate:http", "cluster:story")
def test_a_story_has_what_other_nodes_tell_in_the_form_of_the_verb() -> None:
    door = rig()
    x = send(door, "story?call=c7", "reader")
    s, _, exchange = asked(door)
    handed = {"type": "WriteCall", "call": {"call": 7}, "instance": 3, "wire": 9}
    ended = {"type": "CallAnswered", "call": 7, "is_error": False}
    supervisor = [
        {"at": at, "event": {"type": "Call"}, "effects": [effect]}
        for at, effect in ((2.0, handed), (4.0, ended))
    ]
    nodes = {"3": {"node": "alpha", "session": 5}}
    door.answer(s, exchange, 1, call="c7", run="", broker=[], supervisor=supervisor, pids={}, nodes=nodes)
    (question,) = door.node_questions
    assert question.crossings == [Crossing("alpha", 5, 9, 2.0, 4.0)]
    assert x not in door.answers
    told = node_story(question.crossings[0], "c40", [StoryStep(3.0, "broker", "came from s1")])
    door.take(door.core.nodes_told(question, [told]))
    shown = door.body(x)
    assert [(step["at"], step["where"]) for step in shown["steps"]] == [
        (2.0, "supervisor"), (3.0, "alpha broker"), (4.0, "supervisor"),
    ]  # fmt: skip
    assert shown["nodes"] == [
        {"node": "alpha", "session": 5, "wire": 9, "call": "c40", "ahead_s": 0.0, "refused": "",
         "steps": [{"at": 3.0, "where": "alpha broker", "text": "came from s1"}]}
    ]  # fmt: skip


@behaviour("operate:http")
def test_the_status_has_the_cluster_of_which_the_broker_does_not_know() -> None:
    door = rig()
    for cluster in (None, CLUSTER):
        door.core.set_cluster(cluster)
        x = send(door, "status", "reader")
        s, _, exchange = asked(door) if cluster is None else door.heard()
        door.answer(s, exchange, 1, healthy=True)
        assert door.body(x) == {"healthy": True, "cluster": cluster}


def questions(door: DoorCoreRig) -> list[tuple[int, dict[str, Any], int]]:
    """What the broker has been asked since the last look."""
    found = [(s, message, x) for s, message, x in door.told if isinstance(message, dict)]
    door.told.clear()
    return found


@behaviour("http:questions-once")
@pytest.mark.parametrize("verb", [each for each in READS if each not in {"logs", "why", "story"}])
def test_the_broker_is_asked_once_for_all_who_read_the_same_and_hang_up_or_wait(verb: str) -> None:
    door = rig()
    for _ in range(100):
        door.gone(send(door, verb, "reader"))
    waiting = [send(door, verb, "reader") for _ in range(2)]
    other = send(door, verb, "full")
    (s, _, exchange), (others_s, _, _) = questions(door)
    assert s != others_s, "each operator asks for itself"
    door.answer(s, exchange, 1, tools=[])
    assert [door.status(x) for x in waiting] == [200, 200]
    assert door.body(waiting[0]) == door.body(waiting[1])
    assert other not in door.answers
    send(door, verb, "reader")
    assert len(questions(door)) == 1, "what was read before is not given again"


@behaviour("http:questions-once")
def test_other_parameters_are_another_question() -> None:
    door = rig()
    for query in ("after=1", "after=2", "after=1"):
        send(door, f"recent_calls?{query}", "reader")
    assert [message["params"] for _, message, _ in questions(door)] == [{"after": 1}, {"after": 2}]


@behaviour("http:questions-once")
def test_a_read_after_an_act_is_not_answered_from_before_the_act() -> None:
    door = rig()
    early, act = send(door, "status", "full"), send(door, "pause", "full")
    reading, acting = questions(door)
    joined = send(door, "status", "full")
    assert questions(door) == []
    door.answer(acting[0], acting[2], 1, ok=True)
    assert door.status(act) == 200
    late = send(door, "status", "full")
    (again,) = questions(door)
    door.answer(reading[0], reading[2], 1, healthy=False)
    assert [x in door.answers for x in (early, joined, late)] == [True, True, False]
    door.answer(again[0], again[2], 1, healthy=True)
    assert door.body(late)["healthy"] is True


@behaviour("http:questions-bounded")
def test_an_operator_has_a_bounded_number_of_questions_open_also_of_those_that_have_hung_up() -> None:
    door = rig()
    for number in range(MAX_QUESTIONS):
        door.gone(send(door, f"recent_calls?after={number}", "reader"))
    opened = questions(door)
    assert len(opened) == MAX_QUESTIONS
    refused = send(door, "status", "reader")
    assert (door.status(refused), door.header(refused, "Retry-After")) == (429, "1")
    assert f"{MAX_QUESTIONS} requests of this operator" in door.body(refused)["error"]["message"]
    assert send(door, "status", "full") not in door.answers, "others have their own"
    s, _, exchange = opened[0]
    door.answer(s, exchange, 1, calls=[])
    assert send(door, "status", "reader") not in door.answers


@behaviour("http:questions-bounded")
def test_acts_are_asked_each_and_count_until_they_are_done() -> None:
    door = rig()
    acting = [send(door, "restart", "full") for _ in range(MAX_QUESTIONS)]
    assert len(questions(door)) == MAX_QUESTIONS
    for x in acting:
        door.gone(x)
    assert door.status(send(door, "restart", "full")) == 429
    assert door.status(send(door, "logs", "full")) == 429
    door.wait(ACT_S)
    assert send(door, "restart", "full") not in door.answers


@behaviour("http:questions-once")
def test_a_log_is_read_once_for_all_who_want_the_same_lines() -> None:
    door = rig()
    first, second = (send(door, "logs?log=server-a", "full") for _ in range(2))
    other = send(door, "logs?log=server-b", "full")
    door.gone(first)
    assert [each.log for each in door.logs] == ["server-a", "server-b"]
    door.take(door.core.log_read(first, LogsFound(["server-a"], [])))
    assert door.body(second) == {"logs": ["server-a"], "lines": []}
    assert other not in door.answers


@behaviour("http:questions-once")
def test_other_nodes_are_asked_once_for_all_who_want_the_same_story() -> None:
    door = rig()
    gone, first, second = (send(door, "story?call=c7", "reader") for _ in range(3))
    ((s, _, exchange),) = questions(door)
    door.gone(gone)
    handed = {"type": "WriteCall", "call": {"call": 7}, "instance": 3, "wire": 9}
    supervisor = [{"at": 2.0, "event": {"type": "Call"}, "effects": [handed]}]
    nodes = {"3": {"node": "alpha", "session": 5}}
    door.answer(s, exchange, 1, call="c7", run="", broker=[], supervisor=supervisor, pids={}, nodes=nodes)
    (question,) = door.node_questions
    assert question.x == first, "the shell answers nobody who has gone"
    door.gone(first)
    door.take(door.core.nodes_told(question, []))
    assert door.status(second) == 200
    unread = send(door, "story?call=c7", "reader")
    ((s, _, exchange),) = questions(door)
    door.gone(unread)
    door.answer(s, exchange, 1, call="c7", run="", broker=[], supervisor=supervisor, pids={}, nodes=nodes)
    assert len(door.node_questions) == 1, "nobody waits for it any more"
