"""Lines of a module's wire: all that comes is read or answered, all that goes is written."""

import io
import json
from typing import Any

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp_types.jsonrpc import JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from carpool.pymodule.messages import line_of, message_of, messages, unreadable
from tests.behaviours import behaviour


def request(arguments: str) -> str:
    return f'{{"jsonrpc":"2.0","id":"a7","method":"tools/call","params":{{"arguments":{arguments}}}}}'


def test_half_a_surrogate_pair_in_a_request_is_a_question_mark() -> None:
    message = message_of(request(r'{"\udc00": "cut \ud83d", "whole": "\ud83d\ude00"}'))
    assert isinstance(message, JSONRPCRequest)
    assert message.params == {"arguments": {"?": "cut ?", "whole": "\U0001f600"}}


def test_half_a_surrogate_pair_in_an_answer_is_a_question_mark() -> None:
    answer = JSONRPCResponse(jsonrpc="2.0", id=3, result={"text": "caf\udce9", "more": ["é"]})
    assert json.loads(line_of(answer)) == {
        "jsonrpc": "2.0",
        "id": 3,
        "result": {"text": "caf?", "more": ["é"]},
    }


def test_an_answer_that_cannot_be_written_is_an_error_and_a_notification_is_nothing() -> None:
    answer = json.loads(line_of(JSONRPCResponse(jsonrpc="2.0", id="x", result={"it": object()})))
    assert (answer["id"], answer["error"]["code"]) == ("x", -32603)
    assert line_of(JSONRPCNotification(jsonrpc="2.0", method="n", params={"it": object()})) == ""


@pytest.mark.parametrize("arguments", ["9" * 5000, "[" * 3000 + "]" * 3000], ids=["digits", "levels"])
def test_a_request_that_python_cannot_read_is_answered(arguments: str) -> None:
    line = request(arguments)
    with pytest.raises((ValueError, RecursionError)) as caught:
        message_of(line)
    answer = json.loads(unreadable(line, caught.value))
    assert (answer["id"], answer["error"]["code"]) == ("a7", -32602)
    assert "9" not in answer["error"]["message"]


@pytest.mark.parametrize("line", ["nonsense", '{"id":1,"result":[[', '{"method":"x","params":9]', "[]"])
def test_what_is_no_request_is_not_answered(line: str) -> None:
    assert unreadable(line, ValueError()) == ""


@behaviour("python:failures")
def test_lines_are_served_in_turn_past_one_that_cannot_be_read() -> None:
    came = [request(r'{"n": "\ud800"}'), request("9" * 5000), "nonsense", request('{"n": 2}')]
    sink = io.StringIO()

    async def run() -> list[Any]:
        source = anyio.wrap_file(io.StringIO("".join(f"{line}\n" for line in came)))
        async with messages(source, anyio.wrap_file(sink)) as (incoming, outgoing), incoming, outgoing:
            seen = [each.message async for each in incoming]
            await outgoing.send(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=1, result={"a": "\udcff"})))
        return seen

    seen = anyio.run(run)
    assert [each.params["arguments"]["n"] for each in seen] == ["?", 2]
    refused, answered = (json.loads(line) for line in sink.getvalue().splitlines())
    assert refused["error"]["code"] == -32602
    assert answered["result"] == {"a": "?"}
