r"""Finds where values begin and end in a line, without decoding it.

For lines that `msgspec` does not read (rule 16): over the cap, broken, or legal JSON with half a surrogate
pair (`"\ud83d"`: the result of `JSON.stringify` on a cut emoji). Its tools:

- `TopLevelScanner` finds the top-level `id` of a line that arrives in chunks and is not kept;
- `scan_ends` finds it in a kept line, from the beginning and the end only, so that its work is bounded;
- `members` cuts one JSON object into its keys and values, as offsets (`fields`: as names and raw values), a
  long one with one pass of `msgspec`;
- `has_too_many_parts` tells if a value has more parts than may be looked at in one step;
- `without_half_pairs` copies a text so that `msgspec` can check it, with the same length and offsets.

The rest is done by regular expressions without backtracking (possessive, so linear), with one Python step per
token of the top level and per run of deeper brackets; nothing recurses. The steps for one text are bounded,
whatever its length is: what needs more is not cut, or not scanned to its end. If a key stands twice the last
one counts, as in every common reader.

Knows nothing of: the meaning of messages, UTF-8 (bytes are compared, never decoded).
"""

import json
import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Literal, NamedTuple, TypeVar

import msgspec

from carpool_protocol.ids import RawJson

MAX_TOKEN_BYTES = 1024
"""The longest key or id that the scanner carries from one chunk to the next. A longer one counts as not
seen.
"""

MAX_MEMBERS = 1000
"""An object with more members is not cut: no message has that many, and the cuts would take many times its
size.
"""

MAX_NAMES_BYTES = 256 * 1024
"""An object whose names are longer together, as written, is not cut. Each name is decoded, compared without
regard to case and written again, so a name of megabytes would take seconds. A shorter object cannot have so
much, so an object that was cut once can be cut again.
"""

MAX_PARTS = 20_000
"""The limit for a value whose every part is looked at in one step (`has_too_many_parts`). That takes about a
fifth of a second at most. No message has nearly as many.
"""

STEPS = 10_000
"""Limit of effort for one text, of any length: some 10 ms.

Real payloads need far less. A text that was built to cost more (towers of brackets) is given up, so that it
does not delay all others.
"""

LONG_BYTES = 16 * 1024
"""A longer object is cut by `msgspec`, which takes a tenth of the time. Only a short one repays no decoder of
its own.
"""

ENDS_BYTES = 1024 * 1024
"""So much of the beginning of a refused line is scanned for its id. To scan all of a long line takes seconds,
for all servers of a process.
"""
_LAST_BYTES = 4 * MAX_TOKEN_BYTES
"""And so much of its end: servers that do not write the id first write it last, or before short members."""

_STRING = rb'"(?s:[^"\\]++|\\.)*+"'
_FLAT = rb'[^"{}\[\]]++|' + _STRING
_NESTED = rb"[{\[](?:" + _FLAT + rb")*+[}\]]"
for _level in range(5):  # six levels in all: real payloads have no more, so C code passes over them
    _NESTED = rb"[{\[](?:" + _FLAT + rb"|" + _NESTED + rb")*+[}\]]"
_BLANK = rb"[ \t\r\n]*+"
_SCALAR = rb'[^ \t\r\n",:{}\[\]]++'

_string = re.compile(_STRING).match
_string_rest = re.compile(rb'(?s:[^"\\]++|\\.)*+').match
_inside = re.compile(rb"(?:" + _FLAT + rb"|" + _NESTED + rb")*+").match
"""Content of a container up to a bracket that closes it or opens more than six levels."""
_COUNTABLE = rb'[^"{}\[\]]*+(?:"[^"\\{}\[\]]*+"[^"{}\[\]]*+)*+'
"""Text between brackets that are counted as bytes: no bracket, no string that could hold one."""
_opening = re.compile(rb"(?:[{\[]%b)++" % _COUNTABLE).match
_closing = re.compile(rb"(?:[}\]]%b)++" % _COUNTABLE).match
_closing_only = re.compile(rb"[}\]]++").match
_blank = re.compile(_BLANK).match
_before_key = re.compile(rb'[^"{}\[\]]*+').match
_after_value = re.compile(rb'[^",{}\[\]]*+').match
_scalar = re.compile(_SCALAR).match
_uninteresting = re.compile(
    rb'(?:%b"(?!(?:id|method|result|error)")[^"\\]*+"%b:%b(?:%b|%b|%b)%b,)*+'
    % (_BLANK, _BLANK, _BLANK, _SCALAR, _STRING, _NESTED, _BLANK)
).match
"""Whole members of the top level that the scanner does not look for."""

