r"""Reads JSON with comments and trailing commas, and records the line of every key.

Owns the grammar of configuration files: JSON (RFC 8259) plus `//` and `/* */` comments and one trailing comma
in a list or object. Invariants: any text gives a value or at least one problem, never an exception; a key
written twice is a problem that names both lines; nothing deeper than `MAX_DEPTH` is read, and no more values
than the caller allows.

Written here because the typed readers on PyPI either know no positions or accept duplicate keys silently.

Knows nothing of: files, settings, the meaning of keys.
"""

import json
import re
import sys
from bisect import bisect_right
from typing import Final, NamedTuple, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from carpool_protocol.config.text.problems import ConfigProblem, KeyPath, render_path, shorten

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]

MAX_DEPTH: Final = 64

_BLANK = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|/\*(?s:.*?)\*/)*+")
_STRING = re.compile(r'"[^"\\\x00-\x1f]*+(?:\\[^\x00-\x1f][^"\\\x00-\x1f]*+)*+"')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?(?![A-Za-z0-9_.])")
_WORD = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*+")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_WORDS: Final[dict[str, JsonValue]] = {"true": True, "false": False, "null": None}
_FOREIGN_WORDS: Final = frozenset({"True", "False", "None", "NaN", "Infinity", "undefined", *_WORDS})
_NUMBER_CHARACTERS: Final = 64


class Span(NamedTuple):
    """Positions of a member in the text."""

    start: int
    """Begin of the key; of a root, begin of the value."""
    value: int
    end: int
    """Position behind the value."""


class ParsedJson(Struct, frozen=True):
    """The result of parsing one text."""

    value: JsonValue
    lines: dict[KeyPath, int]
    """The line of every key and list element, from 1. The root `()` is the begin of the value."""
    problems: list[ConfigProblem]
    spans: dict[KeyPath, Span]
    """Positions of each member of an object, and of the root `()`."""
    doubles: list[ConfigProblem]
    """Those of the problems that are a key written twice. The last one counts in `value`."""
    complete: bool
    """True: the text was read to its end. False: its grammar broke, and `value` is meaningless."""


def without_nulls(parsed: ParsedJson) -> ParsedJson:
    """Return the same text without the members of objects whose value is `null`, at all depths."""
    dropped: set[KeyPath] = set()

    def kept(value: JsonValue, path: KeyPath) -> JsonValue:
        if isinstance(value, list):
            return [kept(each, (*path, at)) for at, each in enumerate(value)]
        if not isinstance(value, dict):
            return value
        dropped.update((*path, key) for key, each in value.items() if each is None)
        return {key: kept(each, (*path, key)) for key, each in value.items() if each is not None}

    value = kept(parsed.value, ())
    lines = {path: line for path, line in parsed.lines.items() if path not in dropped}
    return replace(parsed, value=value, lines=lines)


def skip_blank(text: str, at: int) -> int:
    """The next position that is neither white space nor within a comment."""
    found = _BLANK.match(text, at)
    assert found is not None  # it also matches an empty text
    return found.end()


class _Stop(Exception):  # noqa: N818  # control flow inside this file: the rest of the text cannot be read
    def __init__(self, problem: ConfigProblem) -> None:
        self.problem = problem


class ValueBudget:
    """The number of values (members and elements at all depths) that may still be read, of several texts
    together.
    """

    def __init__(self, values: int = sys.maxsize) -> None:
        self.all = self.left = values


def parse(
    text: str, file: str, *, least: str = '{ "mcpServers": {} }', allowance: ValueBudget | None = None
) -> ParsedJson:
    """Read one value. `file`: the name in problems; `least`: an example for an empty file.

    The values read are subtracted from the `allowance`.
    """
    reader = _Reader(text, file, least, allowance or ValueBudget())
    try:
        return ParsedJson(
            reader.document(), reader.lines, reader.problems, reader.spans, reader.doubles, complete=True
        )
    except _Stop as stop:
        return ParsedJson(None, reader.lines, [*reader.problems, stop.problem], {}, [], complete=False)
    finally:
        reader.allowance.left -= len(reader.lines)


