"""Repairs answers that break the protocol, so that agents can read them (rule 17).

Owns which forms of a `tools/call` result and of an error object are valid, and which say that a tool
failed. Valid ones are returned as the same object. Only the outermost form is checked: the content of
blocks is between server and agent. No answer with carpool's own mark of an error (`fault_answers`) is
valid: only carpool says if a call was delivered, so the server's mark is moved to another name.

Knows nothing of: the server that answered, the place where the note is shown.
"""

from collections.abc import Callable, Mapping
from typing import Final, Literal

import msgspec
from msgspec import Raw, Struct

from carpool_protocol.faults.fault_answers import ERROR_META_KEY
from carpool_protocol.ids import ABSENT, RawJson
from carpool_protocol.wire.json_scan import fields, read_despite_half_pairs
from carpool_protocol.wire.jsonrpc import quote, quote_name

_USUAL_BEGINS: Final = (b'{"content":[', b'{"content": [')
"""The beginnings of nearly every result (Python's `json.dumps` writes a space); nothing else of such a result
is read.
"""

_NOTHING = Raw()

OF_SERVER: Final = "carpool/of_server"
"""The name for a server's own use of carpool's mark (the server may be a carpool itself)."""


class _Form(Struct, gc=False, rename="camel"):
    """The members of a result that show its form."""

    content: Raw = _NOTHING
    structured_content: Raw = _NOTHING
    tool_result: Raw = _NOTHING
    """The result of MCP 2024-10-07, which newer agents still read."""
    result_type: Raw = _NOTHING
    task: Raw = _NOTHING
    text: Raw = _NOTHING
    result: Raw = _NOTHING
    is_error: Raw = _NOTHING


class _Flag(Struct, gc=False, rename="camel"):
    is_error: Raw = _NOTHING


class _Whole(Struct, gc=False):
    meta: Raw = msgspec.field(default=_NOTHING, name="_meta")


class _Meta(Struct, gc=False):
    mark: Raw = msgspec.field(default=_NOTHING, name=ERROR_META_KEY)


class _Error(Struct, gc=False):
    code: Raw = _NOTHING
    message: Raw = _NOTHING
    data: Raw = _NOTHING


class _ErrorData(Struct, gc=False):
    code: Raw = _NOTHING
    delivered: Raw = _NOTHING


class _CodeMember(Struct, gc=False):
    code: str = ""


class _Mark(Struct, gc=False):
    fault: _CodeMember = msgspec.field(name=ERROR_META_KEY)


class _MarkedResult(Struct, gc=False):
    meta: _Mark = msgspec.field(name="_meta")


_read_code = msgspec.json.Decoder(_CodeMember).decode
_read_marked = msgspec.json.Decoder(_MarkedResult).decode
_read_data = msgspec.json.Decoder(_ErrorData).decode
_read_flag = msgspec.json.Decoder(_Flag).decode
_read_form = msgspec.json.Decoder(_Form).decode
_read_error = msgspec.json.Decoder(_Error).decode
_read_whole = msgspec.json.Decoder(_Whole).decode
_read_meta = msgspec.json.Decoder(_Meta).decode

_IS_ERROR: Final = b'"isError"'
_LONG_BYTES: Final = 64 * 1024
"""In a longer result, `msgspec` finds a member faster than `find` does."""
_OTHER_FORMS = frozenset({"structuredContent", "toolResult", "task"})
MAX_TEXT_BYTES: Final = 64 * 1024 * 1024
"""The longest text that is made of a value. Of all rewrites only this one may make a result longer."""
_INTERNAL_ERROR: Final = b"-32603"
_NO_MESSAGE: Final = b'"the %b gave an error without a message"'
_KINDS: Final = {
    b"{": "an object with neither content nor structuredContent",
    b"[": "an array",
    b'"': "a string",
    b"n": "null",
    b"t": "true",
    b"f": "false",
}