_legal_number = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?").fullmatch
_legal_string = re.compile(rb'"(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+"').fullmatch

_half_pair = re.compile(
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"  # a first half without a second
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD])[c-fC-F][0-9a-fA-F]{2})"  # a second half without a first
)
_COLON_AND_SHORT = _BLANK + rb":" + _BLANK + rb"(" + _STRING + rb"|" + _SCALAR + rb")" + _BLANK
_last_id = re.compile(
    rb"%b(?:,%b%b%b)*+}%b" % (_COLON_AND_SHORT, _BLANK, _STRING, _COLON_AND_SHORT, _BLANK)
).fullmatch
"""What follows the key of an id that only short members follow, up to the end of the line."""

_read_text = msgspec.json.Decoder(str).decode

_QUOTE, _BACKSLASH, _COMMA, _COLON = b'"\\,:'
_OPEN_OBJECT, _OPEN_ARRAY, _CLOSE_OBJECT, _CLOSE_ARRAY = b"{[}]"

T = TypeVar("T")

Phase = Literal["key", "colon", "value", "after"]
"""The next expected token in the top-level object."""


def without_half_pairs(text: bytes) -> bytes:
    r"""A copy without half surrogate pairs, of the same length and structure.

    It is legal JSON exactly if `text` is, for a reader that accepts half pairs. Use it for checks and
    offsets, not for content: escaped backslashes become `__`, which is legal in a string only, as they are,
    because after them a `\ud83d` is no escape; and each `\ud` becomes `\uf`, which begins no half of a pair,
    also where it stood in a whole one. So it costs no step of Python for each.
    """
    return text.replace(rb"\\", b"__").replace(rb"\ud", rb"\uf").replace(rb"\uD", rb"\uf")


def replace_half_pairs(text: bytes) -> bytes:
    r"""A copy with `\ufffd` for each half surrogate pair, and else the same: for content that `msgspec` is to
    read. In one pass, without a step of Python for each.
    """
    if b"\0" in text:
        return text  # no legal JSON, so no reader takes it
    hidden = text.replace(rb"\\", b"\0\0")  # after them a `\ud83d` is no escape
    return _half_pair.sub(rb"\\ufffd", hidden).replace(b"\0\0", rb"\\")


def read_despite_half_pairs(read: Callable[[bytes], T], raw: bytes) -> T:
    """Read JSON that another program wrote, with U+FFFD for each half surrogate pair. `read`: of `msgspec`,
    whose errors it raises.
    """
    try:
        return read(raw)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):
        return read(replace_half_pairs(raw))


def legal_id(raw: bytes) -> bool:
    """True if an answer can carry these bytes as its id: a JSON string, number or null, on one line."""
    if raw[:1] != b'"':
        return raw == b"null" or _legal_number(raw) is not None
    if _legal_string(raw) is None:
        return False
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def key_text(raw_key: bytes) -> str | None:
    """A key as text, with escapes resolved. None if it is no legal text (broken, or half a surrogate
    pair).
    """
    try:
        return _read_text(raw_key)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class Member(NamedTuple):
    """One member of an object, as offsets: `raw[key:key_end]` with its quotes, `raw[value:value_end]`."""

    key: int
    key_end: int
    value: int
    value_end: int