class _Reader:
    """One pass over one text: a position, and the results so far."""

    def __init__(self, text: str, file: str, least: str, allowance: ValueBudget) -> None:
        self.text = text
        self.file = file
        self.least = least
        self.allowance = allowance
        self.at = 1 if text.startswith("\ufeff") else 0  # editors on Windows write a byte order mark
        self.lines: dict[KeyPath, int] = {}
        self.problems: list[ConfigProblem] = []
        self.spans: dict[KeyPath, Span] = {}
        self.doubles: list[ConfigProblem] = []
        self._line_ends = [found.start() for found in re.finditer("\n", text)]

    def line(self, position: int) -> int:
        return bisect_right(self._line_ends, position - 1) + 1

    def stop(self, path: KeyPath, text: str, position: int | None = None) -> NoReturn:
        line = self.line(self.at if position is None else position)
        raise _Stop(ConfigProblem(self.file, line, render_path(path), text))

    def document(self) -> JsonValue:
        self.skip(())
        if self.at == len(self.text):
            self.stop((), f"the file is empty; write at least {self.least}")
        self.lines[()] = self.line(self.at)
        start = self.at
        value = self.read(())
        self.spans[()] = Span(start, start, self.at)
        self.skip(())
        if self.at != len(self.text):
            self.stop((), f"{self.found()} after the end of the value; is there a bracket too many?")
        return value

    def skip(self, path: KeyPath) -> None:
        """Skip white space and comments."""
        self.at = skip_blank(self.text, self.at)
        if self.text.startswith("/*", self.at):
            self.stop(path, "this comment is not closed: */ is missing")

    def found(self) -> str:
        """The next token, for people. Words are not repeated: one may be a secret without its quotes."""
        if self.at >= len(self.text):
            return "the end of the file"
        word = _WORD.match(self.text, self.at)
        if word is None:
            return shorten(self.text[self.at])
        return word.group() if word.group() in _FOREIGN_WORDS else "a word without double quotes"

    def read(self, path: KeyPath) -> JsonValue:
        if len(path) > MAX_DEPTH:
            self.stop(path[:4], f"nested deeper than {MAX_DEPTH} levels")
        if len(self.lines) > self.allowance.left:
            most = self.allowance.all
            self.stop((), f"is not read: with it the files of a project hold more than {most} values")
        match self.text[self.at : self.at + 1]:
            case "{":
                return self.read_object(path)
            case "[":
                return self.read_list(path)
            case '"':
                return self.read_string(path)
            case _:
                return self.read_scalar(path)

    def read_object(self, path: KeyPath) -> JsonValue:
        value: dict[str, JsonValue] = {}
        opened = self.at
        self.at += 1
        while True:
            self.skip(path)
            if self.take("}"):
                return value
            if self.at == len(self.text):
                self.stop(path, "this { is not closed: } is missing", opened)
            if self.text[self.at] != '"':
                self.stop(path, f"expected a key in double quotes or }}, found {self.found()}")
            start = self.at
            line = self.line(start)
            key = self.read_string(path)
            inner = (*path, key)
            self.skip(inner)
            if not self.take(":"):
                self.stop(inner, f"expected : after the key, found {self.found()}")
            self.skip(inner)
            if key in value:
                twice = f"written twice, also on line {self.lines[inner]}; keep one"
                self.doubles.append(ConfigProblem(self.file, line, render_path(inner), twice))
                self.problems.append(self.doubles[-1])
            self.lines[inner] = line
            begin = self.at
            value[key] = self.read(inner)
            self.spans[inner] = Span(start, begin, self.at)
            self.separate(path, "}")

    def read_list(self, path: KeyPath) -> JsonValue:
        value: list[JsonValue] = []
        opened = self.at
        self.at += 1
        while True:
            self.skip(path)
            if self.take("]"):
                return value
            if self.at == len(self.text):
                self.stop(path, "this [ is not closed: ] is missing", opened)
            inner = (*path, len(value))
            self.lines[inner] = self.line(self.at)
            begin = self.at
            value.append(self.read(inner))
            self.spans[inner] = Span(begin, begin, self.at)
            self.separate(path, "]")

    def separate(self, path: KeyPath, closing: str) -> None:
        """After a member: skip a comma, or stay at the closing mark."""
        self.skip(path)
        if not self.take(",") and self.at < len(self.text) and self.text[self.at] != closing:
            self.stop(path, f"expected , or {closing}, found {self.found()}")

    def take(self, mark: str) -> bool:
        if self.text.startswith(mark, self.at):
            self.at += 1
            return True
        return False

    def read_string(self, path: KeyPath) -> str:
        found = _STRING.match(self.text, self.at)
        if found is None:
            self.stop(
                path, 'this string is not closed on its line: " is missing (a line break is written \\n)'
            )
        try:
            value = json.loads(found.group())
        except ValueError:
            self.stop(
                path, "this string holds an escape that JSON does not have (a backslash is written \\\\)"
            )
        assert isinstance(value, str)
        if _SURROGATE.search(value):
            self.stop(path, "this string holds half of a surrogate pair (\\ud800 … \\udfff alone)")
        self.at = found.end()
        return value

    def read_scalar(self, path: KeyPath) -> JsonValue:
        word = _WORD.match(self.text, self.at)
        if word is not None and word.group() in _WORDS:
            self.at = word.end()
            return _WORDS[word.group()]
        found = _NUMBER.match(self.text, self.at)
        if found is None:
            self.stop(path, f"expected a JSON value, found {self.found()}")
        digits = found.group()
        if len(digits) > _NUMBER_CHARACTERS:
            self.stop(path, "this number is too long")
        self.at = found.end()
        number: int | float = json.loads(digits)
        if number in (float("inf"), float("-inf")):
            self.stop(path, "this number is too large", found.start())
        return number