def repair_tool_result(
    result: RawJson, *, ours: bool = False, needs_content: bool = False
) -> tuple[RawJson, str | None]:
    """A result that agents can read, and a clause about the problem (None: valid, same object).

    `ours`: the answer comes from a child of carpool, which may use carpool's mark. `needs_content`: an object
    without content is no result; else it gets an empty array. The result is `ABSENT` if no part of it can be
    passed on: then its call ends as `bad_answer`.
    """
    try:  # no more than this for nearly every result: msgspec skips the rest faster than `find` does
        meta = _read_whole(result).meta
        suspect = meta is not _NOTHING and _read_meta(meta).mark is not _NOTHING
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        suspect = result.find(b"_meta") >= 0 or result.find(b"\\u00") >= 0
    if suspect and not ours and (found := _without_mark(result)) is not None:
        if not found:
            return _refusal("the result has too many names to be searched for carpool's own keys")
        sound, why = _repaired(found, needs_content=needs_content)
        return sound, why or "the result used the key that is reserved for carpool's own errors"
    if result.startswith(_USUAL_BEGINS):
        return result, None
    return _repaired(result, needs_content=needs_content)


def _repaired(result: RawJson, *, needs_content: bool) -> tuple[RawJson, str | None]:
    """`repair_tool_result` of a result without carpool's mark, or with one that is true."""
    if result.startswith(_USUAL_BEGINS):
        return result, None
    if result[:1] == b'"':
        return _text_result(result), "the result was a string; it was passed on as text"
    form = _read(result, _read_form)
    if form is None:
        return _refusal(f"the result was {_KINDS.get(result[:1], 'a number')}, not an object with content")
    content = form.get("content", b"")
    if content and content != b"null":
        if content[:1] == b"[":
            return result, None
        return _refusal("the content of the result was not an array")
    if form.get("resultType", b'"complete"') != b'"complete"' or form.keys() & _OTHER_FORMS:
        return _without_content(result, form) if content else (result, None)
    failed = form.get("isError") == b"true"
    if form.get("text", b"")[:1] == b'"':
        return _text_result(form["text"], failed=failed), "the result was {text}; it was passed on as text"
    if inner := form.get("result"):
        raw_text = inner if inner[:1] == b'"' else quote(inner.decode(errors="replace"))
        if len(raw_text) > MAX_TEXT_BYTES:
            return _refusal("the result was {result}, and as text it would be longer than any answer may be")
        return _text_result(raw_text, failed=failed), "the result was {result}; it was passed on as text"
    if needs_content:
        return _refusal(f"the result was {_KINDS[b'{']}")
    return _without_content(result, form)


def no_object(result: RawJson) -> str:
    """The sentence on a result that is no object, if it is of a method other than `tools/call`; empty: it is
    one. Clients drop an answer with such a result, and wait.
    """
    if result[:1] == b"{":
        return ""
    return f"The result was {_KINDS.get(result[:1], 'a number')}, not an object."


def is_failed_result(result: RawJson) -> bool:
    """True if a `tools/call` result says `isError: true` (MCP, server/tools, "Error Handling").

    Nearly every server writes `isError`, usually false; the result is read only if it may be true.
    """
    if len(result) > _LONG_BYTES:
        try:
            return bytes(_read_flag(result).is_error) == b"true"
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return result.find(_IS_ERROR) >= 0 and (fields(result) or {}).get("isError") == b"true"
    # `in` takes twice as long as `find`. Python's `json.dumps` writes the space.
    is_false = result.find(b'"isError":false') >= 0 or result.find(b'"isError": false') >= 0
    if is_false and result.count(_IS_ERROR) == 1:
        return False
    return result.find(_IS_ERROR) >= 0 and (_read(result, _read_form) or {}).get("isError") == b"true"


