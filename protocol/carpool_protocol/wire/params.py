"""Splits the params of a message into parts and joins them again, by cutting bytes.

Owns which params carpool reads: `name`, `_meta`, `progressToken`, `requestId`, `reason`, `cursor`. All others
(above all `arguments`) pass byte for byte, unknown fields too. Invariants:

- Carpool and later readers always read the same: params are written anew from the parts, so a key that stands
  twice leaves once (the last). A key that differs from one of ours only in case (`Name`, `_META`) is refused:
  readers that ignore case (Go, .NET) would let it replace the checked value.
- No bytes raise: params that cannot be cut are a `ParamsError`.

Everything here takes legal JSON that is free of control bytes, as `jsonrpc.decode` returns it.

Knows nothing of: the caller, existing names, open tokens.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

import msgspec
from msgspec import Raw, Struct, field

from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, RawJson
from carpool_protocol.wire.json_scan import MAX_MEMBERS, MAX_NAMES_BYTES, fields, key_text, members
from carpool_protocol.wire.jsonrpc import FIRST_OF_ID, MAX_ID_BYTES, has_white_space, quote, quote_name


class ParamsError(Struct, frozen=True):
    """Params that lack something or have a wrong form: the sender's fault. Becomes -32602."""

    text: str
    """A clause for people about the form, never with a value."""

    @property
    def sentence(self) -> str:
        """The clause as a sentence, to stand behind other sentences."""
        return capitalized_sentence(self.text)


def capitalized_sentence(clause: str) -> str:
    """Return a clause with a capital and a full stop. The name of a method keeps its small letter."""
    text = clause.removesuffix(".")
    is_method = "/" in text.partition(" ")[0]
    return f"{text if is_method else text[:1].upper() + text[1:]}."


class CallParams(Struct, frozen=True, gc=False):
    """The parts of the params of a `tools/call`."""

    name: str
    rest: RawJson
    """An object: the params without `name` and `_meta`."""
    meta: RawJson
    """An object: `_meta` without `progressToken`. `ABSENT` when there was no `_meta`."""
    token: RawJson
    """The raw `progressToken`, a string or an integer of at most `MAX_ID_BYTES`. `ABSENT` when there was
    none.
    """
    has_more: bool = False
    """`rest` may hold members other than `arguments`."""


_NOTHING = Raw()
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_KNOWN_BYTES = 1024
_SMALL_BYTES = 64 * 1024
"""A larger object is never read into a dict of everything: that could cost many times its size."""

_OWN = {name.casefold(): name for name in ("name", "uri", "arguments", "_meta")}
_OWN_IN_META = {"progresstoken": "progressToken"}

_SIZE = (
    f"an object of at most {MAX_MEMBERS} members, with names of at most {MAX_NAMES_BYTES // 1024} KiB in all"
)
_NOT_AN_OBJECT = ParamsError(f"the params must be {_SIZE}")
_BAD_META = ParamsError(f"_meta must be {_SIZE}")
_BAD_TOKEN = ParamsError(f"progressToken must be a string or an integer of at most {MAX_ID_BYTES} bytes")
_NO_TOKEN = ParamsError("progressToken is missing")
_BAD_NAME = ParamsError("the params must have a name, a valid string")
_BAD_ARGUMENTS = ParamsError("arguments must be an object")
_OF_ARGUMENTS = slice(len(b'{"arguments":'), len(b'{"arguments":') + 1)
"""The first byte of the arguments in `rest`: they may have megabytes, and are not copied for a look at it."""
_WITHOUT_ARGUMENTS = frozenset({EMPTY_OBJECT, b'{"arguments":null}'})
_BAD_CURSOR = ParamsError("cursor must be a string")


class _Call(Struct, forbid_unknown_fields=True, gc=False, rename="camel"):
    """The fast path of `split_call`: the params of all versions of the specification."""

    name: str
    arguments: Raw = _NOTHING
    meta: Raw = field(default=_NOTHING, name="_meta")
    task: Raw = _NOTHING
    """Dropped: carpool announces no tasks, and then a call is served as if `task` were absent (MCP
    2025-11-25, basic/utilities/tasks, "Task Support and Handling").
    """
    input_responses: Raw = _NOTHING
    request_state: Raw = _NOTHING


