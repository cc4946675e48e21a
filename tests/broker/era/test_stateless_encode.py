"""The stateless era towards agents: effects in, lines out. The official SDK's models are the oracle."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import methods
from mcp_types.jsonrpc import JSONRPCError, JSONRPCNotification, JSONRPCResponse

from carpool_broker.core.model.effects import (
    AcknowledgeListen,
    AnswerDiscover,
    EndListen,
    ReplyStateless,
    RequiredInput,
    RequireInput,
    SendListChanged,
    SendResourceUpdated,
)
from carpool_broker.era import stateless_encode
from carpool_broker.era.exchange_ids import tag_id
from carpool_broker.era.stateless_decode import LISTS
from carpool_protocol.faults.fault_answers import fault, fault_answer
from carpool_protocol.ids import RawJson, ServerName, SessionId
from tests.behaviours import behaviour

ME = SessionId("s1")
ONE = RawJson(b"1")
VERSION = "2026-07-28"
INFO, SUBSCRIPTION = "io.modelcontextprotocol/serverInfo", "io.modelcontextprotocol/subscriptionId"
CARPOOL = {"name": "carpool", "title": "carpool", "version": "9.9"}
WORDS = stateless_encode.StatelessEncoder("9.9")

BODIES: dict[str, dict[str, Any]] = {
    "tools/call": {"content": [{"type": "text", "text": "_ é"}], "isError": False},
    "prompts/get": {"messages": []},
    "resources/read": {"contents": [{"uri": "u:/", "text": ""}]},
    "completion/complete": {"completion": {"values": []}},
    "tools/list": {"tools": [{"name": "t", "inputSchema": {"type": "object"}, "_meta": {"a": 1}}]},
    "prompts/list": {"prompts": []},
    "resources/list": {"resources": []},
    "resources/templates/list": {"resourceTemplates": [], "nextCursor": "c"},
}
HINTED = {"resources/read", *LISTS}


def raw(value: Any) -> RawJson:
    return RawJson(json.dumps(value).encode())


def result(line: bytes, method: str) -> dict[str, Any]:
    """The result of a line that the SDK takes for an answer to `method`."""
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    message = JSONRPCResponse.model_validate_json(line)
    methods.validate_server_result(method, VERSION, message.result)
    return message.result


def refused(line: bytes) -> dict[str, Any]:
    JSONRPCError.model_validate_json(line)
    return json.loads(line)["error"]  # type: ignore[no-any-return]


def told(line: bytes) -> tuple[str, dict[str, Any]]:
    """Method and params of a notification that the SDK knows."""
    message = JSONRPCNotification.model_validate_json(line)
    assert message.params is not None
    methods.parse_server_notification(message.method, VERSION, message.params)
    return message.method, message.params


def reply(method: str, body: RawJson, **more: Any) -> bytes:
    return WORDS.reply_line(ReplyStateless(ME, ONE, is_error=False, body=body, method=method, **more))


def failure(body: Any, **more: Any) -> dict[str, Any]:
    effect = ReplyStateless(ME, ONE, is_error=True, body=raw(body), method="resources/read", **more)
    return refused(WORDS.reply_line(effect))


# --- answers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", BODIES)
def test_a_result_is_complete_names_carpool_and_keeps_every_byte_of_its_own(method: str) -> None:
    body = raw(BODIES[method])
    line = reply(method, body)
    found = result(line, method)
    hints = {"ttlMs": 0, "cacheScope": "private"} if method in HINTED else {}
    assert found == {**BODIES[method], "resultType": "complete", "_meta": {INFO: CARPOOL}, **hints}
    if method != "resources/read":
        assert body[:-1] in line


@pytest.mark.parametrize("method", sorted(HINTED))
def test_a_result_that_may_be_kept_says_for_how_long_and_for_whom(method: str) -> None:
    found = result(reply(method, raw(BODIES[method]), ttl_ms=30_000, public=True), method)
    assert (found["ttlMs"], found["cacheScope"]) == (30_000, "public")
    assert result(reply(method, raw(BODIES[method]), ttl_ms=-1), method)["ttlMs"] == 0


def test_members_that_only_carpool_may_set_are_removed_from_a_servers_result_even_if_doubled() -> None:
    said = (
        rb'{"resultType":"input_required","contents":[],"ttlMs":-5,"cacheScope":"all","_meta":1,'
        rb'"result\u0054ype":2,"_meta":{"a":1,"%b":{"name":"x"},"b":2}}'
    )
    line = reply("resources/read", RawJson(said % INFO.encode()), ttl_ms=7)
    assert line.count(b'"_meta"') == line.count(b'"resultType"') == line.count(b'"ttlMs"') == 1
    assert result(line, "resources/read") == {
        "contents": [],
        "resultType": "complete",
        "ttlMs": 7,
        "cacheScope": "private",
        "_meta": {"a": 1, "b": 2, INFO: CARPOOL},
    }


def test_the_servers_own_meta_stays_in_a_tools_result() -> None:
    for meta in ({}, {"fastmcp": {"wrap_result": True}}, {"a": 1, INFO: {"name": "x", "version": "1"}}):
        line = reply("tools/call", raw({"_meta": meta, "content": []}))
        assert line.count(INFO.encode()) == line.count(b'"_meta"') == 1
        found = result(line, "tools/call")
        kept = {key: value for key, value in meta.items() if key != INFO}
        assert found == {"content": [], "resultType": "complete", "_meta": {**kept, INFO: CARPOOL}}
    found = result(reply("tools/call", raw({"content": [], "resultType": "task"})), "tools/call")
    assert found["resultType"] == "complete"


def test_a_meta_within_the_content_is_none_of_ours() -> None:
    body = {
        "content": [{"type": "text", "text": '"_meta"', "_meta": {"x": 1}}],
        "structuredContent": {"_meta": 1},
    }
    assert result(reply("tools/call", raw(body)), "tools/call").items() >= body.items()


def test_a_result_that_is_too_complex_to_be_cut_goes_on_whole() -> None:
    body = {**{f"k{n}": n for n in range(1200)}, "content": [], "_meta": {"a": 1}}
    found = result(reply("tools/call", raw(body)), "tools/call")
    assert found["k1199"] == 1199
    assert (found["resultType"], found["_meta"]) == ("complete", {INFO: CARPOOL})


@pytest.mark.parametrize("body", [b"null", b"[]", b'"x"', b"7"])
def test_a_result_that_is_no_object_is_an_error(body: bytes) -> None:
    assert refused(reply("prompts/get", RawJson(body)))["data"]["code"] == "bad_answer"


@pytest.mark.parametrize("slug", ["instance_died", "waiting_line_full"])
def test_a_fault_of_a_tools_call_is_a_complete_result(slug: str) -> None:
    is_error, body = fault_answer(fault(slug), "tools/call")
    assert not is_error
    found = result(reply("tools/call", body), "tools/call")
    assert (found["isError"], found["resultType"]) == (True, "complete")
    assert found["_meta"]["carpool/error"]["code"] == slug
    assert found["_meta"][INFO] == CARPOOL


def test_a_resource_that_is_not_there_is_invalid_params_and_named() -> None:
    lost = {"code": -32002, "message": "m"}
    assert failure(lost, uri="u:/é") == {"code": -32602, "message": "m", "data": {"uri": "u:/é"}}
    assert failure({**lost, "data": 3}, uri="u") == {"code": -32602, "message": "m", "data": {"uri": "u"}}
    assert failure({**lost, "data": {"uri": "theirs", "k": 1}}, uri="u")["data"] == {"uri": "u", "k": 1}
    assert failure({**lost, "data": [1]}) == {"code": -32602, "message": "m", "data": [1]}
    _, ours = fault_answer(fault("unknown_resource"), "resources/read")
    found = failure(json.loads(ours), uri="u")
    assert (found["code"], found["data"]["uri"], found["data"]["code"]) == (-32602, "u", "unknown_resource")


def test_no_error_sends_an_agent_to_urls() -> None:
    error = {"code": -32042, "message": "m", "data": {"elicitations": []}}
    assert failure(error) == {"code": -32603, "message": "m"}


def test_a_read_that_its_server_refuses_as_wrong_names_the_uri_of_the_agent() -> None:
    lost = {"code": -32602, "message": "m"}
    assert failure(lost, uri="u:/é") == {**lost, "data": {"uri": "u:/é"}}
    assert failure({**lost, "data": None}, uri="u") == {**lost, "data": {"uri": "u"}}
    assert failure({**lost, "data": {"uri": "theirs", "x": 1}}, uri="u") == {
        **lost,
        "data": {"x": 1, "uri": "u"},
    }
    assert failure({**lost, "data": "why"}, uri="u") == {**lost, "data": "why"}, "what it says itself stays"
    assert failure(lost) == lost, "of no read"


@pytest.mark.parametrize("code", [-32021, -32601, -32603, 5, -32000])
def test_other_errors_stay_as_they_are(code: int) -> None:
    error = {"code": code, "message": "m", "data": {"uri": "x"}}
    assert failure(error, uri="u") == error


# --- discover --------------------------------------------------------------------------------------------


def test_discover_says_what_is_served() -> None:
    effect = AnswerDiscover(
        ME, ONE, "How to.", ("tools", "tools.listChanged", "resources", "resources.subscribe", "logging"),
        tasks=True, ttl_ms=5, public=True,
    )  # fmt: skip
    assert result(WORDS.discover_line(effect), "server/discover") == {
        "resultType": "complete",
        "supportedVersions": [VERSION],
        "capabilities": {
            "tools": {"listChanged": True},
            "resources": {"subscribe": True},
            "logging": {},
            "extensions": {"io.modelcontextprotocol/tasks": {}},
        },
        "instructions": "How to.",
        "ttlMs": 5,
        "cacheScope": "public",
        "_meta": {INFO: CARPOOL},
    }
    nothing = result(WORDS.discover_line(AnswerDiscover(ME, ONE, "", ())), "server/discover")
    assert nothing["capabilities"] == {}
    assert "instructions" not in nothing


# --- input -----------------------------------------------------------------------------------------------


@behaviour("asks:named")
def test_a_required_elicitation_that_cannot_be_named_is_replaced_by_a_form_that_names_the_server() -> None:
    crowded = raw({"message": "Token?"} | {f"m{n}": 0 for n in range(1001)})
    wanted = (RequiredInput("a", "elicitation/create", crowded, ServerName("weather")),)
    found = result(
        WORDS.input_required_line(RequireInput(ME, tag_id(3, ONE), wanted, "7.1.ab")), "tools/call"
    )
    params = found["inputRequests"]["a"]["params"]
    assert params["message"].startswith("[weather] ")
    assert "Token?" not in str(params)


def test_a_required_input_has_its_key_and_neither_meta_nor_id() -> None:
    form = {"message": "m", "requestedSchema": {"type": "object", "properties": {}}, "_meta": {"k": 1}}
    url = {"mode": "url", "message": "m", "url": "https://e/", "elicitationId": "e"}
    sampling = {"messages": [], "maxTokens": 5, "_meta": None}
    wanted = (
        RequiredInput('a"é', "elicitation/create", raw(form)),
        RequiredInput("b", "elicitation/create", raw(url)),
        RequiredInput("c", "sampling/createMessage", raw(sampling)),
        RequiredInput("d", "roots/list", RawJson(b"")),
        RequiredInput("e", "roots/list", raw({"_meta": {}})),
    )
    found = result(
        WORDS.input_required_line(RequireInput(ME, tag_id(3, ONE), wanted, "7.1.ab")), "tools/call"
    )
    assert found == {
        "resultType": "input_required",
        "requestState": "7.1.ab",
        "inputRequests": {
            'a"é': {
                "method": "elicitation/create",
                "params": {"message": "m", "requestedSchema": form["requestedSchema"]},
            },
            "b": {
                "method": "elicitation/create",
                "params": {"mode": "url", "message": "m", "url": "https://e/"},
            },
            "c": {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 5}},
            "d": {"method": "roots/list"},
            "e": {"method": "roots/list"},
        },
        "_meta": {INFO: CARPOOL},
    }


# --- listens ---------------------------------------------------------------------------------------------

_LISTENS = pytest.mark.parametrize(
    ("request_id", "said"), [(ONE, 1), (RawJson(b'"l"'), "l"), (tag_id(4, RawJson(b'"l"')), "l")]
)


@_LISTENS
def test_every_line_of_a_listen_names_it_as_its_agent_does(request_id: RawJson, said: Any) -> None:
    mine = {SUBSCRIPTION: said}
    acknowledged = stateless_encode.acknowledged_line(
        AcknowledgeListen(ME, request_id, ("tools", "resources"), ("a:/é",))
    )
    assert told(acknowledged) == (
        "notifications/subscriptions/acknowledged",
        {
            "_meta": mine,
            "notifications": {
                "toolsListChanged": True,
                "resourcesListChanged": True,
                "resourceSubscriptions": ["a:/é"],
            },
        },
    )
    for family in ("tools", "prompts", "resources"):
        changed = stateless_encode.list_changed_line(SendListChanged(ME, family, request_id))
        assert told(changed) == (f"notifications/{family}/list_changed", {"_meta": mine})
    params = raw({"uri": "theirs", "title": "t", "_meta": {SUBSCRIPTION: 99, "k": 1}})
    updated = stateless_encode.resource_updated_line(SendResourceUpdated(ME, "ours:/é", params, request_id))
    assert told(updated) == (
        "notifications/resources/updated",
        {"uri": "ours:/é", "title": "t", "_meta": {"k": 1, **mine}},
    )


def test_an_acknowledgement_says_only_what_it_honours() -> None:
    _, params = told(stateless_encode.acknowledged_line(AcknowledgeListen(ME, ONE, (), ())))
    assert params["notifications"] == {}


@_LISTENS
def test_a_listen_ends_with_its_answer_which_is_cancelled_before_where_streams_are_one(
    request_id: RawJson, said: Any
) -> None:
    *before, last = WORDS.listen_end_line(EndListen(ME, request_id))
    assert result(last, "subscriptions/listen") == {
        "resultType": "complete",
        "_meta": {SUBSCRIPTION: said, INFO: CARPOOL},
    }
    if request_id.startswith(b"@"):
        assert not before
    else:
        assert [told(line) for line in before] == [("notifications/cancelled", {"requestId": said})]


# --- any body --------------------------------------------------------------------------------------------

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)
_names = st.text(max_size=3) | st.sampled_from(["_meta", "resultType", "ttlMs", "cacheScope", "uri", INFO])
_ids = st.sampled_from([b"1", b'"1"', b"1.0", rb'"\u0031"', b'"@1 2"'])


@given(
    st.sampled_from(sorted({"tools/call", "prompts/get", "resources/read", "completion/complete"})),
    st.lists(st.tuples(_names, _json | st.dictionaries(_names, _json, max_size=2)), max_size=4),
    st.sampled_from([b"", b" ", b"  "]),
    _ids,
    st.integers(0, 3),
)
def test_any_object_becomes_one_result_with_what_it_must_have(
    method: str, pairs: list[tuple[str, Any]], blank: bytes, raw_id: bytes, exchange: int
) -> None:
    inner = b",".join(raw(name) + b":" + raw(value) for name, value in pairs)
    body = RawJson(b"{%b%b%b}" % (blank, inner, blank))
    request = tag_id(exchange, RawJson(raw_id)) if exchange else RawJson(raw_id)
    line = WORDS.reply_line(ReplyStateless(ME, request, is_error=False, body=body, method=method))
    assert line.startswith(b'{"jsonrpc":"2.0","id":%b,"result":{' % raw_id)
    members = dict(json.loads(line, object_pairs_hook=list))["result"]
    assert [name for name, _ in members].count("resultType") == 1
    found = json.loads(line)["result"]
    assert found["resultType"] == "complete"
    assert found["_meta"][INFO] == CARPOOL
    before = dict(pairs)
    ours = {"resultType", "_meta"} | ({"ttlMs", "cacheScope"} if method == "resources/read" else set())
    assert {k: v for k, v in found.items() if k not in ours} == {
        k: v for k, v in before.items() if k not in ours
    }
    theirs = before.get("_meta")
    if isinstance(theirs, dict):
        assert found["_meta"] == {**theirs, INFO: CARPOOL}


@given(
    st.dictionaries(_names | st.sampled_from(["code", "data", "message"]), _json, max_size=4),
    st.text(max_size=3),
)
def test_any_error_object_becomes_an_error(body: dict[str, Any], uri: str) -> None:
    for code in (-32002, -32042, 1):
        error = {**body, "code": code}
        line = WORDS.reply_line(ReplyStateless(ME, ONE, is_error=True, body=raw(error), method="x", uri=uri))
        assert json.loads(line)["error"]["code"] == {-32002: -32602, -32042: -32603, 1: 1}[code]
