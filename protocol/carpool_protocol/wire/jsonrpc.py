r"""Reads and writes JSON-RPC messages as lines.

Owns the definition of a message. Invariants:

- Any bytes become a value: a message, or `InvalidLine` with the problem and the id of its call.
- Ids, params, results and errors are the sender's own bytes, never decoded or written anew. The output is
  valid UTF-8 without a byte below 0x20 (rule 1). `msgspec` refuses control bytes in strings, also in parts
  that it skips, so the remaining ones are white space and become blanks. It does not check UTF-8 there; this
  module does.
- Legal JSON that `msgspec` refuses (half a surrogate pair) is read as well, only slower (rule 16).
- Only single fields travel on, never the line. If a key stands twice the last one counts, here and for every
  later reader, so a double cannot mean two things.

Tolerant where it is harmless: `"params": null` means no params, and `"error": null` beside a result (or the
reverse) is ignored. Strict where a guess could end the wrong call.

Knows nothing of: MCP methods, the sender of a line, open calls.
"""

import codecs
import json
from typing import Final, Literal

import msgspec
from msgspec import Raw, Struct

from carpool_protocol.ids import ABSENT, RawJson
from carpool_protocol.wire.json_scan import MAX_TOKEN_BYTES, fields, key_text, scan_ends, without_half_pairs

MAX_ID_BYTES: Final = MAX_TOKEN_BYTES
"""The longest id of a request, and the longest progress token, as written. Processes keep ids beside what
they count, and send a token with every progress of a call.
"""

InvalidReason = Literal[
    "not_utf8",
    "not_json",
    "too_complex",
    "too_long",
    "batch",
    "not_object",
    "bad_version",
    "bad_method",
    "bad_params",
    "bad_id",
    "long_id",
    "bad_answer",
    "ambiguous",
    "not_message",
    "header",
    "blank",
]
"""The problem of a line. `TEXTS` has the sentence for each."""

NOT_A_MESSAGE: Final = "wrote a line that is no message"
"""The error about a server that writes something else to its stdout; the sentence for the line follows."""

TEXTS: Final[dict[InvalidReason, str]] = {
    "not_utf8": "the line is not valid UTF-8",
    "not_json": "the line is not JSON",
    "too_complex": "the line is nested too deeply, or its message has too many fields",
    "too_long": "the line is longer than 2 MiB, and a strict reader of JSON refuses it (as with half of a "
    "surrogate pair)",
    "batch": "the line is a batch (an array of messages), which is not supported: send one message per line",
    "not_object": "the line is JSON but not an object",
    "bad_version": 'the message does not say "jsonrpc":"2.0"',
    "bad_method": "the method is not a valid string",
    "bad_params": "the params are not an object",
    "bad_id": "the id is neither a string nor a number",
    "long_id": f"the id has more than {MAX_ID_BYTES} bytes",
    "bad_answer": "an answer needs an id and exactly one of result and error",
    "ambiguous": "the message has a method and also a result or an error",
    "not_message": "the message has no method, no result and no error",
    "blank": "the line has blanks only; it is ignored",
    "header": "the line is a Content-Length header, as a language server sends it: MCP over stdio has one "
    "JSON message on each line, and no headers",
}


class Request(Struct, frozen=True, gc=False):
    """A message that needs an answer."""

    id: RawJson
    """A string or a number, byte for byte: `1`, `"1"`, `1.0` are three different ids. At most
    `MAX_ID_BYTES`.
    """
    method: str
    params: RawJson
    """An object, or `ABSENT`."""


class Notification(Struct, frozen=True, gc=False):
    """A message that gets no answer."""

    method: str
    params: RawJson
    """An object, or `ABSENT`."""


class ResultAnswer(Struct, frozen=True, gc=False):
    """An answer with a result, which may be any JSON value (`result_repair` checks it)."""

    id: RawJson
    result: RawJson


class ErrorAnswer(Struct, frozen=True, gc=False):
    """An answer with an error, which may be any JSON value but null (`result_repair` checks it)."""

    id: RawJson
    error: RawJson


class InvalidLine(Struct, frozen=True, gc=False):
    """A line that is not a message."""

    why: InvalidReason
    text: str
    """A clause for people, without content of the line."""
    id: RawJson | None
    """The id, if one was found that may be echoed (also `null`), so that the sender can be answered."""
    kind: Literal["request", "answer", "unknown"]
    """`request`: it has a method (also a broken notification without id). `answer`: it has a result or
    error.
    """


