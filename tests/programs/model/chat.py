"""The wire form of OpenAI's chat completions.

Knows nothing of: scripts, other APIs, sockets.
"""

import json
from collections.abc import Iterator, Set
from itertools import takewhile
from typing import Final

from tests.programs.model.deferred_tools import deferred_tools
from tests.programs.model.requests import (
    Answer,
    ModelReply,
    OfferedTool,
    RequestReading,
    ToolResult,
    each_image,
    text_of,
)
from tests.programs.model.streams import server_sent_events
from tests.programs.script import Json

_USAGE: Final = {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}


class ChatCompletions:
    """`POST /v1/chat/completions`."""

    def read(self, body: Json, issued: Set[str]) -> RequestReading:
        messages = body.get("messages", [])
        offered = [
            OfferedTool(function["name"], function.get("description", ""), function.get("parameters", {}))
            for tool in body.get("tools") or ()
            if (function := tool.get("function"))
        ]
        instructions = "\n".join(
            text_of(message.get("content"))
            for message in messages
            if message["role"] in ("system", "developer")
        )
        return RequestReading(
            tools=(*offered, *deferred_tools(instructions, offered)),
            instructions=instructions,
            results=tuple(_results(messages, issued)),
        )

    def reply(self, path: str, body: Json, answer: Answer) -> ModelReply:
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.tool.name, "arguments": json.dumps(call.arguments)},
            }
            for call in answer.calls
        ]
        reason = "tool_calls" if calls else "stop"
        common = {"id": "chatcmpl-scripted", "created": 0, "model": body.get("model", "scripted")}
        if not body.get("stream"):
            message = {"role": "assistant", "content": answer.text or None} | (
                {"tool_calls": calls} if calls else {}
            )
            choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
            whole = {**common, "object": "chat.completion", "choices": [choice], "usage": _USAGE}
            return ModelReply("application/json", (json.dumps(whole).encode(),))
        deltas: list[Json] = [{"role": "assistant", "content": answer.text}]
        if calls:
            deltas.append({"tool_calls": [{"index": at, **call} for at, call in enumerate(calls)]})
        chunk = {**common, "object": "chat.completion.chunk"}
        events = [
            {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
        ]
        events += [
            {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
            {**chunk, "choices": [], "usage": _USAGE},
        ]
        return server_sent_events(events, end=b"data: [DONE]\n\n")


def _results(messages: list[Json], issued: Set[str]) -> Iterator[ToolResult]:
    """Read what follows the last answer of the model; an image may stand in a message after its result."""
    latest = list(takewhile(lambda message: message["role"] != "assistant", reversed(messages)))[::-1]
    for at, message in enumerate(latest):
        if message["role"] != "tool" or message.get("tool_call_id") not in issued:
            continue
        following = takewhile(lambda later: later["role"] != "tool", latest[at + 1 :])
        yield ToolResult(
            id=message["tool_call_id"],
            text=text_of(message.get("content")),
            is_error=None,
            images=each_image([message, *following], lambda part: part.get("type") == "image_url"),
            raw=message,
        )
