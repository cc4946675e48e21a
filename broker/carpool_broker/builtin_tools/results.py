"""Results of carpool's built-in tools, as results of `tools/call`.

Owns the texts of `find_tools`, `describe_tool`, `list_resources` and `list_prompts`, and how the result of a
read or of a prompt becomes content that any agent can show: a server's bytes are cut and put together.

Invariant: no text of a server begins a line of `find_tools`, and each of its lines has a bounded length.

Knows nothing of: the request that a call stands for (`era/builtin_tools`), sessions, lines.
"""

import re

import msgspec
from msgspec import Struct

from carpool_broker.builtin_tools.search import (
    MAX_QUERY_CHARS,
    CannotSearchError,
    ToolSearch,
    server_tags,
    split_words,
    tool_text,
)
from carpool_broker.core.model.pagination import BadCursor
from carpool_broker.core.registry.builtin_tools import DEFAULT_FOUND, MAX_FOUND
from carpool_broker.core.registry.request_target import NoTarget, find_target, with_similar_names
from carpool_broker.core.registry.view import BuiltinTool, View, ViewTool
from carpool_protocol.faults.fault_answers import TOOLS_CALL, as_tool_result, fault
from carpool_protocol.ids import EMPTY_OBJECT, RawJson
from carpool_protocol.wire.content import change_members, elements_to_change, text_of, value_of
from carpool_protocol.wire.downgrade import tool_edit
from carpool_protocol.wire.json_scan import fields, key_text
from carpool_protocol.wire.jsonrpc import quote

MAX_LINE_CHARS = 200
"""Longest description in a list of found tools."""
MAX_PARAMETERS = 12
MAX_NAMED = 20
_plain_name = re.compile(r"[\w.$@\[\]-]{1,64}").fullmatch
"""A name of a parameter that is shown. Another name could write a line, which would be read as another
server's tool.
"""
_CONTROLS = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0)), " ")
_NO_INDEX = (
    "Carpool runs on a Python without SQLite's full-text index (FTS5), so it cannot search. An empty query "
    "lists all tools. The user can install carpool with another Python, or set `show` of this profile to all."
)


class _Query(Struct):
    query: str = ""
    limit: int | None = None
    server: str | None = None
    tag: str | None = None


class _Name(Struct):
    name: str = ""


class _Page(Struct):
    cursor: str | None = None


class _Params(Struct):
    arguments: msgspec.Raw = msgspec.Raw(EMPTY_OBJECT)


_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_read_params = msgspec.json.Decoder(_Params).decode
_read_query = msgspec.json.Decoder(_Query, strict=False).decode
_read_name = msgspec.json.Decoder(_Name).decode
_read_page = msgspec.json.Decoder(_Page).decode


def builtin_result(view: View, kind: str, rest: RawJson, finder: ToolSearch, version: str) -> RawJson:
    """The result of a call of a built-in tool. `rest`: see `events.CallRequested`."""
    try:
        arguments = bytes(_read_params(rest).arguments)
        match kind:
            case "find_tools":
                return _search_result(view, _read_query(arguments), finder)
            case "describe_tool":
                return _described(view, _read_name(arguments).name, version)
            case "list_resources":
                return _resources(view, _read_page(arguments).cursor)
            case _:
                return _prompts(view, _read_page(arguments).cursor)
    except _UNREADABLE:
        return as_tool_result(fault("bad_params", detail=f"The arguments do not fit the schema of {kind}."))
    except CannotSearchError:
        return _text(_NO_INDEX, failed=True)


def is_search(kind: str, rest: RawJson) -> bool:
    """True if the answer needs an index of the tools. A query without words only lists them."""
    try:
        return kind == "find_tools" and bool(
            split_words(_read_query(_read_params(rest).arguments).query[:MAX_QUERY_CHARS])
        )
    except _UNREADABLE:
        return False


# --- tools -----------------------------------------------------------------------------------------------


def _search_result(view: View, asked: _Query, finder: ToolSearch) -> RawJson:
    limit = min(max(DEFAULT_FOUND if asked.limit is None else asked.limit, 1), MAX_FOUND)
    found = finder.find(
        view.tools, server_tags(view), asked.query, limit, server=asked.server or "", tag=asked.tag or ""
    )
    lines = [_line(tool) for tool in found.tools]
    if found.total > len(lines):
        lines.append(f"({found.total - len(lines)} more match less well.)")
    if not lines:
        servers = sorted(entry.server for entry in view.scope.servers)
        more = f" and {len(servers) - MAX_NAMED} more" if len(servers) > MAX_NAMED else ""
        lines = [
            "No tool matches. Try other or fewer words, or leave server and tag out. "
            f"Servers: {', '.join(servers[:MAX_NAMED]) or 'none'}{more}."
        ]
    if view.unknown_pools:
        late = sorted(entry.server for entry in view.scope.servers if entry.key in view.unknown_pools)
        lines.append(f"(Tools not known yet: {', '.join(late[:MAX_NAMED])}.)")
    return _text("\n".join(lines))


