"""Which schemas of results agents can compile, compared with the compiler of the official TypeScript SDK."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from carpool_protocol.wire.output_schema import (
    MAX_BRANCHES,
    MAX_LEVELS,
    MAX_PATTERN_CHARS,
    MAX_REFERRED_LEVELS,
    MAX_VALUES,
    is_compilable,
    is_too_deep,
)
from tests.behaviours import behaviour
from tests.kit.sdks import NODE, PEERS, ROOT, require_peers

_KEYWORDS: Final = [
    *("type", "properties", "required", "items", "additionalItems", "contains", "minimum"),
    *("maxLength", "pattern", "patternProperties", "enum", "const", "allOf", "anyOf"),
    *("not", "if", "then", "else", "dependencies", "propertyNames", "additionalProperties"),
    *("uniqueItems", "nullable", "format", "$ref", "$id", "id", "$anchor"),
    *("$schema", "$comment", "definitions", "$defs", "default", "examples", "title"),
    *(
        "description",
        "multipleOf",
        "exclusiveMinimum",
        "prefixItems",
        "dependentRequired",
        "minContains",
        "unevaluatedProperties",
    ),
    *("readOnly", "$dynamicRef", "$recursiveRef", "contentEncoding", "discriminator"),
]
_VALUES: Final[list[Any]] = [
    *(None, True, False, 0, 1.5, "x", "string", "int", "[", [], ["a"], [1], [{}], [True], {}),
    *({"a": {}}, {"a": ["b"]}, {"a": 1}, {"[": {}}, {"type": "int"}, {"a": {"pattern": "("}}),
]
_PATTERNS: Final = [
    *(
        r"^[\w-.]+$",
        r"(?P<x>a)",
        "(?i)abc",
        r"abc\Z",
        "^a{1,3}$",
        r"\p{L}+",
        r"\d+\-",
        "[a-z",
        r"\-",
        "{",
        "a{",
    ),
    *(
        r"(?<x>a)\k<x>",
        r"\_",
        "(?<=a)b",
        "]",
        "}",
        r"\p{Foo}",
        r"\A",
        "(?#c)a",
        "a++",
        "(?>a)",
        r"\/",
        "(?:a)",
    ),
    *(
        r"^[^\s@]+@[^\s@]+\.[a-z]{2,}$",
        r"[\d-z]",
        r"\01",
        r"(a)\2",
        "*a",
        "(?<a",
        "a{2,1}",
        "[z-a]",
        "(?i:a)",
        "a)",
    ),
]
_REFERENCES: Final = [
    *(
        "#",
        "#/definitions/X",
        "#/definitions/Y",
        "#/definitions/y~1z",
        "#/definitions/y%2Fz",
        "#n",
        "#m",
        "X",
    ),
    *(
        "http://json-schema.org/draft-07/schema#",
        "https://example.com/x",
        "#/list/0",
        "#/list/1",
        "#/type",
        "",
    ),
    *("#/definitions", "#/properties/a", "#/$defs/N", "https://example.com/root#/definitions/X"),
    *("#/$defs/%zz", "#/$defs/%ff", "#/$defs/%4E", "#%zz"),
]
_TARGETS: Final[dict[str, Any]] = {
    "definitions": {"X": {"type": "string"}, "y/z": {}},
    "$defs": {"N": {"$anchor": "n"}, "%zz": {}, "\ufffd": {}},
    "list": [{}],
}
_USUAL: Final[list[dict[str, Any]]] = [
    {"type": "object", "properties": {"a": {"type": ["string", "null"], "format": "uri"}}, "required": ["a"]},
    {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A"}},
        "$defs": {"A": {"anyOf": [{"type": "null"}]}},
    },
    {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "additionalProperties": False,
    },
    {"$id": "https://example.com/a", "type": "object", "properties": {"a": {"items": [{}, True]}}},
    {
        "type": "object",
        "properties": {"a": {"type": "string", "nullable": True, "enum": ["x"], "default": 3}},
    },
]


def chain(hops: int, part: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """A schema with a chain of references; `part` makes the definition that holds the next reference."""
    parts = {f"{at}": part({"$ref": f"#/$defs/{at + 1}"}) for at in range(hops)}
    return {"type": "object", "properties": {"a": {"$ref": "#/$defs/0"}}, "$defs": {**parts, f"{hops}": {}}}


def copies(times: int, properties: int) -> dict[str, Any]:
    """A schema with many references to a part that has none, which Ajv copies for each of them."""
    part = {"properties": {f"p{at}": {"type": "string"} for at in range(properties)}}
    return {"allOf": [{"$ref": "#/$defs/b"}] * times, "$defs": {"b": part}}


def entries(keyword: str, count: int) -> dict[str, Any]:
    """A schema with a keyword that has this many entries."""
    values: dict[str, Any] = {
        "anyOf": [{"required": ["a"]}] * count,
        "oneOf": [{"required": ["a"]}] * count,
        "patternProperties": {f"c{at}": {} for at in range(count)},
        "dependencies": {"a": [f"b{at}" for at in range(count)]},
    }
    return {
        "properties": {f"b{at}": {} for at in range(count)},
        "additionalProperties": False,
        keyword: values[keyword],
    }


_PARTS: Final[list[Callable[[dict[str, Any]], dict[str, Any]]]] = [
    lambda reference: {"items": reference},
    lambda reference: {"additionalProperties": reference},
    lambda reference: {"if": reference, "then": reference, "else": reference},
    lambda reference: {"type": "object", "properties": {"a": reference}},
    lambda reference: {"anyOf": [reference, reference]},
]
_OPPRESSIVE: Final[dict[str, dict[str, Any]]] = {
    "a chain of references": chain(1500, lambda reference: reference),
    **{f"a chain of parts {at}": chain(400, part) for at, part in enumerate(_PARTS)},
    "many copies of a part": copies(3000, 1000),
    "many members": {"properties": {f"p{at}": {"type": "string"} for at in range(MAX_VALUES)}},
    "long patterns": {"properties": {f"p{at}": {"pattern": "a" * 4096} for at in range(5)}},
    "a long pattern of names": {"patternProperties": {"a" * (MAX_PATTERN_CHARS + 1): {}}},
    "the id of a schema of Ajv": {"$id": "http://json-schema.org/draft-07/schema#"},
    "another id of a schema of Ajv": {"$id": "http://json-schema.org/schema"},
    **{
        f"many entries of {keyword}": entries(keyword, 4000)
        for keyword in ("anyOf", "oneOf", "patternProperties", "dependencies")
    },
}
"""Schemas within the size of one entry that Ajv cannot compile, or for which it needs long."""


def heavy_schemas() -> Iterator[dict[str, Any]]:
    """Schemas at the bounds."""
    for part in _PARTS:
        levels = 1 if part({}) == {"items": {}} else 3
        yield chain((MAX_REFERRED_LEVELS - 2) // (levels + 1), part)
    deep: dict[str, Any] = {"$ref": "#/$defs/0"}
    for _ in range(MAX_LEVELS - 4):
        deep = {"items": deep}
    yield {**chain(MAX_REFERRED_LEVELS // 2 - 1, _PARTS[0]), "items": deep}
    yield copies(20, 200)
    for keyword in ("anyOf", "oneOf", "patternProperties", "dependencies"):
        yield entries(keyword, MAX_BRANCHES)


def schemas() -> Iterator[dict[str, Any]]:
    yield from _USUAL
    for keyword in _KEYWORDS:
        for value in _VALUES:
            yield {keyword: value}
            yield {"type": "object", "properties": {"a": {keyword: value}}}
    for pattern in _PATTERNS:
        yield {"type": "object", "properties": {"a": {"pattern": pattern}}}
    for reference in _REFERENCES:
        yield {"type": "object", "properties": {"a": {"$ref": reference}}, **_TARGETS}
        yield {"$id": "https://example.com/root", "anyOf": [{"$ref": reference}], **_TARGETS}
    for kind in ("string", "null", ["null", "string"], []):
        for nullable in (True, False):
            yield {"properties": {"a": {"type": kind, "nullable": nullable}}}
    yield from heavy_schemas()
    yield {"properties": {"a": {"$id": "#q"}, "b": {"$id": "#q"}}}
    yield {"properties": {"a": {"$id": "https://a/"}, "b": {"$ref": "https://a/"}}}


@behaviour("lists:readable")
def test_every_schema_that_is_kept_is_compiled_by_the_official_sdk() -> None:
    require_peers()
    tried = list(schemas())
    kept = [each for each in tried if is_compilable(json.dumps(each).encode())]
    assert len(tried) / 4 < len(kept) < len(tried)
    answer = subprocess.run(
        [NODE, str(ROOT / "tests" / "kit" / "peers" / "compile_schemas.mjs")],
        input=json.dumps(kept).encode(),
        env={**os.environ, "CARPOOL_PEERS": str(PEERS)},
        capture_output=True,
        check=True,
    )
    errors = json.loads(answer.stdout)
    assert [pair for pair in zip(kept, errors, strict=True) if pair[1]] == []


@behaviour("lists:readable")
@pytest.mark.parametrize("schema", _USUAL)
def test_usual_schemas_are_kept(schema: dict[str, Any]) -> None:
    assert is_compilable(json.dumps(schema).encode())


@behaviour("lists:readable")
@pytest.mark.parametrize("what", _OPPRESSIVE)
def test_a_schema_that_takes_ajv_too_long_or_too_deep_is_not_kept(what: str) -> None:
    assert not is_compilable(json.dumps(_OPPRESSIVE[what]).encode())


@behaviour("lists:readable")
@pytest.mark.parametrize("schema", list(heavy_schemas()))
def test_schemas_at_the_bounds_are_kept(schema: dict[str, Any]) -> None:
    assert is_compilable(json.dumps(schema).encode())


def test_recursive_references_are_no_copies() -> None:
    tree = {"properties": {f"p{at}": {"$ref": "#"} for at in range(1000)}}
    assert is_compilable(json.dumps(tree).encode())


@pytest.mark.parametrize("levels", [MAX_LEVELS, MAX_LEVELS + 1])
def test_a_schema_has_a_bound_of_levels(levels: int) -> None:
    schema: dict[str, Any] = {}
    for _ in range(levels - 1):
        schema = {"not": schema}
    raw = json.dumps(schema).encode()
    assert is_compilable(raw) is (levels == MAX_LEVELS)
    assert is_too_deep(raw) is (levels > MAX_LEVELS)


@pytest.mark.parametrize("raw", [b"[]", b"3", b"{", b'{"title":"\xff"}'])
def test_what_is_no_schema_is_not_compilable(raw: bytes) -> None:
    assert not is_compilable(raw)