def members(raw: bytes) -> list[Member] | None:
    """The members of one JSON object in their order, doubles included.

    For legal JSON only (checked by the caller, through `without_half_pairs` if needed). None if `raw` does
    not begin as an object, has more than `MAX_MEMBERS` or `MAX_NAMES_BYTES`, or costs more than `STEPS`.
    """
    if len(raw) > LONG_BYTES:
        try:
            return _members_of_long(raw)
        except _TooMuchToCutError:
            return None
        except _UNREADABLE:  # nested too deeply for `msgspec`, or no legal JSON
            pass
    found: list[Member] = []
    left_bytes = MAX_NAMES_BYTES
    pos = _skip_blank(raw, 0)
    if raw[pos : pos + 1] != b"{":
        return None
    pos = _skip_blank(raw, pos + 1)
    if raw[pos : pos + 1] == b"}":
        return found
    while len(found) < MAX_MEMBERS:
        key = _string(raw, pos)
        if key is None or (left_bytes := left_bytes - (key.end() - pos)) < 0:
            return None
        colon = _skip_blank(raw, key.end())
        if raw[colon : colon + 1] != b":":
            return None
        value = _skip_blank(raw, colon + 1)
        value_end = _value_end(raw, value)
        if value_end is None:
            return None
        found.append(Member(pos, key.end(), value, value_end))
        pos = _skip_blank(raw, value_end)
        follows = raw[pos : pos + 1]
        if follows == b"}":
            return found
        if follows != b",":
            return None
        pos = _skip_blank(raw, pos + 1)
    return None


class _Key:
    """A key of a long object. Equal to no other, so that `msgspec` keeps each of doubles in its place."""

    __slots__ = ()


class _TooMuchToCutError(Exception):
    """An object has more than `MAX_MEMBERS` or `MAX_NAMES_BYTES`."""


_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def _members_of_long(raw: bytes) -> list[Member]:
    """`members` of an object whose values `msgspec` measures. Raises `_UNREADABLE` and
    `_TooMuchToCutError`.
    """
    try:
        values = _values(raw)
    except _UNREADABLE:
        values = _values(without_half_pairs(raw))
    found: list[Member] = []
    left_bytes = MAX_NAMES_BYTES
    pos = _skip_blank(raw, 0)
    for value in values:
        key = _skip_blank(raw, pos + 1)  # behind the bracket or comma
        key_end = _past(_string, raw, key)
        left_bytes -= key_end - key
        if left_bytes < 0:
            raise _TooMuchToCutError
        begin = _skip_blank(raw, _skip_blank(raw, key_end) + 1)
        end = begin + memoryview(value).nbytes
        found.append(Member(key, key_end, begin, end))
        pos = _skip_blank(raw, end)
    return found


def _values(raw: bytes) -> Iterable[msgspec.Raw]:
    """The values of an object, in their order."""
    keys = 0
    left_chars = MAX_NAMES_BYTES

    def key_read(_type: type, key: object) -> _Key:
        nonlocal keys, left_chars
        keys += 1
        left_chars -= len(str(key))
        # Before the next one is read: millions of them would take much memory.
        if keys > MAX_MEMBERS or left_chars < 0:
            raise _TooMuchToCutError
        return _Key()

    return msgspec.json.Decoder(dict[_Key, msgspec.Raw], dec_hook=key_read).decode(raw).values()


@cache
def _many_parts(most: int) -> "re.Pattern[bytes]":
    return re.compile(rb'(?:[^",{\[]*+(?:%b[^",{\[]*+)*+[,{\[]){%d}+' % (_STRING, most))


def has_too_many_parts(raw: bytes, most: int = MAX_PARTS) -> bool:
    """True if a legal JSON value has so many parts: commas and opening brackets outside of strings, at any
    depth.

    Elements and members cost many times their size where each is cut out, and a limit in bytes does not
    bound them. A text of any length is one part, whatever it holds.
    """
    return (
        raw.count(b",") + raw.count(b"{") + raw.count(b"[") >= most
        and _many_parts(most).match(raw) is not None
    )


def fields(raw: bytes, readable: bytes | None = None) -> dict[str, bytes] | None:
    """The members of one legal JSON object by name, the last of doubles. None where `members` returns None.
    `readable`: `without_half_pairs` of it, from who has that already.

    Unlike `msgspec` it reads keys with half a surrogate pair (as Python text that holds it too).
    """
    cuts = members(raw if readable is None else readable)
    if cuts is None:
        return None
    found: dict[str, bytes] = {}
    for cut in cuts:
        raw_key = raw[cut.key : cut.key_end]
        key = key_text(raw_key)
        if key is None:
            try:
                key = json.loads(raw_key)
            except (ValueError, RecursionError):
                continue
        found[key] = raw[cut.value : cut.value_end]
    return found