Message = Request | Notification | ResultAnswer | ErrorAnswer | InvalidLine


_NOTHING = Raw()


class _Line(Struct, gc=False):
    """The fast path: all members of a valid message. Unknown fields are skipped and dropped."""

    jsonrpc: Literal["2.0"]
    method: str | None = None
    id: Raw = _NOTHING
    params: Raw = _NOTHING
    result: Raw = _NOTHING
    error: Raw = _NOTHING


class _AnyObject(Struct, gc=False):
    """Reads no member: for the check that a text is one legal JSON object."""


_read_line = msgspec.json.Decoder(_Line).decode
_check_object = msgspec.json.Decoder(_AnyObject).decode
_write = msgspec.json.Encoder().encode

_BEFORE_AND_AFTER_ID: Final = len(b'{"jsonrpc":"2.0","id":,')
_WHITE_TO_BLANK = bytes.maketrans(b"\t\n\r", b"   ")
# As numbers: `b"\r" in line` takes four times as long; it was a third of the time to read a line.
_TAB, _LF, _CR = b"\t\n\r"
_HEADER: Final = b"content-length:"
MAX_UNUSUAL_BYTES: Final = 2 * 1024 * 1024
"""A longer line that `msgspec` refuses is not read: 2 MiB may take 0.2 s, for all servers of a process. A
page of 20,000 tools has less.
"""
FIRST_OF_ID = frozenset(b'"-0123456789')
_FIRST_OF_OBJECT = b"{"[0]


def decode(line: bytes) -> Message:
    """The message in one line, with or without its line end. Never raises."""
    if not line.isascii():
        line = line.removeprefix(codecs.BOM_UTF8)  # what some programs on Windows write first
        try:
            line.decode()
        except UnicodeDecodeError:
            return _unreadable(line, "not_utf8")
    try:
        seen = _read_line(line)
        if has_white_space(line):  # the JSON is valid, so these bytes are white space
            seen = _read_line(line.translate(_WHITE_TO_BLANK))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _decode_unusual(line)
    raw_id = bytes(seen.id)
    result = b"" if seen.result is _NOTHING else bytes(seen.result)
    error = b"" if seen.error is _NOTHING else bytes(seen.error)
    if seen.method is None:
        return _answer(raw_id, result, error)
    return _call(raw_id, seen.method, bytes(seen.params), result, error)


def _call(raw_id: bytes, method: str, params: bytes, result: bytes, error: bytes) -> Message:
    if params and params[0] != _FIRST_OF_OBJECT:
        if params != b"null":
            return _invalid_line("bad_params", raw_id, "request")
        params = ABSENT
    if (result and result != b"null") or (error and error != b"null"):
        return _invalid_line("ambiguous", raw_id, "request")
    if not raw_id:
        return Notification(method, RawJson(params))
    if raw_id[0] not in FIRST_OF_ID:
        return _invalid_line("bad_id", raw_id, "request")
    if len(raw_id) > MAX_ID_BYTES:
        return _invalid_line("long_id", raw_id, "request")
    return Request(RawJson(raw_id), method, RawJson(params))


def _answer(raw_id: bytes, result: bytes, error: bytes) -> Message:
    if not result and not error:
        return _invalid_line("not_message", raw_id, "unknown")
    if error == b"null":
        error = b""
    elif error and result == b"null":
        result = b""
    if not raw_id or bool(result) == bool(error):
        return _invalid_line("bad_answer", raw_id, "answer")
    if raw_id[0] not in FIRST_OF_ID:
        return _invalid_line("bad_id", raw_id, "answer")
    if result:
        return ResultAnswer(RawJson(raw_id), RawJson(result))
    return ErrorAnswer(RawJson(raw_id), RawJson(error))


def _invalid_line(
    why: InvalidReason, raw_id: bytes, kind: Literal["request", "answer", "unknown"]
) -> InvalidLine:
    echo = raw_id[:1] != b"" and (raw_id[0] in FIRST_OF_ID or raw_id == b"null")
    return InvalidLine(why, TEXTS[why], RawJson(raw_id) if echo else None, kind)


def _unreadable(line: bytes, why: InvalidReason) -> InvalidLine:
    """The `InvalidLine` for a line that is not JSON. Its id may still be found near one of its ends."""
    raw_id, is_answer = scan_ends(line)
    return InvalidLine(why, TEXTS[why], raw_id, _KINDS[is_answer])


