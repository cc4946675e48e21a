"""What goes with each message through the bridge, and which answers of the SDK become faults."""

import json
from typing import Any

import msgspec
import pytest
from mcp_types.jsonrpc import JSONRPCError, JSONRPCMessage, jsonrpc_message_adapter

from carpool.bridge.session import BridgeSession
from carpool_protocol.ids import RawJson
from carpool_protocol.wire.result_repair import slug_in
from tests.behaviours import behaviour
from tests.kit.line_agent import Json, fault_of

META = {"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}}


def message(**fields: Any) -> JSONRPCMessage:
    return jsonrpc_message_adapter.validate_python({"jsonrpc": "2.0", **fields})


def back(talk: BridgeSession, **fields: Any) -> Json:
    found: Json = msgspec.json.decode(talk.line_for_supervisor(message(**fields)))
    return found


@pytest.fixture
def talk() -> BridgeSession:
    return BridgeSession("far", "h.example")


@behaviour("remote:handshake")
@pytest.mark.parametrize(
    ("version", "headers"),
    [("2025-11-25", {"mcp-protocol-version": "2025-11-25"}), ("2025-03-26", None)],
)
def test_the_version_of_the_handshake_goes_with_all_that_follows(
    talk: BridgeSession, version: str, headers: dict[str, str] | None
) -> None:
    assert talk.headers_for(message(id=1, method="initialize", params={})) is None
    back(talk, id=1, result={"protocolVersion": version})
    assert talk.headers_for(message(method="notifications/initialized")) == headers
    assert talk.headers_for(message(id=2, method="tools/list")) == headers
    assert talk.headers_for(message(id="their-ask", result={"action": "accept"})) == headers
    assert talk.open == {2: "tools/list"}


@behaviour("remote:stateless")
@pytest.mark.parametrize(
    ("method", "params", "name"),
    [
        ("tools/list", {}, None),
        ("tools/call", {"name": "a b"}, "a b"),
        ("tools/call", {"name": "ä"}, "=?base64?w6Q=?="),
        ("resources/read", {"uri": "x://y"}, "x://y"),
        ("prompts/get", {"name": "p"}, "p"),
        ("tasks/get", {"taskId": "t"}, "t"),
    ],
)
def test_a_request_of_the_stateless_era_is_named_in_its_headers(
    talk: BridgeSession, method: str, params: Json, name: str | None
) -> None:
    headers = talk.headers_for(message(id=1, method=method, params={**params, **META}))
    wanted = {"mcp-protocol-version": "2026-07-28", "mcp-method": method}
    assert headers == (wanted if name is None else {**wanted, "mcp-name": name})


@behaviour("remote:stateless")
def test_arguments_are_mirrored_into_headers_where_the_schema_wants_it(talk: BridgeSession) -> None:
    talk.headers_for(message(id=1, method="tools/list", params=META))
    region: Json = {"type": "string", "x-mcp-header": "Region"}
    good = {"name": "good", "vendor": 1, "inputSchema": {"type": "object", "properties": {"region": region}}}
    bad = {"name": "bad", "inputSchema": {"type": "object", "x-mcp-header": "Everything"}}
    listed = back(talk, id=1, result={"tools": [good, bad], "ttlMs": 5})
    assert listed["result"] == {"tools": [good], "ttlMs": 5}, "a wrong annotation hides its tool"
    call: Json = {"name": "good", "arguments": {"region": "eu", "other": 1}}
    headers = talk.headers_for(message(id=2, method="tools/call", params={**call, **META}))
    assert headers is not None
    assert {name.lower(): value for name, value in headers.items()}["mcp-param-region"] == "eu"


def test_tools_of_the_handshake_era_are_not_judged(talk: BridgeSession) -> None:
    talk.headers_for(message(id=1, method="tools/list"))
    tools = [{"name": "x", "inputSchema": {"x-mcp-header": 1}}]
    assert back(talk, id=1, result={"tools": tools})["result"] == {"tools": tools}


@behaviour("remote:failures")
@pytest.mark.parametrize(
    ("code", "text", "slug", "delivered"),
    [
        (-32000, "SSE stream ended without a response", "lost", "maybe"),
        (
            -32000,
            "SSE stream failed: Server-sent event exceeded the 9 byte limit.",
            "answer_too_large",
            "maybe",
        ),
        (-32000, "SSE stream failed: secrets", "bad_answer", "maybe"),
        (-32700, "Failed to parse JSON response: secrets", "bad_answer", "maybe"),
    ],
)
def test_what_the_sdk_says_of_a_broken_stream_is_a_fault(
    talk: BridgeSession, code: int, text: str, slug: str, delivered: str
) -> None:
    talk.headers_for(message(id=1, method="tools/call", params={"name": "x"}))
    answer = back(talk, id=1, error={"code": code, "message": text})
    fault = fault_of(answer["result"])
    assert (fault["code"], fault["delivered"]) == (slug, delivered)
    assert "secrets" not in str(answer)


@behaviour("remote:failures")
@pytest.mark.parametrize(
    ("code", "text", "what"),
    [
        (-32600, "Unexpected content type: text/html; charset=utf-8", "a web page"),
        (-32600, "Unexpected content type: image/png", "something"),
        (-32700, "Failed to parse JSON response: secrets", "something"),
    ],
)
def test_a_host_that_speaks_no_mcp_is_named_and_its_url_doubted(
    talk: BridgeSession, code: int, text: str, what: str
) -> None:
    talk.headers_for(message(id=1, method="initialize", params={}))
    assert back(talk, id=1, error={"code": code, "message": text})["error"]["message"] == (
        f"h.example answered with {what} that is no message of MCP: is this the right `url`?"
    )


@behaviour("remote:listening")
def test_a_listen_whose_stream_breaks_has_ended_and_was_not_refused(talk: BridgeSession) -> None:
    talk.headers_for(message(id=1, method="subscriptions/listen", params={}))
    broken = {"code": -32000, "message": "SSE stream ended without a response"}
    assert back(talk, id=1, error=broken)["result"] == {"resultType": "complete"}
    talk.headers_for(message(id=2, method="subscriptions/listen", params={}))
    refused = {"code": -32601, "message": "Method not found"}
    assert back(talk, id=2, error=refused)["error"] == refused


def test_a_servers_own_error_passes(talk: BridgeSession) -> None:
    talk.headers_for(message(id=1, method="tools/call", params={"name": "x"}))
    error = {"code": -32000, "message": "Sorry", "data": {"kept": True}}
    assert back(talk, id=1, error=error)["error"] == error


@behaviour("remote:cancelled")
def test_that_a_cancelled_request_was_given_up_is_told_to_nobody(talk: BridgeSession) -> None:
    given_up = JSONRPCError.model_validate(
        {"jsonrpc": "2.0", "id": 1, "error": {"code": -32800, "message": "given up"}}
    )
    talk.headers_for(message(id=1, method="tools/call", params={"name": "x"}))
    assert talk.line_for_supervisor(given_up) != b"", "a server's own"
    talk.headers_for(message(id=1, method="tools/call", params={"name": "x"}))
    talk.expect_own_answer(1)
    assert talk.line_for_supervisor(given_up) == b""
    assert talk.open == {}


MARK = {"code": "unavailable", "delivered": "no"}


@behaviour("remote:its-word")
def test_only_the_bridge_says_in_carpools_name_what_became_of_a_call(talk: BridgeSession) -> None:
    def answered(**answer: Any) -> Any:
        talk.headers_for(message(id=1, method="tools/call", params={"name": "x"}))
        return back(talk, id=1, **answer)

    def marked() -> Any:
        return {"content": [], "_meta": {"carpool/error": MARK, "own": 1}}

    said = answered(result=marked())["result"]["_meta"]
    assert said == {"own": 1, "carpool/of_server": MARK}
    said = answered(error={"code": 5400, "message": "m", "data": MARK})["error"]
    assert said == {"code": 5400, "message": "m", "data": {"carpool/of_server": MARK}}
    elsewhere = {"code": "state_lost", "x": {"delivered": "no"}}
    said = answered(error={"code": -32000, "message": "m", "data": elsewhere})["error"]
    assert slug_in(RawJson(json.dumps(said).encode()), is_error=True) == ""
    talk.expect_own_answer(1)
    assert answered(result=marked())["result"] == marked()
    assert answered(result=marked())["result"] != marked(), "that was said of one answer"
