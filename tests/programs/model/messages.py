"""The wire form of Anthropic's messages.

Knows nothing of: scripts, other APIs, sockets.
"""

import json
from collections.abc import Iterator, Set
from typing import Final

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

_USAGE: Final = {
    "input_tokens": 10,
    "output_tokens": 10,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
}


class Messages:
    """`POST /v1/messages`."""

    def read(self, body: Json, issued: Set[str]) -> RequestReading:
        messages = body.get("messages", [])
        system = [
            text_of(body.get("system")),
            *(text_of(message["content"]) for message in messages if message["role"] == "system"),
            *(text for text in _user_texts(messages) if text.lstrip().startswith("<system-reminder>")),
        ]
        return RequestReading(
            tools=tuple(
                OfferedTool(tool["name"], tool.get("description", ""), tool.get("input_schema", {}))
                for tool in body.get("tools") or ()
                if tool.get("name")
            ),
            instructions="\n".join(text for text in system if text),
            results=tuple(
                ToolResult(
                    id=block["tool_use_id"],
                    text=text_of(block.get("content")),
                    is_error=bool(block.get("is_error")),
                    images=each_image(block, lambda part: part.get("type") == "image"),
                    raw=block,
                )
                for block in _user_blocks(messages)
                if block.get("type") == "tool_result" and block["tool_use_id"] in issued
            ),
        )

    def reply(self, path: str, body: Json, answer: Answer) -> ModelReply:
        blocks: list[Json] = [{"type": "text", "text": answer.text}] if answer.text else []
        blocks += [
            {"type": "tool_use", "id": call.id, "name": call.tool.name, "input": call.arguments}
            for call in answer.calls
        ]
        message = {
            "id": "msg_scripted",
            "type": "message",
            "role": "assistant",
            "model": body.get("model", "scripted"),
            "content": blocks,
            "stop_reason": "tool_use" if answer.calls else "end_turn",
            "stop_sequence": None,
            "usage": _USAGE,
        }
        if not body.get("stream"):
            return ModelReply("application/json", (json.dumps(message).encode(),))
        events: list[Json] = [
            {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}
        ]
        for at, block in enumerate(blocks):
            events += _block_events(at, block)
        delta = {"stop_reason": message["stop_reason"], "stop_sequence": None}
        events += [
            {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 10}},
            {"type": "message_stop"},
        ]
        return server_sent_events(events, named=True)


def _block_events(at: int, block: Json) -> list[Json]:
    if block["type"] == "text":
        begun, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
    else:
        begun = {**block, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    return [
        {"type": "content_block_start", "index": at, "content_block": begun},
        {"type": "content_block_delta", "index": at, "delta": delta},
        {"type": "content_block_stop", "index": at},
    ]


def _user_blocks(messages: list[Json]) -> Iterator[Json]:
    for message in messages:
        if message["role"] == "user" and not isinstance(message["content"], str):
            yield from message["content"]


def _user_texts(messages: list[Json]) -> Iterator[str]:
    for message in messages:
        if message["role"] == "user" and isinstance(message["content"], str):
            yield message["content"]
    yield from (block["text"] for block in _user_blocks(messages) if block.get("type") == "text")