class _CallLine(Struct, gc=False):
    """The fast path of `split_call_line`."""

    jsonrpc: Literal["2.0"]
    method: Literal["tools/call"]
    id: Raw
    params: _Call
    result: Raw = _NOTHING
    error: Raw = _NOTHING


class _Progress(Struct, forbid_unknown_fields=True, gc=False, rename="camel"):
    """The fast path of `split_progress`."""

    progress_token: Raw
    progress: Raw = _NOTHING
    total: Raw = _NOTHING
    message: Raw = _NOTHING


_read_call = msgspec.json.Decoder(_Call).decode
_read_call_line = msgspec.json.Decoder(_CallLine).decode
_read_progress = msgspec.json.Decoder(_Progress).decode
_read_all = msgspec.json.Decoder(dict[str, Raw]).decode
_token_alone = re.compile(rb'\{"progressToken":(-?[0-9]{1,64}+|"[^"\\]{0,512}+")\}').fullmatch


def split_call(params: RawJson) -> CallParams | ParamsError:
    """The parts of the params of a `tools/call`."""
    try:
        seen = _read_call(params)
    except _UNREADABLE:
        return _split_unusual_call(params)
    return _split_seen(seen)


def split_call_line(line: bytes) -> tuple[RawJson, CallParams | ParamsError] | None:
    """Id and params of a usual `tools/call` line, read in one step.

    None for any other line, which needs `jsonrpc.decode`. `decode` and `split_call` give the same result as
    this function, more slowly.
    """
    try:
        if not line.isascii():
            line.decode()
        seen = _read_call_line(line)
    except _UNREADABLE:
        return None
    raw_id = bytes(seen.id)
    if len(raw_id) > MAX_ID_BYTES or raw_id[0] not in FIRST_OF_ID:
        return None
    if seen.result is not _NOTHING or seen.error is not _NOTHING:
        return None
    if has_white_space(line):  # valid JSON, but it must be one line for every reader (rule 1)
        return None
    return RawJson(raw_id), _split_seen(seen.params)


def _split_seen(seen: _Call) -> CallParams | ParamsError:
    arguments = seen.arguments
    has_more = False
    if seen.input_responses is seen.request_state is _NOTHING:
        rest = EMPTY_OBJECT if arguments is _NOTHING else RawJson(b'{"arguments":%b}' % bytes(arguments))
        if rest[_OF_ARGUMENTS] != b"{" and rest not in _WITHOUT_ARGUMENTS:
            return _BAD_ARGUMENTS
    else:
        if not _may_be_arguments(bytes(arguments)):
            return _BAD_ARGUMENTS
        rest = _join(
            (b'"arguments":', arguments),
            (b'"inputResponses":', seen.input_responses),
            (b'"requestState":', seen.request_state),
        )
        has_more = True
    if seen.meta is _NOTHING:
        return CallParams(seen.name, rest, ABSENT, ABSENT, has_more)
    meta = _split_meta_object(bytes(seen.meta))
    return CallParams(seen.name, rest, *meta, has_more) if isinstance(meta, tuple) else meta


def _may_be_arguments(raw: bytes) -> bool:
    """True for an object, for null, which some SDKs write for no arguments, and for nothing at all.

    MCP allows an object only. A shared server that does not check it might end, and with it others' calls.
    """
    return raw[:1] in {b"{", b""} or raw == b"null"


def _split_unusual_call(params: RawJson) -> CallParams | ParamsError:
    found = _fields(params)
    if found is None:
        return _NOT_AN_OBJECT
    raw_name = found.pop("name", b"")
    name = key_text(raw_name)
    if name is None:
        return _BAD_NAME
    if not _may_be_arguments(found.get("arguments", b"")):
        return _BAD_ARGUMENTS
    found.pop("task", None)
    split = _split_fields(found)
    if isinstance(split, ParamsError):
        return split
    return CallParams(name, *split, has_more=any(key != "arguments" for key in found))


