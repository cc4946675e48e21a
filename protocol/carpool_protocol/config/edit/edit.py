"""Edits some members of a configuration file and leaves everything else as its author wrote it.

Owns the edits that verbs make of it: comments, order and layout stay. Invariant: the result reads as the
original with these changes, or there is no result (`CannotEditError`).

Pure. Knows nothing of: files, the meaning of keys.
"""

import copy
import json
import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from carpool_protocol.config.text.jsonc import JsonValue, ParsedJson, Span, parse, skip_blank
from carpool_protocol.config.text.problems import KeyPath

_STEP = "  "
_MOST = 500
"""Maximum number of members that one `swap_members` changes: each change reads the object again."""
_INDENT = re.compile(r"[ \t]*")


class CannotEditError(ValueError):
    """A program cannot make this edit; a person must. The text says why."""


class MemberSwap(NamedTuple):
    """Members to remove from an object, and members to add."""

    out: Collection[str]
    put_in: Mapping[str, JsonValue]


_NOWHERE = Span(0, 0, 0)


def set_member(text: str, path: KeyPath, value: JsonValue) -> str:
    """Set the member at `path` of a file with an object. Missing objects on the way are made; elements of
    lists must be there.

    Raises `CannotEditError`.
    """
    return set_members(text, path[:-1], {str(path[-1]): value})


def set_members(text: str, path: KeyPath, members: Mapping[str, JsonValue]) -> str:
    """Set several members of the object at `path`, as `set_member` does.

    The file is read once before and once after, for any number of members.
    """
    parsed = _parsed(text)
    expected = copy.deepcopy(parsed.value)
    holder = expected
    for key in path:
        if isinstance(holder, dict):
            holder = holder.setdefault(str(key), {})
        elif isinstance(holder, list) and isinstance(key, int) and key < len(holder):
            holder = holder[key]
        else:
            holder = None
    if not isinstance(holder, dict):
        raise CannotEditError("what is there already is not an object")
    holder.update(members)
    step = _step(text, parsed)
    existing = [(parsed.spans[*path, key], key) for key in members if (*path, key) in parsed.spans]
    known = {key for _, key in existing}
    changed = text
    if new := {key: value for key, value in members.items() if key not in known}:
        made = max(length for length in range(len(path) + 1) if path[:length] in parsed.spans)
        for key in reversed(path[made:]):
            new = {str(key): new}
        changed = _with_members(text, parsed, path[:made], new, step=step)
    for at, key in sorted(existing, reverse=True):  # existing members first, then the new ones
        value = _written(members[key], _indent_at(text, at.start), step)
        changed = changed[: at.value] + value + changed[at.end :]
    return _checked(changed, expected)


def append_element(text: str, path: tuple[str, ...], value: JsonValue) -> str:
    """Append an element to the existing list at `path`. Raises `CannotEditError`."""
    parsed = _parsed(text)
    expected = copy.deepcopy(parsed.value)
    holder = value_at(expected, path)
    if not isinstance(holder, list):
        raise CannotEditError("there is no list of servers")
    holder.append(value)
    return _checked(_with_members(text, parsed, path, [value], step=_step(text, parsed)), expected)


def remove_member(text: str, path: KeyPath) -> str:
    """Remove the member of an object, or the element of a list, at `path`.

    Raises `CannotEditError`, also if there is none.
    """
    parsed = _parsed(text)
    if path not in parsed.spans or not path:
        raise CannotEditError("it is not written there")
    expected = copy.deepcopy(parsed.value)
    holder = expected
    for key in path[:-1]:
        holder = holder[key]  # type: ignore[index] # the span shows that it is there
    del holder[path[-1]]  # type: ignore[union-attr,arg-type]
    at = parsed.spans[path]
    start, end = at.start, skip_blank(text, at.end)
    if text[end] == ",":
        end += 1
    else:  # the last one: remove the comma before it too
        end = at.end
        before = [span.end for span in _members(parsed, path[:-1]) if span.end <= start]
        if before:
            comma = skip_blank(text, max(before))
            text = text[:comma] + text[comma + 1 :]
            start, end = start - 1, end - 1
            if not text[comma:start].strip(" \t"):  # on the same line, as `_with_members` writes it
                start = comma
    line = text.rfind("\n", 0, start) + 1
    rest = re.compile(r"[ \t\r]*\n").match(text, end)
    if not text[line:start].strip() and rest is not None:
        start, end = line, rest.end()  # whole lines
    return _checked(text[:start] + text[end:], expected)


