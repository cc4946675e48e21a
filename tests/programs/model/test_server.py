"""The scripted model answers each API as its programs read it, and records what they send."""

import gzip
import http.client
import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from tests.programs.model.requests import OfferedTool, offered_name
from tests.programs.model.server import ScriptedModel
from tests.programs.script import Json, ScriptedCall, Turn, turn

SCHEMA: Final = {"type": "object", "properties": {"n": {"type": "integer"}}}
IMAGE: Final = "aGVsbG8="


@dataclass(frozen=True)
class Said:
    """An answer of the model as a program understands it."""

    text: str
    calls: list[tuple[str, str, Json]]
    """Id, name and arguments of each call."""


@dataclass(frozen=True)
class Dialect:
    """A program's side of one API."""

    api: str
    path: str
    stream: Json
    """The fields of a request that ask for a stream."""
    offer: Callable[[list[str]], Json]
    report: Callable[[Said, str], Json]
    """The request after the answer `Said`, in which each call gave this text and an image."""
    understand: Callable[[bytes], Said]


def _lines(body: bytes) -> list[Json]:
    return [
        json.loads(line[6:])
        for line in body.splitlines()
        if line.startswith(b"data: ") and line != b"data: [DONE]"
    ]


def _is_stream(body: bytes) -> bool:
    return body.startswith((b"data:", b"event:"))


def chat_offer(names: list[str]) -> Json:
    tools = [
        {"type": "function", "function": {"name": n, "description": "of " + n, "parameters": SCHEMA}}
        for n in names
    ]
    return {
        "model": "m",
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "go"}],
    } | ({"tools": tools} if names else {})


def chat_report(said: Said, text: str) -> Json:
    calls = [
        {"id": i, "type": "function", "function": {"name": n, "arguments": json.dumps(a)}}
        for i, n, a in said.calls
    ]
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}}
    results = [
        {"role": "tool", "tool_call_id": i, "content": [{"type": "text", "text": text}, image]}
        for i, _, _ in said.calls
    ]
    body = chat_offer(["odd__pid"])
    return {**body, "messages": [*body["messages"], {"role": "assistant", "tool_calls": calls}, *results]}


def chat_understand(body: bytes) -> Said:
    if not _is_stream(body):
        message = json.loads(body)["choices"][0]["message"]
        calls = message.get("tool_calls", [])
        return Said(message["content"] or "", [_chat_call(call) for call in calls])
    assert body.endswith(b"data: [DONE]\n\n")
    deltas = [choice["delta"] for event in _lines(body) for choice in event["choices"]]
    return Said(
        "".join(delta.get("content") or "" for delta in deltas),
        [_chat_call(call) for delta in deltas for call in delta.get("tool_calls", [])],
    )


def _chat_call(call: Json) -> tuple[str, str, Json]:
    return call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])


def responses_offer(names: list[str]) -> Json:
    functions = [
        {"type": "function", "name": n, "description": "of " + n, "parameters": SCHEMA} for n in names
    ]
    return {
        "model": "m",
        "instructions": "be brief",
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]}],
        "tools": functions,
    }


def responses_report(said: Said, text: str) -> Json:
    body = responses_offer(["odd__pid"])
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{IMAGE}"}
    for call_id, name, arguments in said.calls:
        body["input"].append(
            {"type": "function_call", "call_id": call_id, "name": name, "arguments": json.dumps(arguments)}
        )
        output = [{"type": "input_text", "text": text}, image]
        body["input"].append({"type": "function_call_output", "call_id": call_id, "output": output})
    return body


def responses_understand(body: bytes) -> Said:
    if _is_stream(body):
        events = _lines(body)
        assert events[0]["type"] == "response.created"
        assert events[-1]["type"] == "response.completed"
        items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        assert items == events[-1]["response"]["output"]
    else:
        items = json.loads(body)["output"]
    return Said(
        "".join(part["text"] for item in items if item["type"] == "message" for part in item["content"]),
        [
            (item["call_id"], item["name"], json.loads(item["arguments"]))
            for item in items
            if item["type"] == "function_call"
        ],
    )


def messages_offer(names: list[str]) -> Json:
    tools = [{"name": n, "description": "of " + n, "input_schema": SCHEMA} for n in names]
    return {
        "model": "m",
        "max_tokens": 10,
        "system": [{"type": "text", "text": "be brief"}],
        "messages": [{"role": "user", "content": "go"}],
        "tools": tools,
    }


