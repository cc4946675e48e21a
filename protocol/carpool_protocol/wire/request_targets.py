"""The target of a request: the name, URI or reference that decides which server gets it.

Owns, for the methods that go to one server, which member of the params is the target, and how it is taken out
and put back in the server's own spelling. The other members are not touched. `tools/call` has a faster way
(`params.split_call`).

Invariant: the target stands once in the params, in one spelling, so that a server which ignores the case of
keys reads the same target as carpool. That holds within a `ref` too.

Knows nothing of: the server that the target belongs to (`tool_name_resolver`, the registry).
"""

from typing import Final

from msgspec import Struct

from carpool_protocol.ids import EMPTY_OBJECT, RawJson
from carpool_protocol.wire.json_scan import fields, key_text, members
from carpool_protocol.wire.jsonrpc import quote
from carpool_protocol.wire.params import ParamsError, split_meta

TARGET_KEYS: Final = {
    "prompts/get": "name",
    "resources/read": "uri",
    "completion/complete": "ref",
}
"""MCP 2025-11-25: server/prompts, server/resources, server/utilities/completion."""

TASK_ID_KEYS: Final = {
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
"""Of the stateless era only: the extension `io.modelcontextprotocol/tasks` (SEP-2663)."""

_KEYS: Final = TARGET_KEYS | TASK_ID_KEYS

_OF_A_REF: Final = frozenset({"type", "name", "uri"})
"""Members of a `ref` that say which prompt or resource it means."""


class RequestTarget(Struct, frozen=True):
    """The parts of the params of one request."""

    text: str
    """The name, URI or task id; of a `ref` its JSON."""
    rest: RawJson
    """The other members, without `_meta`."""
    meta: RawJson
    token: RawJson


def split_target(method: str, params: RawJson) -> RequestTarget | ParamsError:
    """Take the target out of the params of a method of `TARGET_KEYS` or `TASK_ID_KEYS`."""
    key = _KEYS[method]
    split = split_meta(params)
    if isinstance(split, ParamsError):
        return split
    rest, meta, token = split
    found = fields(rest or EMPTY_OBJECT)
    raw = found.pop(key, b"") if found is not None else b""
    text = None
    if key != "ref":
        text = key_text(raw)
    # never the text of a string: it could hold a line end, and with that another message
    elif raw[:1] == b"{":
        ref = _reference(raw)
        if isinstance(ref, ParamsError):
            return ref
        text = ref.decode(errors="replace")
    if found is None or text is None:
        return ParamsError(f"{method} needs {'an object' if key == 'ref' else 'a string'} {key}")
    folded = key.casefold()  # readers that ignore case would use that one
    if any(name.casefold() == folded for name in found):
        return ParamsError(f"{method} has its {key} twice, spelled differently")
    return RequestTarget(text, _object(found), meta, token)


def with_target(method: str, text: str, rest: RawJson) -> RawJson:
    """The params with the target put back, in the spelling of the server."""
    key = _KEYS.get(method)
    if key is None:
        return rest
    raw = text.encode() if key == "ref" else quote(text)
    inner = rest[1:-1].strip()
    return RawJson(b'{"%b":%b%b%b}' % (key.encode(), raw, b"," if inner else b"", inner))


def _reference(raw: bytes) -> bytes | ParamsError:
    """A `ref` in which each member stands once: unchanged, unless a member stood twice."""
    found = fields(raw)
    if found is None:
        return ParamsError("completion/complete needs an object ref")
    for name in found:
        if name not in _OF_A_REF and name.casefold() in _OF_A_REF:
            return ParamsError(f"completion/complete has a ref with {name.casefold()} in another spelling")
    return raw if len(members(raw) or ()) == len(found) else _object(found)


def _object(found: dict[str, bytes]) -> RawJson:
    return RawJson(b"{%b}" % b",".join(quote(key) + b":" + raw for key, raw in found.items()))