def repair_error(
    error: RawJson, sender: Literal["server", "agent", "child"] = "server"
) -> tuple[RawJson, str | None]:
    """An error object of the form of JSON-RPC 2.0 section 5.1, and a clause about the problem (None: same
    object).

    `sender`: a `child` is carpool's own and may use carpool's mark. Message (also as a bare string), code and
    data of the sender are kept.
    """
    found = _read(error, _read_error)
    no_message = _NO_MESSAGE % (b"agent" if sender == "agent" else b"server")
    if found is None:
        message_sent = error if error[:1] == b'"' else no_message
        whole = b'{"code":%b,"message":%b}' % (_INTERNAL_ERROR, message_sent)
        return RawJson(whole), "the error was not an object"
    code, message = found.get("code", b""), found.get("message", b"")
    sound_code = code.removeprefix(b"-").isdigit()
    sound_message = message[:1] == b'"'
    claims = sender == "server" and claims_fate(found.get("data", b""))
    if claims:
        found["data"] = b'{"%b":%b}' % (OF_SERVER.encode(), found["data"])
    data = b',"data":%b' % found["data"] if "data" in found else b""
    if sound_code and sound_message:
        if not claims:
            return error, None
        whole = b'{"code":%b,"message":%b%b}' % (code, message, data)
        return RawJson(whole), "the error used the key that is reserved for carpool's own errors"
    whole = b'{"code":%b,"message":%b%b}' % (
        code if sound_code else _INTERNAL_ERROR,
        message if sound_message else no_message,
        data,
    )
    return RawJson(whole), "the error had no integer code or no message"


def slug_in(body: RawJson, *, is_error: bool) -> str:
    """The code of a carpool error in an answer of one of carpool's own children; empty if there is none.

    A child renames what `claims_fate` finds in the errors of its server.
    """
    if body.find(b'"delivered"') < 0:
        return ""
    try:
        if not is_error:
            return _read_marked(body).meta.fault.code
        data = bytes(_read_error(body).data)
        return _read_code(data).code if claims_fate(data) else ""
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


def claims_fate(data: bytes) -> bool:
    """True if the data of an error looks like that of carpool's own, which says what became of a call, or
    cannot be read.
    """
    if data[:1] != b"{" or not (data.find(b"delivered") >= 0 or data.find(b"\\u") >= 0):
        return False
    try:
        seen = read_despite_half_pairs(_read_data, data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return True
    return bool(bytes(seen.code)) and bool(bytes(seen.delivered))


def _read(raw: bytes, read: Callable[[bytes], Struct]) -> dict[str, bytes] | None:
    """The members of an object that `read` knows (more of them on the slow path). None if it is no object."""
    if raw[:1] != b"{":
        return None
    try:
        seen = read(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # half a surrogate pair, or broken
        return fields(raw)
    found = zip(seen.__struct_encode_fields__, msgspec.structs.astuple(seen), strict=True)
    return {name: bytes(value) for name, value in found if value is not _NOTHING}


def _without_mark(result: RawJson) -> RawJson | None:
    """The result without carpool's mark; None if it has no mark, `ABSENT` if it cannot be searched."""
    whole = fields(result)
    if whole is None:
        return ABSENT if result[:1] == b"{" else None
    raw = whole.get("_meta", b"")
    meta = fields(raw)
    if meta is None:
        return ABSENT if raw[:1] == b"{" else None
    if ERROR_META_KEY not in meta:
        return None
    meta[OF_SERVER] = meta.pop(ERROR_META_KEY)
    return _object({**whole, "_meta": _object(meta)})


def _object(members: Mapping[str, bytes]) -> RawJson:
    """An object of raw members."""
    return RawJson(b"{%b}" % b",".join(quote_name(name) + b":" + value for name, value in members.items()))


def _text_result(text: bytes, *, failed: bool = False) -> RawJson:
    flag = b',"isError":true' if failed else b""
    return RawJson(b'{"content":[{"type":"text","text":%b}]%b}' % (text, flag))


def _without_content(result: RawJson, form: Mapping[str, bytes]) -> tuple[RawJson, str]:
    """An object with `"content": null` or without content gets an empty array, and all else stays. One with
    too many members to cut keeps those of `form`.
    """
    found = {**(fields(result) or form), "content": b"[]"}
    return _object(found), "the result had no content; it was passed on without any"


def _refusal(problem: str) -> tuple[RawJson, str]:
    return ABSENT, problem