_KINDS: Final[dict[bool | None, Literal["request", "answer", "unknown"]]] = {
    False: "request",
    True: "answer",
    None: "unknown",
}


def _decode_unusual(line: bytes) -> Message:
    """Decode lines that the fast path refuses: half a surrogate pair, an object that is no message, or
    garbage.
    """
    if len(line) > MAX_UNUSUAL_BYTES:
        return _unreadable(line, "too_long")
    try:
        _check_object(without_half_pairs(line))
    except RecursionError:
        return _unreadable(line, "too_complex")
    except msgspec.ValidationError:  # no object; msgspec reads only the first byte
        return _invalid_line("batch" if line.lstrip().startswith(b"[") else "not_object", b"", "unknown")
    except (msgspec.DecodeError, UnicodeDecodeError):
        if line.isspace():
            return _invalid_line("blank", b"", "unknown")
        is_header = line[: len(_HEADER)].lower() == _HEADER
        return _unreadable(line, "header" if is_header else "not_json")
    found = fields(line.translate(_WHITE_TO_BLANK))
    if found is None:
        return _unreadable(line, "too_complex")
    raw_id, result, error = found.get("id", b""), found.get("result", b""), found.get("error", b"")
    method = found.get("method", b"null")
    has_method = method != b"null"
    if key_text(found.get("jsonrpc", b"")) != "2.0":
        kind = _KINDS[False if has_method else bool(result or error) or None]
        return _invalid_line("bad_version", raw_id, kind)
    if not has_method:
        return _answer(raw_id, result, error)
    name = key_text(method)
    if name is None:
        return _invalid_line("bad_method", raw_id, "request")
    return _call(raw_id, name, found.get("params", b""), result, error)


def has_white_space(line: bytes) -> bool:
    """True if a valid line holds a tab, carriage return or line feed. They stand outside of strings."""
    return _CR in line or _TAB in line or _LF in line


def quote(text: str) -> RawJson:
    """A text as a JSON string. Half surrogate pairs (which no text should have) become `?`."""
    try:
        return RawJson(_write(text))
    except UnicodeEncodeError:
        return RawJson(_write(text.encode(errors="replace").decode()))


def quote_name(name: str) -> bytes:
    """A member's name as `fields` returns it, as JSON: no longer than it was, also with half a surrogate
    pair.
    """
    try:
        return _write(name)
    except UnicodeEncodeError:
        return json.dumps(name, ensure_ascii=False).encode(errors="backslashreplace")


def request_line(raw_id: RawJson | int, method: str, params: RawJson) -> bytes:
    """The line of a request with the given id. `params`: `ABSENT` for none."""
    number = b"%d" % raw_id if isinstance(raw_id, int) else raw_id
    if not params:
        return b'{"jsonrpc":"2.0","id":%b,"method":%b}\n' % (number, quote(method))
    return b"".join(
        (b'{"jsonrpc":"2.0","id":', number, b',"method":', quote(method), b',"params":', params, b"}\n")
    )


def notification_line(method: str, params: RawJson) -> bytes:
    """The line of a notification. `params`: `ABSENT` for none."""
    if not params:
        return b'{"jsonrpc":"2.0","method":%b}\n' % quote(method)
    return b"".join((b'{"jsonrpc":"2.0","method":', quote(method), b',"params":', params, b"}\n"))


def result_line(raw_id: RawJson, result: RawJson) -> bytes:
    """The line of an answer with a result."""
    return b"".join((b'{"jsonrpc":"2.0","id":', raw_id, b',"result":', result, b"}\n"))


def error_line(raw_id: RawJson, code: int, message: str, data: RawJson = ABSENT) -> bytes:
    """The line of an error made by carpool. `raw_id`: `null` if the id of the request could not be read."""
    if data:
        body = b'{"code":%d,"message":%b,"data":%b}' % (code, quote(message), data)
    else:
        body = b'{"code":%d,"message":%b}' % (code, quote(message))
    return error_body_line(raw_id, RawJson(body))


def is_error_line(line: bytes, raw_id: RawJson) -> bool:
    """True if a line of `result_line` or `error_line`, an answer to this id, holds an error."""
    return line.startswith(b'"error":', len(raw_id) + _BEFORE_AND_AFTER_ID)


def error_body_line(raw_id: RawJson, error: RawJson) -> bytes:
    """The line of an answer with an existing error object."""
    return b"".join((b'{"jsonrpc":"2.0","id":', raw_id, b',"error":', error, b"}\n"))
