"""Rewrites messages into forms that an agent of an older MCP version knows.

Owns the version in which each form appeared. An unknown member of an object is safe for every reader, so it
is left; an unknown kind of content block, schema or request is not: strict readers refuse the whole message.
(Versions: the specification's schemas of 2024-11-05 to 2025-11-25, compared; the changelogs under
`specification/*/changelog`.)

Invariants: a message that needs no change is returned as the same object, after a search for a few words at
most; bytes raise nothing but `TooManyPartsError`; everything that is not named here stays byte for byte.

Knows nothing of: the agent's identity and capabilities (only what no agent of its version can have declared),
URIs.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from carpool_protocol.ids import RawJson
from carpool_protocol.wire.content import (
    TooManyPartsError,
    block_type,
    change_blocks,
    change_members,
    change_members_strictly,
    elements,
    elements_to_change,
    mentions,
    text_of,
    value_of,
)
from carpool_protocol.wire.json_scan import fields, has_too_many_parts, key_text, members
from carpool_protocol.wire.jsonrpc import quote

NEWEST: Final = "2025-11-25"
"""The newest version of the handshake era. Versions are dates: they are compared as text."""
STATELESS: Final = "2026-07-28"

AUDIO_SINCE: Final = "2025-03-26"
"""`AudioContent` (2025-03-26, changelog)."""
LINKS_SINCE: Final = "2025-06-18"
"""`ResourceLink` (2025-06-18, changelog)."""
ELICITATION_SINCE: Final = "2025-06-18"
"""`elicitation/create` (2025-06-18, changelog); mode `url`, titled and multi-select enums: 2025-11-25."""

MAX_REPEATED_BYTES: Final = 8 * 1024 * 1024
"""The limit for what stands beside the blocks of sampling messages and is repeated for each block."""

MAX_MIRRORED_BYTES: Final = 2 * 1024 * 1024
"""The limit for a result whose `structuredContent` is removed or becomes a text: it is read several times."""

METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602

_odd_structure = re.compile(rb'"structuredContent" *+:(?! *+\{)').search
_plain = re.compile(r"[^\w/+.;= -]").sub


class CannotDowngrade(Struct, frozen=True):
    """An ask that no agent of this version can answer. The server gets this error."""

    code: int
    text: str


# --- results ---------------------------------------------------------------------------------------------


def downgrade_result(method: str, version: str, result: RawJson) -> RawJson:
    """The result of a `tools/call` or `prompts/get` in a form that an agent of `version` knows. Other results
    stay.

    `structuredContent` that is no object is removed for every agent of the handshake era (2025-11-25 schema,
    `CallToolResult`: an object; 2026-07-28: any value). If there is no other content, its JSON becomes a
    text. Raises `TooManyPartsError`.
    """
    if version >= STATELESS:
        return result
    if method == "tools/call":
        if mentions(result, b'"structuredContent"') and _odd_structure(result):
            result = _without_odd_structure(result)
    elif method != "prompts/get":
        return result
    if version >= LINKS_SINCE:
        return result
    has_audio = version < AUDIO_SINCE and mentions(result, b'"audio"')
    if not has_audio and not mentions(result, b'"resource_link"'):
        return result
    return change_blocks(method, result, lambda block: _older_block(version, block))


def _without_odd_structure(result: RawJson) -> RawJson:
    value = value_of(result, "structuredContent")
    if value is None or value[:1] == b"{":
        return result
    if len(result) > MAX_MIRRORED_BYTES:
        raise TooManyPartsError
    content = value_of(result, "content")
    whole = change_members_strictly(result, {"structuredContent": None})
    if value == b"null" or content not in {None, b"[]"}:
        return RawJson(whole)
    mirror = b'[{"type":"text","text":%b}]' % quote(value.decode(errors="replace"))
    if content is None:
        inner = whole.strip()[1:-1].strip()
        return RawJson(b'{"content":%b%b%b}' % (mirror, b"," if inner else b"", inner))
    return RawJson(change_members_strictly(whole, {"content": lambda _: mirror}))


def _older_block(version: str, block: bytes) -> bytes:
    found = fields(block) if block[:1] == b"{" else None
    if found is None and block[:1] == b"{":
        raise TooManyPartsError
    kind = _text_in(found, "type") if found is not None else None
    if found is None or kind not in {"audio", "resource_link"}:
        return block
    if kind == "audio" and version < AUDIO_SINCE:
        size_bytes = len(found.get("data", b"")[1:-1]) * 3 // 4
        sort = _plain("", _text_in(found, "mimeType") or "of unknown type")
        return _text(
            found, f"[Audio ({sort}, about {size_bytes} bytes): this agent's version of MCP has no audio.]"
        )
    if kind == "resource_link" and version < LINKS_SINCE:
        name = _text_in(found, "title") or _text_in(found, "name") or "Resource"
        mime = _text_in(found, "mimeType")
        description = _text_in(found, "description")
        link = f"[Resource link] {name}: {_text_in(found, 'uri') or ''}"
        return _text(
            found, link + (f" ({mime})" if mime else "") + (f"\n{description}" if description else "")
        )
    return block


def _text_in(block: Mapping[str, bytes], key: str) -> str | None:
    """As `text_of`, of an object that is cut already."""
    found = block.get(key, b"")
    return key_text(found) if found[:1] == b'"' else None


def _text(block: Mapping[str, bytes], text: str) -> bytes:
    annotations = block.get("annotations")
    kept = b"" if annotations is None else b',"annotations":' + annotations
    return b'{"type":"text","text":%b%b}' % (quote(text), kept)


# --- tools -----------------------------------------------------------------------------------------------


def downgrade_tool(version: str, definition: RawJson) -> RawJson:
    """A tool's definition in a form that an agent of `version` knows. Never larger than before.

    `outputSchema` of another type than object is removed in the handshake era (2025-06-18 and 2025-11-25
    schema, `Tool`; 2026-07-28 allows any schema). `execution` exists in 2025-11-25 only. There it is removed
    if it says that the tool must be a task: carpool announces no tasks and drives them itself, and clients
    refuse to call such a tool without a task.
    """
    return tool_edit(version)(definition)


def tool_edit(version: str) -> Callable[[RawJson], RawJson]:
    """The `downgrade_tool` of one version. Versions with equal results share one function."""
    if version == NEWEST:
        return _newest_tool
    return _stateless_tool if version >= STATELESS else _older_tool


def _stateless_tool(definition: RawJson) -> RawJson:
    return (
        RawJson(change_members(definition, {"execution": None}))
        if mentions(definition, b'"execution"')
        else definition
    )


def _newest_tool(definition: RawJson) -> RawJson:
    if mentions(definition, b'"taskSupport"'):
        execution = value_of(definition, "execution")
        if execution is not None and text_of(execution, "taskSupport") == "required":
            definition = _stateless_tool(definition)
    return _with_object_schema(definition)


def _older_tool(definition: RawJson) -> RawJson:
    return _with_object_schema(_stateless_tool(definition))


def _with_object_schema(definition: RawJson) -> RawJson:
    if mentions(definition, b'"outputSchema"'):
        schema = value_of(definition, "outputSchema")
        if schema is not None and text_of(schema, "type") != "object":
            return RawJson(change_members(definition, {"outputSchema": None}))
    return definition


# --- asks ------------------------------------------------------------------------------------------------


def downgrade_ask(version: str, method: str, params: RawJson) -> RawJson | CannotDowngrade:
    """The params of a server's request in a form that an agent of `version` knows, or an error for the
    server.
    """
    if version >= NEWEST:
        return params
    try:
        match method:
            case "sampling/createMessage":
                return _sampling(version, params)
            case "elicitation/create":
                return _elicitation(version, params)
            case _:
                return params
    except TooManyPartsError as error:
        return CannotDowngrade(INVALID_PARAMS, f"This cannot be asked of the agent. {error.text}")


def _sampling(version: str, params: RawJson) -> RawJson | CannotDowngrade:
    """Sampling params for versions before 2025-11-25, which brought `tools`, tool-use blocks and arrays of
    blocks.

    An array becomes one message for each block. Tools have no older form: the 2025-11-25 schema
    (`CreateMessageRequestParams.tools`) wants an error if `sampling.tools` was not declared.
    """
    tools = value_of(params, "tools")
    if tools is not None and tools not in {b"[]", b"null"}:
        return CannotDowngrade(INVALID_PARAMS, "This agent has not declared sampling.tools.")
    if tools is not None or mentions(params, b'"toolChoice"'):
        params = RawJson(change_members_strictly(params, {"tools": None, "toolChoice": None}))
    found = elements_to_change(value_of(params, "messages") or b"")
    if found is None:
        return params
    messages: list[bytes] = []
    repeated_bytes = 0
    for message in found:
        content = value_of(message, "content") or b""
        blocks = (elements(content) or []) if content[:1] == b"[" else [content]
        if any(block_type(block) in {"tool_use", "tool_result"} for block in blocks):
            return CannotDowngrade(INVALID_PARAMS, "This agent has not declared sampling.tools.")
        older = [_older_block(version, block) for block in blocks]
        if older == [content]:
            messages.append(message)
            continue
        begin, end = _around(message, "content")
        repeated_bytes += len(blocks) * (len(begin) + len(end))
        if repeated_bytes > MAX_REPEATED_BYTES:
            raise TooManyPartsError
        messages += [b"%b%b%b" % (begin, block, end) for block in older]
    if len(messages) == len(found) and all(new is old for new, old in zip(messages, found, strict=True)):
        return params
    return RawJson(change_members_strictly(params, {"messages": lambda _: b"[%b]" % b",".join(messages)}))


def _around(raw: bytes, key: str) -> tuple[bytes, bytes]:
    """An object as the text before and the text after the value of this member, the last of doubles. Other
    doubles are left out.
    """
    cuts = members(raw) or []
    kept = [raw[cut.key : cut.value_end] for cut in cuts if key_text(raw[cut.key : cut.key_end]) != key]
    return b"{%b%b:" % (b"".join(each + b"," for each in kept), quote(key)), b"}"


def _elicitation(version: str, params: RawJson) -> RawJson | CannotDowngrade:
    """Elicitation params for versions before 2025-11-25, which brought mode `url`, titled enums and
    multi-select.

    A titled enum (`oneOf`) has an older equivalent (`enumNames`). An optional multi-select is left out of the
    form; a required one makes the form unanswerable.
    """
    if version < ELICITATION_SINCE:
        return CannotDowngrade(METHOD_NOT_FOUND, "This agent has not declared elicitation.")
    if (text_of(params, "mode") or "form") != "form":
        return CannotDowngrade(INVALID_PARAMS, "This agent has declared elicitation in form mode only.")
    schema = value_of(params, "requestedSchema") or b""
    if has_too_many_parts(schema):
        raise TooManyPartsError
    properties = fields(value_of(schema, "properties") or b"")
    if properties is None:
        return params
    required = {key_text(name) for name in elements(value_of(schema, "required") or b"") or ()}
    changes: dict[str, Callable[[bytes], bytes] | None] = {}
    for name, value in properties.items():
        if text_of(value, "type") == "array":
            if name in required:
                return CannotDowngrade(
                    INVALID_PARAMS,
                    "This agent's version of MCP has no multi-select, and the form requires one.",
                )
            changes[name] = None
        elif mentions(value, b'"oneOf"'):
            changes[name] = _untitled
    if not changes:
        return params
    return RawJson(
        change_members_strictly(
            params,
            {
                "requestedSchema": lambda it: change_members_strictly(
                    it, {"properties": lambda all_: change_members_strictly(all_, changes)}
                )
            },
        )
    )


class _Titled(Struct):
    const: str
    title: str = ""


_read_titled = msgspec.json.Decoder(list[_Titled]).decode


def _untitled(schema: bytes) -> bytes:
    """A titled enum in its older form (2025-06-18 schema, `EnumSchema`): `oneOf` becomes `enum` and
    `enumNames`.
    """
    raw = value_of(schema, "oneOf")
    try:
        choices = _read_titled(raw or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return schema
    names = msgspec.json.encode([choice.title or choice.const for choice in choices])
    values = msgspec.json.encode([choice.const for choice in choices])
    rest = change_members(schema, {"oneOf": None}).strip()[1:-1].strip()
    return b'{"enum":%b,"enumNames":%b%b%b}' % (values, names, b"," if rest else b"", rest)
