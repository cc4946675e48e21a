"""The tool calls in what a model wrote, and their results in the shape in which it reads them.

Owns both shapes for each API. Sources, as the types of the packages openai 3.54 and anthropic 2.12 have them:
chat completions (`message.tool_calls`, answered by messages of the role `tool`, which hold text only) and
Responses (`function_call` items, answered by `function_call_output`); the Messages API (`tool_use` blocks,
answered by `tool_result` blocks of one user message; errors of the API add that a failure holds text only and
that no text is blank). "The model does not always generate valid JSON" (OpenAI): what cannot be read is a
call too, with a `problem` in place of arguments, since both APIs refuse to go on while one is unanswered.

A text that says what is wrong never repeats what the model wrote. Knows nothing of: lists of tools, who runs
a call.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, NoReturn

from carpool.adapters.text import flatten, is_failure

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
    """The fault of the call, as a sentence for the model; empty if the call can be run."""


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

    Flattened; with `whole` images stay images, where they can: not in chat completions, not in a failure.
    """
    failed = is_failure(result)
    text = flatten(result)
    seen = [] if failed or not whole else _parts(result)
    if call.api == "anthropic":
        flag = {"is_error": True} if failed else {}
        content = [_ANTHROPIC[kind](said) for kind, said in seen] or text
        return {"type": "tool_result", "tool_use_id": call.id, "content": content, **flag}
    text = FAILED + text if failed else text
    if call.api == "responses":
        output = [_RESPONSES[kind](said) for kind, said in seen] or text
        return {"type": "function_call_output", "call_id": call.id, "output": output}
    return {"role": "tool", "tool_call_id": call.id, "content": text}


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


def _parts(result: object) -> list[tuple[str, Any]]:
    """`("image", (its type, its base64))` for each image that models take, `("text", …)` for all else."""
    content = result.get("content") if isinstance(result, Mapping) else None
    found: list[tuple[str, Any]] = []
    for block in content if isinstance(content, list | tuple) else ():
        image = _image(block)
        text = "" if image else flatten({"content": [block]})
        if image:
            found.append(("image", image))
        elif text.strip():
            found.append(("text", text))
    return found


def _image(block: object) -> tuple[str, str] | None:
    if not isinstance(block, Mapping) or block.get("type") != "image" or block.get("mimeType") not in _IMAGES:
        return None
    data = block.get("data")
    if not isinstance(data, str) or len(data) % 4 or not _BASE64.fullmatch(data):
        return None
    return block["mimeType"], data


_ANTHROPIC: Final[Mapping[str, Callable[[Any], Json]]] = {
    "text": lambda text: {"type": "text", "text": text},
    "image": lambda image: {
        "type": "image",
        "source": {"type": "base64", "media_type": image[0], "data": image[1]},
    },
}
_RESPONSES: Final[Mapping[str, Callable[[Any], Json]]] = {
    "text": lambda text: {"type": "input_text", "text": text},
    "image": lambda image: {"type": "input_image", "image_url": "data:{};base64,{}".format(*image)},
}


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