def messages_report(said: Said, text: str) -> Json:
    body = messages_offer(["odd__pid"])
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": IMAGE}}
    uses = [{"type": "tool_use", "id": i, "name": n, "input": a} for i, n, a in said.calls]
    results = [
        {"type": "tool_result", "tool_use_id": i, "content": [{"type": "text", "text": text}, image]}
        for i, _, _ in said.calls
    ]
    body["messages"] += [{"role": "assistant", "content": uses}, {"role": "user", "content": results}]
    return body


def messages_understand(body: bytes) -> Said:
    if not _is_stream(body):
        blocks, reason = json.loads(body)["content"], json.loads(body)["stop_reason"]
    else:
        events = _lines(body)
        assert [events[0]["type"], events[-1]["type"]] == ["message_start", "message_stop"]
        blocks = [event["content_block"] for event in events if event["type"] == "content_block_start"]
        [reason] = [event["delta"]["stop_reason"] for event in events if event["type"] == "message_delta"]
        for event in events:
            if event["type"] != "content_block_delta":
                continue
            block = blocks[event["index"]]
            if event["delta"]["type"] == "text_delta":
                block["text"] += event["delta"]["text"]
            else:
                block["input"] = json.loads(event["delta"]["partial_json"])
    assert (reason == "tool_use") == any(block["type"] == "tool_use" for block in blocks)
    return Said(
        "".join(block["text"] for block in blocks if block["type"] == "text"),
        [(block["id"], block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"],
    )


def gemini_offer(names: list[str]) -> Json:
    declared = [{"name": n, "description": "of " + n, "parametersJsonSchema": SCHEMA} for n in names]
    return {
        "contents": [{"role": "user", "parts": [{"text": "go"}]}],
        "systemInstruction": {"parts": [{"text": "be brief"}]},
        "tools": [{"functionDeclarations": declared}],
    }


def gemini_report(said: Said, text: str) -> Json:
    body = gemini_offer(["odd__pid"])
    calls = [{"functionCall": {"id": i, "name": n, "args": a}} for i, n, a in said.calls]
    results: list[Json] = []
    for call_id, name, _ in said.calls:
        results.append({"functionResponse": {"id": call_id, "name": name, "response": {"output": text}}})
        results.append({"inlineData": {"mimeType": "image/png", "data": IMAGE}})
    body["contents"] += [{"role": "model", "parts": calls}, {"role": "user", "parts": results}]
    return body


def gemini_understand(body: bytes) -> Said:
    answers = _lines(body) if _is_stream(body) else [json.loads(body)]
    parts = [part for answer in answers for part in answer["candidates"][0]["content"]["parts"]]
    calls = [part["functionCall"] for part in parts if "functionCall" in part]
    return Said(
        "".join(part.get("text", "") for part in parts),
        [(call["id"], call["name"], call["args"]) for call in calls],
    )


DIALECTS: Final = [
    Dialect("chat", "/v1/chat/completions", {"stream": True}, chat_offer, chat_report, chat_understand),
    Dialect(
        "responses",
        "/v1/responses",
        {"stream": True},
        responses_offer,
        responses_report,
        responses_understand,
    ),
    Dialect(
        "messages",
        "/v1/messages?beta=true",
        {"stream": True},
        messages_offer,
        messages_report,
        messages_understand,
    ),
    Dialect("gemini", "/v1beta/models/m:generateContent", {}, gemini_offer, gemini_report, gemini_understand),
]
STREAMED_GEMINI: Final = "/v1beta/models/m:streamGenerateContent?alt=sse"
each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.api)
each_form = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


class ModelClient:
    """A program's connection to the model, kept open between requests."""

    def __init__(self, model: ScriptedModel) -> None:
        at = urlsplit(model.url)
        self._connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=10)

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        self._connection.request(method, path, body, headers or {})
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def send(self, dialect: Dialect, body: Json, *, streamed: bool = False) -> Said:
        path = STREAMED_GEMINI if streamed and dialect.api == "gemini" else dialect.path
        whole = {**body, **(dialect.stream if streamed else {})}
        status, answer = self.request("POST", path, json.dumps(whole))
        assert status == 200, answer
        return dialect.understand(answer)

    def close(self) -> None:
        self._connection.close()


def listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


@each_dialect
@each_form
def test_a_program_gets_the_turns_of_the_script_in_order_and_then_done(
    dialect: Dialect, streamed: bool
) -> None:
    script = [
        turn("odd", "pid", n=1),
        Turn(text="well then", calls=(ScriptedCall("odd", "pid"), ScriptedCall("odd", "pid", {"n": 2}))),
    ]
    with ScriptedModel(script, listener()) as model:
        client = ModelClient(model)
        first = client.send(dialect, dialect.offer(["read", "odd__pid"]), streamed=streamed)
        second = client.send(dialect, dialect.report(first, "17"), streamed=streamed)
        third = client.send(dialect, dialect.report(second, "18"), streamed=streamed)
        client.close()
    assert [(name, arguments) for _, name, arguments in first.calls] == [("odd__pid", {"n": 1})]
    assert second.text == "well then"
    assert [(name, arguments) for _, name, arguments in second.calls] == [
        ("odd__pid", {}),
        ("odd__pid", {"n": 2}),
    ]
    assert third == Said("done", [])
    assert [request.api for request in model.turns] == [dialect.api] * 3


@each_dialect
def test_a_request_is_recorded_with_its_tools_instructions_and_results(dialect: Dialect) -> None:
    with ScriptedModel([turn("odd", "pid")], listener()) as model:
        client = ModelClient(model)
        said = client.send(dialect, dialect.offer(["read", "odd__pid"]))
        client.send(dialect, dialect.report(said, "x" * 200_000))
        client.close()
    first, second = model.turns
    assert first.tools == (
        OfferedTool("read", "of read", SCHEMA),
        OfferedTool("odd__pid", "of odd__pid", SCHEMA),
    )
    assert first.instructions.strip() == "be brief"
    assert first.results == ()
    (result,) = second.results
    assert result.id == said.calls[0][0]
    assert result.text == "x" * 200_000
    assert result.images == 1
    assert not result.is_error
    assert first.at <= second.at


@each_dialect
def test_results_are_those_of_the_turn_before_alone(dialect: Dialect) -> None:
    with ScriptedModel([turn("odd", "pid"), Turn(text="a pause"), turn("odd", "pid")], listener()) as model:
        client = ModelClient(model)
        said = client.send(dialect, dialect.offer(["odd__pid"]))
        client.send(dialect, dialect.report(said, "17"))
        client.send(dialect, dialect.report(said, "17"))
        client.close()
    assert [len(request.results) for request in model.turns] == [0, 1, 0]


def test_a_messages_api_and_gemini_say_that_a_call_failed() -> None:
    messages, gemini = DIALECTS[2], DIALECTS[3]
    for dialect in (messages, gemini):
        with ScriptedModel([turn("odd", "pid")], listener()) as model:
            client = ModelClient(model)
            body = dialect.report(client.send(dialect, dialect.offer(["odd__pid"])), "broken")
            if dialect is messages:
                body["messages"][-1]["content"][0]["is_error"] = True
            else:
                body["contents"][-1]["parts"][0]["functionResponse"]["response"] = {"error": "broken"}
            client.send(dialect, body)
            client.close()
        (result,) = model.turns[1].results
        assert result.is_error
        assert result.text == "broken"


@each_dialect
def test_a_tool_that_is_not_offered_is_recorded_and_left_out_of_the_answer(dialect: Dialect) -> None:
    script = [Turn(calls=(ScriptedCall("odd", "slow"), ScriptedCall("odd", "pid"))), turn("odd", "slow")]
    with ScriptedModel(script, listener()) as model:
        client = ModelClient(model)
        first = client.send(dialect, dialect.offer(["odd__pid"]))
        second = client.send(dialect, dialect.report(first, "17"))
        client.close()
    assert [name for _, name, _ in first.calls] == ["odd__pid"]
    assert second == Said("not offered: odd/slow\n", [])
    assert [request.missing for request in model.turns] == [
        (ScriptedCall("odd", "slow"),),
        (ScriptedCall("odd", "slow"),),
    ]


