"""Reads calls of carpool's built-in tools: the request inside their arguments.

Owns how the arguments of `call_tool`, `read_resource` and `get_prompt` become the name and the params of the
inner request; the part for a server is cut, never decoded. The core decides if a session has such a tool: a
server's own tool may have the same name.

A file of its own because both eras use it, and no era imports the package `builtin_tools`, which is not pure.

Knows nothing of: sessions, views, the meaning of the inner name.
"""

from typing import Final

from carpool_broker.core.model.events import BuiltinCall
from carpool_broker.core.registry.builtin_tools import SPELLINGS, TARGET_METHODS
from carpool_protocol.ids import EMPTY_OBJECT, RawJson
from carpool_protocol.wire.content import value_of
from carpool_protocol.wire.json_scan import fields, key_text

NAMES: Final = frozenset(SPELLINGS)
"""Calls of other names are ignored."""


def read_builtin_call(name: str, rest: RawJson) -> tuple[BuiltinCall, ...]:
    """The inner request of a call with one of these `NAMES`. `rest`: see `CallRequested`."""
    kind = SPELLINGS[name]
    if kind not in TARGET_METHODS:
        return ()
    key = "uri" if kind == "read_resource" else "name"
    takes = {key} if kind == "read_resource" else {key, "arguments"}
    found = fields(value_of(rest, "arguments") or EMPTY_OBJECT)
    subject = key_text(found.get(key, b"")) if found is not None else None
    if found is None or not subject:
        return (BuiltinCall("", EMPTY_OBJECT, f"{name} needs an argument {key}, a string."),)
    if found.keys() - takes:
        more = "the tool's own arguments belong in the object `arguments`" if "arguments" in takes else ""
        only = f"{name} takes only {' and '.join(sorted(takes, reverse=True))}"
        return (BuiltinCall("", EMPTY_OBJECT, f"{only}; {more}." if more else f"{only}."),)
    arguments = found.get("arguments", b"null")
    if arguments == b"null":
        return (BuiltinCall(subject, EMPTY_OBJECT),)
    if arguments[:1] != b"{":
        given_kind = {b'"': "text", b"[": "an array"}.get(bytes(arguments[:1]), "a single value")
        return (
            BuiltinCall("", EMPTY_OBJECT, f"The arguments of {name} must be an object, not {given_kind}."),
        )
    return (BuiltinCall(subject, RawJson(b'{"arguments":%b}' % arguments)),)
