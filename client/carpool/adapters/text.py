"""Results as models read them: one text.

Owns what stands in that text for each kind of content (MCP 2025-11-25, schema: `CallToolResult`,
`ContentBlock`, `ReadResourceResult`). Invariants: whatever is put in, a text comes out, and it can be encoded
as UTF-8; a block of bytes is named with its size, its bytes never appear; a result that says something never
becomes an empty text. Objects (of the official SDK, say) read as the dicts that they stand for.

Knows nothing of: calls, model APIs, terminals.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

MAX_LABEL_CHARS: Final = 1000
"""Of a kind or a URI within brackets: a `data:` URI can hold a whole file."""
SILENT_FAILURE: Final = "the tool failed and said nothing"

_BASE64 = re.compile(r"[A-Za-z0-9+/_-]*={0,2}")
_BLANKS = re.compile(r"\s+")
_MAPPING: Final = (dict, Mapping)
"""Most are dicts, and `Mapping` alone takes ten times as long to say so."""
_WITH_BYTES: Final = frozenset({"image", "audio"})
_WITHOUT_WORDS: Final = frozenset(
    {
        "content",
        "contents",
        "structuredContent",
        "toolResult",
        "isError",
        "_meta",
        "resultType",
        "ttlMs",
        "cacheScope",
    }
)
"""Members of a result that are read by name or hold no words of the tool (2025-11-25, 2026-07-28)."""


def flatten(result: object) -> str:
    """The result of a tool (or of `resources/read`) as one text; its parts are joined by a line end.

    | content | text |
    |---|---|
    | text | itself |
    | image, audio | `[image: image/png, 1234 bytes]`: the size once decoded |
    | embedded resource | its text, or `[resource: URI]` |
    | link to a resource | `[resource: URI]` |
    | of another kind | `[KIND]`, with its type and size where it says them |
    | none, but `structuredContent` | that as JSON |
    | none, but a text in `text` or `result` | that text |
    | none, but members that no version of MCP knows | these as JSON |
    | none at all | `""`; for an error `SILENT_FAILURE` |

    An error reads as any other result: `isError` is `as_success`'s to say. Where there is content,
    `structuredContent` repeats it (2025-11-25, server/tools: Structured Content) and is left out. What breaks
    the protocol is said as well as it can be; nothing raises.
    """
    try:
        text = _encodable(_text(result))
    except RecursionError:  # a result that was made in this process may hold itself
        text = _bracket("result", "nested too deep")
    return text or (SILENT_FAILURE if is_failure(result) else "")


def as_success(result: object) -> dict[str, Any]:
    """`{"success": bool, "output": str}`: whether the tool says that it worked, and its text."""
    return {"success": not is_failure(result), "output": flatten(result)}


def is_failure(result: object) -> bool:
    """True if the tool says that it failed."""
    found = _as_mapping(result)
    return isinstance(found, _MAPPING) and found.get("isError") is True


def parts(content: object) -> list[str]:
    """The text of each block of a `content` array, in its order; may hold what UTF-8 cannot encode."""
    if isinstance(content, list | tuple):
        return [_block(block) for block in content]
    return [_block(content)]


def bytes_in(data: object) -> int | None:
    """The size in bytes of what a base64 text holds; None for what is no base64.

    Padding may be missing and the alphabet may be that of URLs, as some servers have it; nothing is decoded.
    """
    if not isinstance(data, str):
        return None
    bare = _BLANKS.sub("", data)
    if _BASE64.fullmatch(bare) is None:
        return None
    chars = len(bare.rstrip("="))
    return None if chars % 4 == 1 else chars * 3 // 4


def _as_mapping(value: object) -> object:
    """The dict that an object stands for: one of the SDK's (pydantic), a result or a content block.

    `mcp.types.CallToolResult(content=[…])` becomes `{"content": […], "isError": False}`. Anything else is
    returned as it is.
    """
    if isinstance(value, (*_MAPPING, str, list, tuple, int, float)) or value is None:
        return value
    raw = getattr(value, "raw", None)
    if isinstance(raw, dict) and hasattr(value, "is_error"):  # `carpool.api.Result`
        return raw
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        try:
            return dump(mode="json", by_alias=True, exclude_none=True)
        except (TypeError, ValueError):  # not pydantic's `model_dump`, or a model that JSON cannot hold
            return value
    if isinstance(getattr(value, "type", None), str):
        return dict(vars(value)) if hasattr(value, "__dict__") else value
    content = getattr(value, "content", None)
    if content is None:
        return value
    is_error = getattr(value, "isError", getattr(value, "is_error", False))
    structured = getattr(value, "structuredContent", getattr(value, "structured_content", None))
    return {"content": content, "isError": is_error is True, "structuredContent": structured}


def _text(result: object) -> str:
    result = _as_mapping(result)
    if not isinstance(result, _MAPPING):
        return result if isinstance(result, str) else _json(result)
    for key in ("content", "contents"):
        content = result.get(key)
        if content not in (None, [], ()):
            return "\n".join(parts(content) if key == "content" else map(_resource, _listed(content)))
    for key in ("structuredContent", "toolResult"):  # the second is what 2024-10-07 said
        if result.get(key) is not None:
            return result[key] if isinstance(result[key], str) else _json(result[key])
    said = {key: value for key, value in result.items() if key not in _WITHOUT_WORDS and value is not None}
    if len(said) == 1:
        (key, value), *_ = said.items()
        if key in {"text", "result"} and isinstance(value, str):
            return value
    return _json(said) if said else ""


def _block(block: object) -> str:
    block = _as_mapping(block)
    if not isinstance(block, _MAPPING):
        return block if isinstance(block, str) else _json(block)
    kind = block.get("type")
    if kind == "resource":
        return _resource(block.get("resource"))
    if kind == "resource_link":
        return _bracket("resource", block.get("uri"))
    if kind in (None, "text") and isinstance(block.get("text"), str):
        return str(block["text"])
    name = kind if isinstance(kind, str) and kind else "content"
    if kind == "text":
        return _bracket(name, "unreadable")
    size_bytes = bytes_in(block.get("data"))
    if size_bytes is not None:
        said = f"{size_bytes} bytes"
    else:
        said = "unreadable" if "data" in block or name in _WITH_BYTES else ""
    return _bracket(name, block.get("mimeType"), said)


def _resource(contents: object) -> str:
    if not isinstance(contents, _MAPPING):
        return _bracket("resource")
    text = contents.get("text")
    return text if isinstance(text, str) else _bracket("resource", contents.get("uri"))


def _bracket(kind: str, *said: object) -> str:
    """`[kind: a, b]` with what is text and not empty of `said`, on one line; `[kind]` with nothing."""
    words = ", ".join(_label(each) for each in said if isinstance(each, str) and each)
    return f"[{_label(kind)}: {words}]" if words else f"[{_label(kind)}]"


def _label(text: str) -> str:
    shown = _BLANKS.sub(" ", text[: MAX_LABEL_CHARS + 1])
    return shown if len(shown) <= MAX_LABEL_CHARS else shown[: MAX_LABEL_CHARS - 1] + "…"


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):  # no JSON, a circle, or a number with more digits than Python writes
        return _bracket("result", "unreadable")


def _listed(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _encodable(text: str) -> str:
    """Half a surrogate pair (rule 16), which no model API takes, as U+FFFD; two halves as their character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
