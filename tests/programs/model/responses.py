"""The wire form of OpenAI's responses.

Knows nothing of: scripts, other APIs, sockets.
"""

import json
from collections.abc import Iterator, Set
from typing import Any, Final

from tests.programs.model.requests import (
    Answer,
    ModelReply,
    OfferedTool,
    RequestReading,
    ToolCall,
    ToolResult,
    each_image,
    text_of,
)
from tests.programs.model.streams import server_sent_events
from tests.programs.script import Json

_USAGE: Final = {
    "input_tokens": 10,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 10,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 20,
}


class Responses:
    """`POST /v1/responses`."""

    def read(self, body: Json, issued: Set[str]) -> RequestReading:
        given = body.get("input", [])
        items: list[Json] = [] if isinstance(given, str) else given
        tools = body.get("tools") or []
        system = [
            body.get("instructions") or "",
            *(text_of(item.get("content")) for item in items if item.get("role") in ("system", "developer")),
            *(tool.get("description", "") for tool in tools if tool.get("type") == "namespace"),
        ]
        return RequestReading(
            tools=tuple(_tools(tools)),
            instructions="\n".join(text for text in system if text),
            results=tuple(
                ToolResult(
                    id=item["call_id"],
                    text=text_of(item.get("output")),
                    is_error=None,
                    images=each_image(item, lambda part: part.get("type") == "input_image"),
                    raw=item,
                )
                for item in items
                if str(item.get("type")).endswith("_call_output") and item.get("call_id") in issued
            ),
        )

    def reply(self, path: str, body: Json, answer: Answer) -> ModelReply:
        items = list(_items(answer))
        response: dict[str, Any] = {
            "id": "resp_scripted",
            "object": "response",
            "created_at": 0,
            "status": "completed",
            "model": body.get("model", "scripted"),
            "output": items,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "usage": _USAGE,
        }
        if not body.get("stream"):
            return ModelReply("application/json", (json.dumps(response).encode(),))
        begun = {**response, "status": "in_progress", "output": [], "usage": None}
        events: list[Json] = [
            {"type": "response.created", "response": begun},
            {"type": "response.in_progress", "response": begun},
        ]
        for at, item in enumerate(items):
            events += _item_events(at, item)
        events.append({"type": "response.completed", "response": response})
        return server_sent_events(
            ({**event, "sequence_number": number} for number, event in enumerate(events)), named=True
        )


def _tools(tools: list[Json], namespace: str = "") -> Iterator[OfferedTool]:
    for tool in tools:
        if tool.get("type") == "namespace":
            yield from _tools(tool.get("tools", []), tool["name"])
        elif tool.get("name"):
            yield OfferedTool(
                tool["name"], tool.get("description", ""), tool.get("parameters") or {}, namespace
            )


def _items(answer: Answer) -> Iterator[Json]:
    if answer.text:
        content = {"type": "output_text", "text": answer.text, "annotations": []}
        yield {
            "id": "msg_scripted",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [content],
        }
    yield from map(_call_item, answer.calls)


def _call_item(call: ToolCall) -> Json:
    item = {
        "id": f"fc_{call.id}",
        "type": "function_call",
        "status": "completed",
        "call_id": call.id,
        "name": call.tool.name,
        "arguments": json.dumps(call.arguments),
    }
    return item | ({"namespace": call.tool.namespace} if call.tool.namespace else {})


def _item_events(at: int, item: Json) -> list[Json]:
    here = {"output_index": at, "item_id": item["id"]}
    if item["type"] == "message":
        text = item["content"][0]["text"]
        part = {**here, "content_index": 0}
        begun = {**item, "status": "in_progress", "content": []}
        middle: list[Json] = [
            {"type": "response.content_part.added", **part, "part": {**item["content"][0], "text": ""}},
            {"type": "response.output_text.delta", **part, "delta": text, "logprobs": []},
            {"type": "response.output_text.done", **part, "text": text, "logprobs": []},
            {"type": "response.content_part.done", **part, "part": item["content"][0]},
        ]
    else:
        begun = {**item, "status": "in_progress", "arguments": ""}
        middle = [
            {"type": "response.function_call_arguments.delta", **here, "delta": item["arguments"]},
            {
                "type": "response.function_call_arguments.done",
                **here,
                "name": item["name"],
                "arguments": item["arguments"],
            },
        ]
    return [
        {"type": "response.output_item.added", "output_index": at, "item": begun},
        *middle,
        {"type": "response.output_item.done", "output_index": at, "item": item},
    ]
