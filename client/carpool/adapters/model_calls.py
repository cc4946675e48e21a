"""The tool calls in what a model wrote, and their results in the shape in which it reads them.

Owns both shapes for each API. Sources: OpenAI API, chat completions (`message.tool_calls`, answered by
messages of the role `tool`) and Responses (`function_call` items, answered by `function_call_output`);
Anthropic Messages API (`tool_use` blocks, answered by `tool_result` blocks of one user message; images as
base64 of four types; an error takes text only; a text is never empty). OpenAI: "the model does not always
generate valid JSON": what cannot be read is a call too, with a `problem` in place of arguments, since both
APIs refuse to go on while a call is without an answer.

A text that says what is wrong never repeats what the model wrote. Knows nothing of: lists of tools, who runs
a call.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, NoReturn

from carpool.adapters.flat import bytes_in, flatten, is_failure

Json = dict[str, Any]
Api = Literal["chat", "responses", "anthropic"]

FAILED: Final = "Error: "
"""Stands before the text of a failure where the API has no flag for it."""
_IMAGES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")


class ModelCall(NamedTuple):
    """One call that a model wants."""

    api: Api
    id: str
    name: str
    """As the model was shown it."""
    arguments: Json
    problem: str = ""
    """What is wrong with it, as a sentence for the model; then it cannot be run."""


def openai_calls(answer: object) -> list[ModelCall]:
    """The calls in an answer of chat completions (its message, or all of it) or of the Responses API.

    Takes JSON or the objects of the `openai` package; of the Responses API also the list `output`. No
    arguments at all are `{}`: so models write a call without any.
    """
    found = _plain(answer)
    if isinstance(found, Mapping):
        choices = _items(found.get("choices"))
        message = choices[0].get("message") if choices else found
        if isinstance(message, Mapping) and "tool_calls" in message:
            return [_chat_call(each) for each in _items(message["tool_calls"]) if _is_function(each)]
        found = found.get("output")
    items = [each for each in _items(found) if each.get("type") == "function_call"]
    return [
        _call("responses", each.get("call_id"), each.get("name"), each.get("arguments")) for each in items
    ]


def anthropic_calls(answer: object) -> list[ModelCall]:
    """The calls in an answer of the Messages API: the message, or the list of its blocks.

    Takes JSON or the objects of the `anthropic` package. Tools that the API runs itself are left out.
    """
    found = _plain(answer)
    blocks = found.get("content") if isinstance(found, Mapping) else found
    used = [each for each in _items(blocks) if each.get("type") == "tool_use"]
    return [_call("anthropic", each.get("id"), each.get("name"), each.get("input")) for each in used]


def answered(call: ModelCall, result: Mapping[str, Any], *, whole: bool = False) -> Json:
    """The result of a tool as the answer to this call: a message, an item or a block, by the call's API.

    Flattened; with `whole` images stay images for the Messages API, which alone takes them here.
    """
    text, failed = flatten(result), is_failure(result)
    if call.api == "anthropic":
        content = (_blocks(result) if whole and not failed else None) or text
        flag = {"is_error": True} if failed else {}
        return {"type": "tool_result", "tool_use_id": call.id, "content": content, **flag}
    said = FAILED + text if failed else text
    if call.api == "responses":
        return {"type": "function_call_output", "call_id": call.id, "output": said}
    return {"role": "tool", "tool_call_id": call.id, "content": said}


def failure(text: str) -> Json:
    """The result of a call that no tool has answered."""
    return {"content": [{"type": "text", "text": text}], "isError": True}


def _chat_call(each: Mapping[str, Any]) -> ModelCall:
    function = each.get("function")
    about: Mapping[str, Any] = function if isinstance(function, Mapping) else {}
    return _call("chat", each.get("id"), about.get("name"), about.get("arguments"))


def _is_function(each: Mapping[str, Any]) -> bool:
    return each.get("type") in (None, "function")


def _call(api: Api, id_: object, name: object, arguments: object) -> ModelCall:
    known = id_ if isinstance(id_, str) else ""
    if not isinstance(name, str) or not name:
        return ModelCall(api, known, "", {}, "This call names no tool. Nothing was called.")
    found, problem = _arguments(arguments)
    return ModelCall(api, known, name, found, problem)


def _arguments(given: object) -> tuple[Json, str]:
    """The arguments, or what is wrong with them."""
    if given is None or (isinstance(given, str) and not given.strip()):
        return {}, ""
    if isinstance(given, str):
        try:
            given = json.loads(given, parse_constant=_no_json)
        except json.JSONDecodeError as error:
            where = f"{error.msg} at line {error.lineno}, column {error.colno}"
            return (
                {},
                f"The arguments are not valid JSON ({where}). Nothing was called; call again with an object.",
            )
        except (ValueError, RecursionError):  # NaN, or more digits or depth than can be read
            return {}, "The arguments are not JSON that can be read. Nothing was called; call again."
    if not isinstance(given, Mapping):
        return {}, "The arguments are no JSON object. Nothing was called; call again with an object."
    return dict(given), ""


def _blocks(result: object) -> list[Json]:
    """Content for the Messages API: images it takes as such, everything else as text."""
    content = result.get("content") if isinstance(result, Mapping) else None
    found: list[Json] = []
    for block in content if isinstance(content, list | tuple) else ():
        image = _image(block)
        text = "" if image else flatten({"content": [block]})
        if image:
            found.append(image)
        elif text.strip():  # "text content blocks must contain non-whitespace text"
            found.append({"type": "text", "text": text})
    return found


def _image(block: object) -> Json | None:
    if not isinstance(block, Mapping) or block.get("type") != "image" or block.get("mimeType") not in _IMAGES:
        return None
    data = block.get("data")
    if bytes_in(data) is None or not isinstance(data, str) or len(data) % 4 or not _BASE64.fullmatch(data):
        return None
    source = {"type": "base64", "media_type": block["mimeType"], "data": data}
    return {"type": "image", "source": source}


def _plain(answer: object) -> object:
    """JSON of what a provider's package gives: its objects are pydantic models, also within lists."""
    if isinstance(answer, Sequence) and not isinstance(answer, str | bytes):
        return [_plain(each) for each in answer]
    dump = getattr(answer, "model_dump", None)
    return dump() if callable(dump) and not isinstance(answer, Mapping) else answer


def _items(found: object) -> list[Mapping[str, Any]]:
    """The objects of a list; nothing for what is none."""
    if not isinstance(found, Iterable) or isinstance(found, str | bytes | Mapping):
        return []
    return [each for each in found if isinstance(each, Mapping)]


def _no_json(_: str) -> NoReturn:
    raise ValueError