def _line(tool: ViewTool) -> str:
    """A line of bounded length. `…` stands for parameters that are left out; `describe_tool` tells them."""
    parts = tool_text(tool.definition)
    plain = [name for name in parts.parameters if _plain_name(name)]
    names = [name if name in parts.required else f"{name}?" for name in plain]
    names.sort(key=lambda name: name.endswith("?"))
    if len(names) > MAX_PARAMETERS or len(plain) < len(parts.parameters):
        names = [*names[:MAX_PARAMETERS], "…"]
    text = " ".join((parts.description or parts.title).translate(_CONTROLS).split())
    if len(text) > MAX_LINE_CHARS:
        text = text[: MAX_LINE_CHARS - 1].rstrip() + "…"
    return f"{tool.qualified}({', '.join(names)}){': ' if text else ''}{text}"


def _described(view: View, name: str, version: str) -> RawJson:
    found = view.resolve(name)
    if isinstance(found, ViewTool | BuiltinTool):
        return _text(_valid_unicode(tool_edit(version)(found.definition)))
    target = find_target(view, TOOLS_CALL, name)
    assert isinstance(target, NoTarget)
    return as_tool_result(
        fault(
            target.fault,
            detail=with_similar_names(view, TOOLS_CALL, target),
            server=target.server,
            tool=target.subject,
        )
    )


# --- resources and prompts -------------------------------------------------------------------------------


def _resources(view: View, cursor: str | None) -> RawJson:
    page = view.page("resources", cursor)
    if isinstance(page, BadCursor):
        return as_tool_result(fault("bad_cursor"))
    body = page.body
    templates = view.page("templates", None)
    if cursor is None and not isinstance(templates, BadCursor) and view.templates:
        listed = value_of(templates.body, "resourceTemplates") or b"[]"
        body = RawJson(b'%b,"resourceTemplates":%b}' % (body[:-1], listed))
    return _text(_valid_unicode(body))


def _prompts(view: View, cursor: str | None) -> RawJson:
    page = view.page("prompts", cursor)
    return (
        as_tool_result(fault("bad_cursor"))
        if isinstance(page, BadCursor)
        else _text(_valid_unicode(page.body))
    )


def as_builtin_result(method: str, body: RawJson) -> RawJson:
    """The result of `resources/read` or `prompts/get` as one of `tools/call`. A result made by carpool
    stays. Raises `TooManyPartsError`.
    """
    if body.startswith(b'{"content":['):
        return body
    blocks = _resource_content(body) if method == "resources/read" else _prompt_content(body)
    if blocks is None:
        return as_tool_result(fault("bad_answer"))
    return RawJson(b'{"content":[%b]}' % b",".join(blocks))


def _resource_content(body: RawJson) -> list[bytes] | None:
    """Texts as text, pictures as pictures, all others as embedded resources.

    If there are several, the URI stands before each text.
    """
    contents = elements_to_change(value_of(body, "contents") or b"")
    if contents is None:
        return None
    blocks: list[bytes] = []
    for raw in contents:
        found = fields(raw) or {}
        kind = key_text(found.get("mimeType", b"")) or ""
        if found.get("text", b"")[:1] == b'"':
            if len(contents) > 1:
                uri = key_text(found.get("uri", b"")) or "?"
                blocks.append(b'{"type":"text","text":%b}' % quote(f"{uri}:"))
            blocks.append(b'{"type":"text","text":%b}' % found["text"])
        elif kind.startswith("image/") and found.get("blob", b"")[:1] == b'"':
            blocks.append(b'{"type":"image","data":%b,"mimeType":%b}' % (found["blob"], found["mimeType"]))
        else:
            blocks.append(b'{"type":"resource","resource":%b}' % raw)
    return blocks


def _prompt_content(body: RawJson) -> list[bytes] | None:
    """Each message's content, with its role at the beginning of a text."""
    messages = elements_to_change(value_of(body, "messages") or b"")
    if messages is None:
        return None
    blocks: list[bytes] = []
    for raw in messages:
        role = (text_of(raw, "role") or "user").encode(errors="replace")
        content = value_of(raw, "content") or b""
        if content[:1] != b"{":
            return None
        if text_of(content, "type") == "text":
            blocks.append(change_members(content, {"text": lambda text, role=role: _with_role(text, role)}))  # type: ignore[misc]
        else:
            blocks += (b'{"type":"text","text":%b}' % quote(f"[{role.decode()}]"), content)
    return blocks


def _with_role(text: bytes, role: bytes) -> bytes:
    return quote(f"[{role.decode()}] ")[:-1] + text[1:] if text[:1] == b'"' else text


def _valid_unicode(raw: bytes) -> str:
    """A JSON text as `str`. Half surrogate pairs in it are escapes, and stay so."""
    return raw.decode(errors="replace")


def _text(text: str, *, failed: bool = False) -> RawJson:
    flag = b',"isError":true' if failed else b""
    return RawJson(b'{"content":[{"type":"text","text":%b}]%b}' % (quote(text), flag))