@each_dialect
def test_a_request_without_tools_takes_no_turn_of_the_script(dialect: Dialect) -> None:
    with ScriptedModel([Turn(text="first turn")], listener()) as model:
        client = ModelClient(model)
        title = client.send(dialect, dialect.offer([]))
        first = client.send(dialect, dialect.offer(["odd__pid"]))
        client.close()
    assert (title.text, first.text) == ("ok", "first turn")
    assert len(model.requests) == 2
    assert model.turns == model.requests[1:]


def test_a_hook_before_a_turn_ends_before_the_turn_is_answered() -> None:
    passed: list[str] = []
    script = [Turn(text="one"), Turn(text="two", before=lambda: passed.append("hook"))]
    chat = DIALECTS[0]
    with ScriptedModel(script, listener()) as model:
        client = ModelClient(model)
        passed.append(client.send(chat, chat.offer(["odd__pid"])).text)
        passed.append(client.send(chat, chat.offer(["odd__pid"])).text)
        client.close()
    assert passed == ["one", "hook", "two"]


def test_a_hook_during_a_turn_runs_while_the_program_has_the_answer() -> None:
    answered, ran = threading.Event(), threading.Event()

    def hook() -> None:
        assert answered.wait(10)
        ran.set()

    chat = DIALECTS[0]
    with ScriptedModel([Turn(text="one", during=hook)], listener()) as model:
        client = ModelClient(model)
        assert client.send(chat, chat.offer(["odd__pid"])).text == "one"
        answered.set()
        assert ran.wait(10)
        client.close()


@pytest.mark.parametrize("moment", ["before", "during"])
def test_a_hook_that_fails_ends_the_script_and_fails_the_run(moment: str) -> None:
    def hook() -> None:
        raise LookupError("no such process")

    hooked = Turn(text="one", before=hook) if moment == "before" else Turn(text="one", during=hook)
    chat = DIALECTS[0]
    answers: list[str] = []

    def run() -> None:
        with ScriptedModel([hooked, Turn(text="two")], listener()) as model:
            client = ModelClient(model)
            answers.extend(client.send(chat, chat.offer(["odd__pid"])).text for _ in range(2))
            client.close()

    with pytest.raises(LookupError, match="no such process"):
        run()
    assert moment == "during" or answers[1] == "done"


def test_a_namespace_of_codex_stands_before_the_names_of_its_tools_and_in_the_call() -> None:
    responses = DIALECTS[1]
    body = responses.offer(["shell"])
    inner = {"type": "function", "name": "odd__pid", "parameters": SCHEMA}
    body["tools"].append(
        {"type": "namespace", "name": "mcp__carpool", "description": "about odd", "tools": [inner]}
    )
    with ScriptedModel([turn("odd", "pid")], listener()) as model:
        client = ModelClient(model)
        _, answer = client.request("POST", responses.path, json.dumps(body))
        client.close()
    (item,) = json.loads(answer)["output"]
    assert (item["namespace"], item["name"]) == ("mcp__carpool", "odd__pid")
    assert model.turns[0].tools[1] == OfferedTool("odd__pid", "", SCHEMA, "mcp__carpool")
    assert "about odd" in model.turns[0].instructions


def test_a_name_that_the_script_gives_is_sent_as_it_is() -> None:
    chat = DIALECTS[0]
    with ScriptedModel([Turn(calls=(ScriptedCall("odd", "pid", name="tool_search"),))], listener()) as model:
        client = ModelClient(model)
        said = client.send(chat, chat.offer(["odd__pid"]))
        client.close()
    assert [name for _, name, _ in said.calls] == ["tool_search"]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["mcp__carpool__odd__read-file"], "mcp__carpool__odd__read-file"),
        (["carpool_odd__read_file"], "carpool_odd__read_file"),
        (["odd.read_file"], "odd.read_file"),
        (["read_file"], "read_file"),
        (["read_file", "mcp__odd__read_file"], "mcp__odd__read_file"),
        (["carpool_time_odd__read_file", "carpool_odd__read_file"], "carpool_odd__read_file"),
        (["carpool_odd__read_file_2", "todd__read_file"], None),
    ],
)
def test_a_tool_is_found_whatever_a_program_puts_before_its_name(names: list[str], found: str | None) -> None:
    offered = offered_name(map(OfferedTool, names), "odd", "read-file")
    assert (offered and offered.name) == found