def split_meta(params: RawJson) -> tuple[RawJson, RawJson, RawJson] | ParamsError:
    """The params of any other request as (rest, meta, token), as in `CallParams`; rest `ABSENT` for no
    params.
    """
    if not params:
        return ABSENT, ABSENT, ABSENT
    found = _fields(params)
    return _NOT_AN_OBJECT if found is None else _split_fields(found)


def _split_fields(found: dict[str, bytes]) -> tuple[RawJson, RawJson, RawJson] | ParamsError:
    meta = _split_meta_object(found.pop("_meta", b""))
    if isinstance(meta, ParamsError):
        return meta
    if stray := _wrong_case(found, _OWN):
        return stray
    return _object(found), *meta


def _split_meta_object(raw: bytes) -> tuple[RawJson, RawJson] | ParamsError:
    if not raw or raw == b"null":
        return ABSENT, ABSENT
    if alone := _token_alone(raw):
        return EMPTY_OBJECT, RawJson(alone[1])
    # A `_meta` that an agent repeats in every request (its version, its capabilities) is cut once.
    if len(raw) <= _KNOWN_BYTES and raw.find(b"progressToken") < 0 and raw.find(b"traceparent") < 0:
        return _split_known_meta(raw)
    return _split_any_meta(raw)


def _split_any_meta(raw: bytes) -> tuple[RawJson, RawJson] | ParamsError:
    found = _fields(raw)
    if found is None:
        return _BAD_META
    token = _token(found.pop("progressToken", b"null"))
    if token is None:
        return _BAD_TOKEN
    if not found:
        return EMPTY_OBJECT, token
    return _wrong_case(found, _OWN_IN_META) or (_object(found), token)


_split_known_meta = lru_cache(256)(_split_any_meta)


def _token(raw: bytes) -> RawJson | None:
    """A valid token, `ABSENT` for null, None for a value that is neither a string nor an integer, or is too
    long.
    """
    if raw == b"null":
        return ABSENT
    if len(raw) > MAX_ID_BYTES:
        return None
    return RawJson(raw) if raw[:1] == b'"' or raw.removeprefix(b"-").isdigit() else None


def _fields(raw: bytes) -> dict[str, bytes] | None:
    """All members by name. None if `raw` is no object or has too many members."""
    if len(raw) <= _SMALL_BYTES:
        try:
            read = _read_all(raw)
        except _UNREADABLE:  # half a surrogate pair, or no object
            return fields(raw)
        return {key: bytes(value) for key, value in read.items()} if len(read) <= MAX_MEMBERS else None
    return fields(raw)


def _wrong_case(found: Mapping[str, bytes], own: Mapping[str, str]) -> ParamsError | None:
    """The refusal of a key that differs from one of `own` only in case; None if there is none."""
    for key in found:
        name = own.get(key.casefold())
        if name is not None and name != key:
            return ParamsError(f"a key differs from {name} only in upper and lower case")
    return None


def _object(found: Mapping[str, bytes]) -> RawJson:
    return RawJson(b"{%b}" % b",".join(quote_name(key) + b":" + raw for key, raw in found.items()))


def _join(*found: tuple[bytes, Raw]) -> RawJson:
    return RawJson(b"{%b}" % b",".join([key + bytes(raw) for key, raw in found if raw is not _NOTHING]))


def call_params(name: str, rest: RawJson, meta: RawJson, token: RawJson) -> RawJson:
    """The params of a `tools/call` from the parts of `split_call` (`token` may be another)."""
    if token and not meta and rest.startswith(b'{"'):  # nearly every call
        return RawJson(b'{"name":%b,"_meta":{"progressToken":%b},%b' % (quote(name), token, rest[1:]))
    inner = rest[1:-1].strip()
    parts = [b'{"name":', quote(name)]
    if inner:
        parts += (b",", inner)
    if meta or token:
        parts += (b',"_meta":', _meta_object(meta, token))
    parts.append(b"}")
    return RawJson(b"".join(parts))