def swap_members(text: str, swaps: Mapping[tuple[str, ...], MemberSwap]) -> str:
    """Remove members from objects and add others, by the paths of the objects. No path may lie within
    another.

    Every byte outside of these objects stays; inside, indentation and line ends are those of the file. The
    file, which may be long, is read once before and once after. Raises `CannotEditError`.
    """
    parsed = _parsed(text)
    if sum(len(each.out) + len(each.put_in) for each in swaps.values()) > _MOST:
        raise CannotEditError(f"more than {_MOST} members would change")
    ends = "\r\n" if "\r\n" in text else "\n"
    step = _step(text, parsed)
    changed = text
    for path in sorted(swaps, key=lambda each: parsed.spans.get(each, _NOWHERE).value, reverse=True):
        holder = value_at(parsed.value, path)
        if path not in parsed.spans or not isinstance(holder, dict):
            raise CannotEditError("there is no object with servers")
        at, (out, put_in) = parsed.spans[path], swaps[path]
        indent, part = _indent_at(text, at.start), text[at.value : at.end]
        inner = indent + part.replace("\r\n", "\n")  # a text of its own with the indentation of the object
        for key in out:
            inner = remove_member(inner, (key,))
            del holder[key]
        if put_in:
            inner = _put_in(inner, put_in, step)
        holder.update(put_in)  # the parsed value becomes the expected result
        changed = changed[: at.value] + inner[len(indent) :].replace("\n", ends) + changed[at.end :]
    return _checked(changed, parsed.value)


def value_at(value: JsonValue, path: tuple[str, ...]) -> JsonValue:
    """The value at a path of objects; None if there is none."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _put_in(text: str, members: Mapping[str, JsonValue], step: str) -> str:
    parsed = _parsed(text)
    assert isinstance(parsed.value, dict)
    for key in members:
        if key in parsed.value:
            raise CannotEditError(f"there is a {json.dumps(key)} already")
    return _checked(_with_members(text, parsed, (), members, step=step), {**parsed.value, **members})


def _parsed(text: str) -> ParsedJson:
    parsed = parse(text, "")
    if not parsed.complete or parsed.problems:
        raise CannotEditError("the file is broken; `carpool check` says where")
    return parsed


def _checked(text: str, expected: JsonValue) -> str:
    reparsed = parse(text, "")
    if not reparsed.complete or reparsed.problems or reparsed.value != expected:
        raise CannotEditError("its layout is too unusual to be edited by a program")
    return text


def _members(parsed: ParsedJson, path: KeyPath) -> list[Span]:
    return [span for each, span in parsed.spans.items() if len(each) == len(path) + 1 and each[:-1] == path]


def _with_members(
    text: str,
    parsed: ParsedJson,
    path: KeyPath,
    new: Mapping[str, JsonValue] | list[JsonValue],
    *,
    step: str,
) -> str:
    """The text with members added at the end of the object at `path`, or elements at the end of the list.

    `step`: one level of indentation.
    """
    pairs = [("", value) for value in new] if isinstance(new, list) else _named(new)
    holder_span, members = parsed.spans[path], _members(parsed, path)
    closing = holder_span.end - 1
    line = text.rfind("\n", holder_span.value, closing) + 1
    if members and line == 0:  # all on one line
        last = max(span.end for span in members)
        comma = skip_blank(text, last)
        text_added = ", ".join(f"{key}{json.dumps(value)}" for key, value in pairs)
        if text[comma] == ",":
            return f"{text[: comma + 1]} {text_added}{text[comma + 1 :]}"
        return f"{text[:last]}, {text_added}{text[last:]}"
    outer = _indent_at(text, holder_span.start)
    inner = _indent_at(text, max(members).start) if members else outer + step
    lines = (f"{inner}{key}{_written(value, inner, step)}" for key, value in pairs)
    text_added = ",\n".join(lines) + "\n"
    if members:
        last = max(span.end for span in members)
        if text[skip_blank(text, last)] != ",":
            text = f"{text[:last]},{text[last:]}"
            closing, line = closing + 1, line + 1
    if line and not text[line:closing].strip():
        return text[:line] + text_added + text[line:]
    return f"{text[:closing].rstrip(' ')}\n{text_added}{outer}{text[closing:]}"


def _named(members: Mapping[str, JsonValue]) -> list[tuple[str, JsonValue]]:
    """Pairs of a key as it is written (`"a": `) and its value."""
    return [(f"{json.dumps(key, ensure_ascii=False)}: ", value) for key, value in members.items()]


def _written(value: JsonValue, indent: str, step: str) -> str:
    return json.dumps(value, indent=step, ensure_ascii=False).replace("\n", "\n" + indent)


def _step(text: str, parsed: ParsedJson) -> str:
    """The indentation of one level, taken from the file's first member."""
    for path, at in parsed.spans.items():
        if len(path) == 1:
            holder_span, inner = _indent_at(text, parsed.spans[()].start), _indent_at(text, at.start)
            if inner.startswith(holder_span) and len(inner) > len(holder_span):
                return inner[len(holder_span) :]
            break
    return _STEP


def _indent_at(text: str, at: int) -> str:
    """The indentation of the line that holds a position."""
    found = _INDENT.match(text, text.rfind("\n", 0, at) + 1)
    return found.group() if found is not None else ""