@pytest.mark.parametrize(
    ("dialect", "message"),
    [
        (
            DIALECTS[2],
            {"role": "user", "content": [{"type": "text", "text": "<system-reminder>\nodd wants it"}]},
        ),
        (DIALECTS[3], {"role": "user", "parts": [{"text": "<session_context>\nodd wants it"}]}),
    ],
    ids=["messages", "gemini"],
)
def test_instructions_that_a_program_puts_into_a_message_of_the_user_are_instructions(
    dialect: Dialect, message: Json
) -> None:
    body = dialect.offer(["odd__pid"])
    body["messages" if dialect.api == "messages" else "contents"].insert(0, message)
    with ScriptedModel([], listener()) as model:
        client = ModelClient(model)
        client.send(dialect, body)
        client.close()
    assert "be brief" in model.turns[0].instructions
    assert "odd wants it" in model.turns[0].instructions


def test_a_tool_that_stands_in_the_instructions_alone_is_searched_for_and_then_called() -> None:
    chat = DIALECTS[0]
    listed = chat.offer(["tool_search"])
    listed["messages"][0]["content"] += (
        '\n\n## Deferred Tools\n\nSearch first.\n\n- "mcp__odd__pid": "The \\"id\\"."'
    )
    found = chat.offer(["tool_search", "mcp__odd__pid"])
    found["messages"] = listed["messages"]
    passed: list[str] = []
    script = [
        Turn(calls=(ScriptedCall("odd", "pid", {"n": 1}),), before=lambda: passed.append("hook")),
        Turn(text="well"),
    ]
    with ScriptedModel(script, listener()) as model:
        client = ModelClient(model)
        search = client.send(chat, listed)
        called = client.send(chat, found)
        last = client.send(chat, {**found, "messages": chat.report(called, "17")["messages"]})
        client.close()
    assert [call[1:] for call in search.calls] == [("tool_search", {"query": "select:mcp__odd__pid"})]
    assert [call[1:] for call in called.calls] == [("mcp__odd__pid", {"n": 1})]
    assert last == Said("well", [])
    assert passed == ["hook"]
    assert model.turns == [model.requests[0], model.requests[2]]
    assert model.turns[0].tools[1] == OfferedTool("mcp__odd__pid", 'The "id".', deferred=True)
    assert [result.text for result in model.turns[1].results] == ["17"]


def test_lists_of_models_and_counts_of_tokens_are_answered_and_other_paths_are_refused() -> None:
    with ScriptedModel([], listener()) as model:
        client = ModelClient(model)
        assert json.loads(client.request("GET", "/v1/models")[1])["data"][0]["id"] == "scripted"
        assert json.loads(client.request("GET", "/v1beta/models")[1])["models"]
        assert json.loads(client.request("POST", "/v1/messages/count_tokens", "{}")[1]) == {
            "input_tokens": 10
        }
        assert json.loads(client.request("POST", "/v1beta/models/m:countTokens", "{}")[1]) == {
            "totalTokens": 10
        }
        assert client.request("GET", "/api/me")[0] == 404
        assert client.request("HEAD", "/") == (404, b"")
        client.close()
    assert [request.api for request in model.requests] == ["other"] * 6
    assert model.turns == []


def test_bodies_in_chunks_and_packed_bodies_are_read_and_an_unknown_encoding_is_refused() -> None:
    chat = DIALECTS[0]
    body = json.dumps(chat.offer(["odd__pid"])).encode()
    with ScriptedModel([Turn(text="one"), Turn(text="two")], listener()) as model:
        client = ModelClient(model)
        _, chunked = client.request("POST", chat.path, iter([body[:40], body[40:]]))
        _, packed = client.request("POST", chat.path, gzip.compress(body), {"Content-Encoding": "gzip"})
        refused, _ = client.request("POST", chat.path, body, {"Content-Encoding": "zstd"})
        client.close()
    assert [chat.understand(chunked).text, chat.understand(packed).text, refused] == ["one", "two", 415]


def test_the_end_of_a_run_closes_connections_that_a_program_keeps_open() -> None:
    at = listener()
    before = threading.active_count()
    with ScriptedModel([], at) as model:
        client = ModelClient(model)
        client.request("GET", "/v1/models")
    assert threading.active_count() == before
    assert at.fileno() == -1
    with pytest.raises((ConnectionError, http.client.NotConnected)):
        client.request("GET", "/v1/models")
    client.close()
