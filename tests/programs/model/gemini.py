"""The wire form of Gemini's `generateContent`.

Knows nothing of: scripts, other APIs, sockets.
"""

import json
from collections.abc import Iterator, Set
from itertools import takewhile
from typing import Any, Final

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

_USAGE: Final = {"promptTokenCount": 10, "candidatesTokenCount": 10, "totalTokenCount": 20}


class Gemini:
    """`POST /v1beta/models/MODEL:generateContent` and `:streamGenerateContent`."""

    def read(self, body: Json, issued: Set[str]) -> RequestReading:
        contents = body.get("contents", [])
        system = body.get("systemInstruction") or {}
        return RequestReading(
            tools=tuple(
                OfferedTool(
                    declared["name"],
                    declared.get("description", ""),
                    declared.get("parametersJsonSchema") or declared.get("parameters") or {},
                )
                for tool in body.get("tools") or ()
                for declared in tool.get("functionDeclarations") or ()
            ),
            instructions="\n".join([text_of(system.get("parts")), *_contexts(contents)]),
            results=tuple(_results(contents)) if issued else (),
        )

    def reply(self, path: str, body: Json, answer: Answer) -> ModelReply:
        parts: list[Json] = [{"text": answer.text}] if answer.text else []
        parts += [
            {"functionCall": {"id": call.id, "name": call.tool.name, "args": call.arguments}}
            for call in answer.calls
        ]
        candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}
        whole = {"candidates": [candidate], "usageMetadata": _USAGE, "modelVersion": "scripted"}
        if ":streamGenerateContent" not in path:
            return ModelReply("application/json", (json.dumps(whole).encode(),))
        if "alt=sse" in path:
            return server_sent_events([whole])
        return ModelReply("application/json", (json.dumps([whole]).encode(),))


def _contexts(contents: list[Json]) -> Iterator[str]:
    """Gemini CLI gives the instructions of servers in a message of the user."""
    for content in contents:
        text = text_of(content.get("parts"))
        if content.get("role") == "user" and text.startswith("<session_context>"):
            yield text


def _results(contents: list[Json]) -> Iterator[ToolResult]:
    """Read what follows the last answer of the model; an image may stand in a part after its result."""
    latest = list(takewhile(lambda content: content.get("role") != "model", reversed(contents)))[::-1]
    parts = [part for content in latest for part in content.get("parts") or ()]
    for at, part in enumerate(parts):
        if not (result := part.get("functionResponse")):
            continue
        following = takewhile(lambda later: "functionResponse" not in later, parts[at + 1 :])
        response = result.get("response") or {}
        yield ToolResult(
            id=result.get("id") or result["name"],
            text=_text(response),
            is_error="error" in response,
            images=each_image([result, *following], _is_image),
            raw=part,
        )


def _text(response: Json) -> str:
    """`{"output": "text"}` and `{"error": "text"}` are the text, anything else is JSON."""
    value: Any = next(iter(response.values())) if len(response) == 1 else response
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _is_image(part: Json) -> bool:
    data = part.get("inlineData")
    return isinstance(data, dict) and str(data.get("mimeType")).startswith("image/")