def _past(pattern: Callable[[bytes, int], re.Match[bytes] | None], data: bytes, pos: int) -> int:
    found = pattern(data, pos)
    return found.end() if found else pos


def _skip_blank(data: bytes, pos: int) -> int:
    return _past(_blank, data, pos)


def _value_end(raw: bytes, pos: int) -> int | None:
    if raw[pos : pos + 1] in {b"{", b"["}:
        pos, depth, _ = _skip_nested(raw, pos + 1, 1, 0, STEPS)
        return None if depth else pos
    found = _string(raw, pos) or _scalar(raw, pos)
    return found.end() if found else None


def _skip_nested(data: bytes, pos: int, depth: int, floor: int, steps: int) -> tuple[int, int, int]:
    """Skip brackets until the nesting is down to `floor`.

    Stops early at the end of the data, at an unclosed string, or when the steps are used up. Returns the
    position, the nesting there and the remaining steps.
    """
    end = len(data)
    while depth > floor and pos < end and steps > 0:
        steps -= 1
        if inside := _inside(data, pos):
            pos = inside.end()
        if found := _opening(data, pos):
            depth += data.count(b"{", pos, found.end()) + data.count(b"[", pos, found.end())
            pos = found.end()
        elif found := _closing(data, pos):
            step = data.count(b"}", pos, found.end()) + data.count(b"]", pos, found.end())
            if depth - step > floor:
                depth -= step
                pos = found.end()
            else:  # text behind the last bracket is not inside any more
                step = min(_past(_closing_only, data, pos) - pos, depth - floor)
                depth -= step
                pos += step
        else:
            break
    return pos, depth, steps


def scan_ends(line: bytes) -> tuple[RawJson | None, bool | None]:
    """The id of a line and its `is_answer`, as `TopLevelScanner` finds them in its first `ENDS_BYTES`.

    Of a line that is longer or was given up, that is still open there and has had no id, the id may also
    stand at the end, before short members at most. Text that looks like that in legal JSON is at the top
    level: a bracket would follow otherwise. In a line that was cut behind an inner object it may be the id of
    that object. An id in the middle is not found.
    """
    scanner = TopLevelScanner()
    scanner.feed(line[:ENDS_BYTES])
    is_whole = len(line) <= ENDS_BYTES and not scanner.was_given_up
    if is_whole or "id" in scanner.keys or not scanner.is_inside:
        return scanner.id, scanner.is_answer
    end = line[-_LAST_BYTES:]
    key = end.rfind(b'"id"')
    if key < 1 or end[:key].rstrip()[-1:] != b",":
        return None, scanner.is_answer
    found = _last_id(end, key + len(b'"id"'))
    raw = found[1] if found else b""
    is_answer = scanner.is_answer
    return (RawJson(raw) if raw and legal_id(raw) else None), is_answer