def meta_params(rest: RawJson, meta: RawJson, token: RawJson) -> RawJson:
    """The params of any other request from the parts of `split_meta`."""
    if not meta and not token:
        return rest
    inner = rest[1:-1].strip()
    return RawJson(b'{%b"_meta":%b}' % (inner + b"," if inner else b"", _meta_object(meta, token)))


def _meta_object(meta: RawJson, token: RawJson) -> bytes:
    if not token:
        return meta
    inner = meta[1:-1].strip()
    return b'{"progressToken":%b%b%b}' % (token, b"," if inner else b"", inner)


def split_cancelled(params: RawJson) -> tuple[RawJson | None, str]:
    """The id of the request that a `notifications/cancelled` names and the reason; None and `""` if it has
    none. An id of more than `MAX_ID_BYTES` is none: no request has it.
    """
    found = _fields(params) or {}
    raw_id = found.get("requestId", b"")
    is_id = len(raw_id) <= MAX_ID_BYTES and (raw_id[:1] == b'"' or raw_id[:1] in _FIRST_OF_NUMBER)
    return RawJson(raw_id) if is_id else None, key_text(found.get("reason", b"")) or ""


_FIRST_OF_NUMBER = frozenset(b"%c" % byte for byte in b"-0123456789")


def split_progress(params: RawJson) -> tuple[RawJson, RawJson] | ParamsError:
    """The params of a `notifications/progress` as (token, rest without it)."""
    try:
        seen = _read_progress(params)
    except _UNREADABLE:
        found = _fields(params)
        if found is None:
            return _NOT_AN_OBJECT
        raw_token = found.pop("progressToken", b"null")
        if stray := _wrong_case(found, _OWN_IN_META):
            return stray
        rest = _object(found)
    else:
        raw_token = bytes(seen.progress_token)
        rest = _join(
            (b'"progress":', seen.progress), (b'"total":', seen.total), (b'"message":', seen.message)
        )
    token = _token(raw_token)
    if token is None:
        return _BAD_TOKEN
    return (token, rest) if token else _NO_TOKEN


def progress_line(token: RawJson, rest: RawJson) -> bytes:
    """A whole `notifications/progress` line from the parts of `split_progress` (`token` may be another)."""
    inner = rest[1:-1].strip()
    return b"".join(
        (
            b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":',
            token,
            b"," if inner else b"",
            inner,
            b"}}\n",
        )
    )


def list_params(params: RawJson) -> str | ParamsError | None:
    """The cursor of a list request; None for the first page."""
    if not params:
        return None
    found = _fields(params)
    if found is None:
        return _NOT_AN_OBJECT
    raw = found.get("cursor", b"null")
    if raw == b"null":
        return None
    cursor = key_text(raw)
    return _BAD_CURSOR if cursor is None else cursor


def rewrite_tool(definition: RawJson, *, name: str, description_prefix: str) -> RawJson:
    """A tool's definition with another name and a prefix of its description (`""`: no prefix).

    Every other byte stays. A tool without a description gets the prefix as its description. A definition that
    is no object becomes one with the name only.
    """
    cuts = members(definition)
    if cuts is None:
        return RawJson(b'{"name":%b}' % quote(name))
    parts: list[bytes] = []
    named, described, pos = False, not description_prefix, 0
    for cut in cuts:
        key = (key_text(definition[cut.key : cut.key_end]) or "").casefold()
        value = definition[cut.value : cut.value_end]
        if key == "name":
            named, value = True, quote(name)
        elif key == "description" and description_prefix and value[:1] == b'"':
            described, value = True, quote(description_prefix)[:-1] + value[1:]
        else:
            continue
        parts += (definition[pos : cut.value], value)
        pos = cut.value_end
    parts.append(definition[pos:])
    first = b"" if named else b'"name":%b,' % quote(name)
    if not described:
        first += b'"description":%b,' % quote(description_prefix.rstrip())
    whole = b"".join(parts).lstrip()
    if not first:
        return RawJson(whole)
    return RawJson(b"{" + (first if cuts else first[:-1]) + whole[1:])
