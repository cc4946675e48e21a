"""Tells whether agents can compile the schema of a tool's result.

Owns the rules by which Ajv compiles a schema. The official TypeScript SDK compiles every `outputSchema` of a
list with it (`Client.cacheToolMetadata`), and one that fails takes the whole list from the agent: the list of
all servers. The rules are those of Ajv 8 with its options there (`strict: false`,
`validateSchema: false`): types of keywords, references that resolve within the schema, and patterns of
ECMA-262 with the flag `u`. Ajv overflows its stack, or works for minutes, on schemas that are legal and
small; the bounds below keep clear of both. They refuse a few schemas more than Ajv does, and none less; a
test compares both.

Pure. Knows nothing of: tools, lists, schemas of arguments, which agents do not compile.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import msgspec
import regress  # patterns of ECMA-262, by the engine of a Rust crate: Python's `re` has another syntax

MAX_LEVELS: Final = 128
"""Levels of objects and arrays in one schema. The Python SDK needs minutes for some hundreds."""

MAX_REFERRED_LEVELS: Final = 192
"""Levels of all schemas together that references lead to. Ajv compiles a chain of references in one
recursion, which overflows its stack from about 384 levels on.
"""
MAX_VALUES: Final = 10_000
"""Members and elements in one schema. A part that references lead to counts again for each of them: Ajv
compiles a copy for each.
"""
MAX_BRANCHES: Final = 256
"""Entries of one keyword whose code in Ajv grows faster than its entries."""
MAX_PATTERN_CHARS: Final = 16 * 1024
"""Characters of all patterns in one schema; each can take microseconds."""

_METASCHEMA: Final = "http://json-schema.org/draft-07/schema"
_IDS_OF_AJV: Final = frozenset({_METASCHEMA, "http://json-schema.org/schema"})
_REFERRING: Final = frozenset({"$ref", "$recursiveRef", "$dynamicRef"})
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_TYPES: Final = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_ANCHOR: Final = re.compile(r"[A-Za-z_][-A-Za-z0-9._]*")
_MODIFIERS: Final = re.compile(r"\(\?[ims]*(-[ims]*)?:")
"""Flags inside of a pattern, which most engines do not know yet. `(?:` has none."""

_Fits = Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _is_list_of_schemas(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_schema, value))


def _is_map_of_schemas(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_schema, value.values()))


def _is_list_of_alternatives(value: Any) -> bool:
    return bool(value) and _is_list_of_schemas(value) and len(value) <= MAX_BRANCHES


def _is_dependency(value: Any) -> bool:
    return _is_schema(value) or (isinstance(value, list) and len(value) <= MAX_BRANCHES)


def _is_type(value: Any) -> bool:
    return all(
        isinstance(each, str) and each in _TYPES for each in (value if isinstance(value, list) else [value])
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_pattern(value: Any) -> bool:
    if not isinstance(value, str) or any(len(found[0]) > len("(?:") for found in _MODIFIERS.finditer(value)):
        return False
    try:
        regress.Regex(value, "u")
    except (regress.RegressError, UnicodeEncodeError):
        return False
    return True


_RULES: Final[Mapping[str, _Fits]] = (
    dict.fromkeys(
        (
            *("multipleOf", "maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum"),
            *("maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"),
        ),
        _is_number,
    )
    | dict.fromkeys(
        ("additionalProperties", "contains", "propertyNames", "not", "if", "then", "else"), _is_schema
    )
    | dict.fromkeys(("anyOf", "oneOf"), _is_list_of_alternatives)
    | dict.fromkeys(("properties", "$defs", "definitions"), _is_map_of_schemas)
    | dict.fromkeys(("uniqueItems", "nullable"), lambda value: isinstance(value, bool))
    | {
        "allOf": lambda value: bool(value) and _is_list_of_schemas(value),
        "type": _is_type,
        "pattern": _is_pattern,
        "patternProperties": lambda value: (
            _is_map_of_schemas(value) and len(value) <= MAX_BRANCHES and all(map(_is_pattern, value))
        ),
        "items": lambda value: _is_schema(value) or _is_list_of_schemas(value),
        "additionalItems": _is_schema,
        "dependencies": lambda value: (
            isinstance(value, dict)
            and len(value) <= MAX_BRANCHES
            and all(map(_is_dependency, value.values()))
        ),
        "required": lambda value: isinstance(value, list) and all(map(_is_text, value)),
        "enum": lambda value: isinstance(value, list) and bool(value),
        "format": _is_text,
        "$schema": _is_text,
        "$comment": _is_text,
        "$id": _is_text,
        "$anchor": lambda value: isinstance(value, str) and _ANCHOR.fullmatch(value) is not None,
        "id": lambda _value: False,  # of draft-04; Ajv says "use $id"
    }
)
_LISTS: Final = ("allOf", "anyOf", "oneOf", "items")
_MAPS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependencies")
_SINGLE: Final = (
    *("additionalProperties", "additionalItems", "contains", "propertyNames", "not", "if", "then", "else"),
    "items",
)


def is_compilable(schema: bytes) -> bool:
    """Return whether agents can compile this schema of a result. False as well if it cannot be read."""
    try:
        root = msgspec.json.decode(schema)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return False
    return isinstance(root, dict) and not _is_deep(root) and _Schema(root).is_compilable()


def is_too_deep(schema: bytes) -> bool:
    """Return whether a schema nests deeper than agents can read."""
    if len(schema) < 2 * MAX_LEVELS:  # each level opens and closes
        return False
    return _is_deep(msgspec.json.decode(schema))


def _is_deep(root: Any) -> bool:
    level = [root]
    for _ in range(MAX_LEVELS):
        level = [inner for each in level for inner in _inner_values(each)]
        if not level:
            return False
    return True


def _inner_values(value: Any) -> Iterator[Any]:
    found = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (each for each in found if isinstance(each, dict | list))


class _Size(NamedTuple):
    """The size of an object or array with everything in it."""

    levels: int
    values: int
    refers: bool
    """True if it has a reference in it: Ajv makes no copies of it."""


_NOTHING: Final = _Size(0, 0, refers=False)


def _sizes(root: Any) -> dict[int, _Size]:
    """Return the size of each object and array in a schema, by its identity."""
    parts = [root]
    for part in parts:
        parts += _inner_values(part)
    found: dict[int, _Size] = {}
    for part in reversed(parts):
        inner = [found[id(each)] for each in _inner_values(part)]
        found[id(part)] = _Size(
            1 + max((each.levels for each in inner), default=0),
            len(part) + sum(each.values for each in inner),
            any(each.refers for each in inner)
            or (isinstance(part, dict) and not _REFERRING.isdisjoint(part)),
        )
    return found


class _Schema:
    """One schema with everything that refers to it."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._sizes = _sizes(root)
        self._pattern_chars = 0
        """Characters of the patterns so far."""
        self._names: set[str] = set()
        """The targets of references that are no pointers."""

    def is_compilable(self) -> bool:
        references: Counter[str] = Counter()
        """The references that are not followed yet, and how often each stands in the schema."""
        targets: set[int] = set()
        levels = 0
        values = self._sizes[id(self._root)].values
        if values > MAX_VALUES or str(self._root.get("$id")).rstrip("#") in _IDS_OF_AJV:
            return False
        seen: set[int] = set()
        todo: list[Any] = [self._root]
        while todo or references:
            while todo:
                part = todo.pop()
                if isinstance(part, bool) or id(part) in seen:
                    continue
                seen.add(id(part))
                if not isinstance(part, dict) or not self._has_good_keywords(part):
                    return False
                if "$ref" in part:
                    references[part["$ref"]] += 1
                todo += _subschemas(part)
            # Only now: all names are known.
            if len(targets) + len(references) > MAX_REFERRED_LEVELS:
                return False
            for reference, times in references.items():
                found = self._target(reference)
                if found is None:
                    return False
                size = self._sizes.get(id(found), _NOTHING)
                if id(found) not in targets:
                    targets.add(id(found))
                    levels += size.levels
                values += 0 if size.refers else times * size.values
                if levels > MAX_REFERRED_LEVELS or values > MAX_VALUES:
                    return False
                todo.append(found)
            references = Counter()
        return True

    def _has_good_keywords(self, part: dict[str, Any]) -> bool:
        patterns = [part.get("pattern"), *_members(part.get("patternProperties"))]
        self._pattern_chars += sum(len(each) for each in patterns if isinstance(each, str))
        if self._pattern_chars > MAX_PATTERN_CHARS:
            return False
        if not all(fits(part[keyword]) for keyword, fits in _RULES.items() if keyword in part):
            return False
        types = part.get("type", [])
        if "nullable" in part and (not types or ("null" in types and not part["nullable"])):
            return False
        if "$ref" in part and not isinstance(part["$ref"], str):
            return False
        if part is not self._root and not part.get("$id", "#").startswith("#"):
            return False  # another base for the references in it
        names = {
            part[key].removeprefix("#")
            for key in ("$id", "$anchor")
            if key in part and part is not self._root
        }
        if not self._names.isdisjoint(names):
            return False  # ambiguous
        self._names |= names
        return True

    def _target(self, reference: str) -> Any:
        """Return the schema that a reference leads to. None: there is none within this schema, or a chain of
        references never ends.
        """
        found, seen = self._pointed(reference), {reference}
        while isinstance(found, dict) and isinstance(after := found.get("$ref"), str):
            if after in seen:
                return None
            seen.add(after)
            found = self._pointed(after)
        return self._pointed(reference) if found is not None else None

    def _pointed(self, reference: str) -> Any:
        if _BAD_ESCAPE.search(reference):
            return None
        base, _, fragment = reference.partition("#")
        if base == _METASCHEMA:
            return None if fragment else True
        if base and base != self._root.get("$id", "").rstrip("#"):
            return None
        if fragment and not fragment.startswith("/"):
            return True if fragment in self._names else None
        return _at_pointer(self._root, fragment)


def _members(value: Any) -> Iterable[str]:
    return value if isinstance(value, dict) else ()


def _subschemas(part: dict[str, Any]) -> list[Any]:
    found = [part[key] for key in _SINGLE if isinstance(part.get(key), dict)]
    for key in _LISTS:
        if isinstance(part.get(key), list):
            found += part[key]
    for key in _MAPS:
        found += [each for each in part.get(key, {}).values() if isinstance(each, dict)]
    return found


def _at_pointer(root: Any, pointer: str) -> Any:
    """Return what a JSON pointer (RFC 6901, in a URI fragment) leads to. None: nothing, or no schema."""
    found = root
    for step in pointer.split("/")[1:]:
        try:
            name = unquote(step, errors="strict").replace("~1", "/").replace("~0", "~")
        except UnicodeDecodeError:
            return None
        if isinstance(found, dict):
            found = found.get(name)
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found if _is_schema(found) else None