class TopLevelScanner:
    """Finds the id of a line and its kind of message while the line passes in chunks.

    Takes any bytes. Text after the top-level object is ignored, and a line that does not begin with an object
    has no id: a log line that quotes a message must not end a call. A line that costs too much effort
    (`STEPS`) is given up; the results up to then hold.
    """

    __slots__ = (
        "_carry",
        "_depth",
        "_done",
        "_escaped",
        "_id",
        "_in_string",
        "_key",
        "_phase",
        "_steps",
        "keys",
    )

    def __init__(self) -> None:
        self.keys: set[str] = set()
        """The keys among `id`, `method`, `result`, `error` that were seen at the top level."""
        self._id: bytes | None = None
        self._depth = 0
        self._phase: Phase = "key"
        self._key: str | None = None
        self._carry = b""
        """The beginning of an incomplete key or id."""
        self._in_string = False
        self._escaped = False
        """The chunk ended between a backslash and what it escapes."""
        self._done = False
        self._steps = STEPS

    @property
    def id(self) -> RawJson | None:
        """The raw id, byte for byte. None if there was none, or none that may be echoed (`legal_id`)."""
        return RawJson(self._id) if self._id is not None and legal_id(self._id) else None

    @property
    def is_inside(self) -> bool:
        """True while the object of the line has begun and not ended."""
        return self._depth > 0 and (not self._done or self.was_given_up)

    @property
    def was_given_up(self) -> bool:
        """True if the line has cost more than its `STEPS`."""
        return self._steps < 0

    @property
    def is_answer(self) -> bool | None:
        """False with a method, True with a result or an error, None with neither."""
        if "method" in self.keys:
            return False
        return True if self.keys & {"result", "error"} else None

    def feed(self, chunk: bytes) -> None:
        """Scan the next bytes of the line."""
        data = self._carry + chunk if self._carry else chunk
        self._carry = b""
        pos, end = 0, len(data)
        self._steps += 2  # a chunk of one byte needs no more
        while pos < end and not self._done:
            self._steps -= 1
            if self._steps < 0:
                self._done = True
            elif self._in_string:
                pos = self._pass_string(data, pos)
            elif self._depth > 1:
                pos, self._depth, self._steps = _skip_nested(data, pos, self._depth, 1, self._steps)
                if pos < end and self._depth > 1 and self._steps > 0:  # a string without an end
                    self._in_string = True
                    pos += 1
            elif self._depth == 1:
                pos = self._step(data, pos)
            else:
                pos = self._begin(data, pos)

    def _begin(self, data: bytes, pos: int) -> int:
        pos = _skip_blank(data, pos)
        if pos < len(data):
            self._done = data[pos] != _OPEN_OBJECT
            self._depth = 1
        return pos + 1

    def _pass_string(self, data: bytes, pos: int) -> int:
        if self._escaped:
            self._escaped = False
            pos += 1
        pos = _past(_string_rest, data, pos)
        if pos < len(data):
            self._escaped = data[pos] == _BACKSLASH
            self._in_string = self._escaped
        return pos + 1

    def _step(self, data: bytes, pos: int) -> int:
        """Scan one token of the top-level object."""
        if self._phase == "key":
            pos = _past(_before_key, data, _past(_uninteresting, data, pos))
        elif self._phase == "after":
            pos = _past(_after_value, data, pos)
        else:
            pos = _past(_blank, data, pos)
        if pos == len(data):
            return pos
        byte = data[pos]
        if byte == _QUOTE:
            return self._text(data, pos)
        if byte in {_OPEN_OBJECT, _OPEN_ARRAY}:
            self._value_is(None)
            self._depth = 2
        elif byte in {_CLOSE_OBJECT, _CLOSE_ARRAY}:
            self._done = True
        elif byte == _COMMA:
            self._phase = "key"
        elif self._phase == "value":
            return self._bare(data, pos)
        elif byte == _COLON:
            self._phase = "value"
        else:  # no colon after a key: broken, continue at the next comma
            self._phase = "after"
        return pos + 1

    def _text(self, data: bytes, pos: int) -> int:
        """Scan a string: a key, the id, or an irrelevant value."""
        wanted = self._phase == "key" or (self._phase == "value" and self._key == "id")
        found = _string(data, pos) if wanted else None
        if wanted and found is None and len(data) - pos <= MAX_TOKEN_BYTES:
            self._carry = data[pos:]
            return len(data)
        raw = found[0] if found else None
        if self._phase == "key":
            self._key_is(raw)
        else:
            self._value_is(raw)
        if found:
            return found.end()
        self._in_string = True
        return pos + 1

    def _bare(self, data: bytes, pos: int) -> int:
        """Scan a value without quotes or brackets."""
        found = _scalar(data, pos)
        if found is None:  # a second colon
            return pos + 1
        if self._key != "id":
            self._phase = "after"
        elif found.end() < len(data):
            self._value_is(found[0])
        elif found.end() - pos <= MAX_TOKEN_BYTES:
            self._carry = data[pos:]  # a number ends only where something else follows
        else:
            self._value_is(None)
        return found.end()

    def _key_is(self, raw: bytes | None) -> None:
        self._key = key_text(raw) if raw is not None and len(raw) <= MAX_TOKEN_BYTES else None
        if self._key in {"id", "method", "result", "error"}:
            self.keys.add(self._key)
        self._phase = "colon"

    def _value_is(self, raw: bytes | None) -> None:
        if self._phase == "value" and self._key == "id":
            self._id = raw if raw is not None and len(raw) <= MAX_TOKEN_BYTES else None
        self._phase = "after"
