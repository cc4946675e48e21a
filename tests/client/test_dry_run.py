"""Arguments against a schema: what is wrong is told by place and rule, and never by value."""

from typing import Any

import pytest

from carpool.dry_run import BadSchemaError, problems
from tests.behaviours import behaviour

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "minLength": 3},
        "mode": {"enum": ["read", "write"]},
        "lines": {"type": "array", "items": {"type": "integer", "minimum": 1}},
        "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    },
    "required": ["path"],
    "additionalProperties": False,
}


def said(arguments: object, schema: object = SCHEMA) -> list[tuple[str, str]]:
    return [(each.path, each.rule) for each in problems(schema, arguments)]


def test_arguments_that_fit_have_no_problem() -> None:
    assert said({"path": "/tmp", "mode": "read", "lines": [1], "either": 3}) == []


@behaviour("call:dry-run")
def test_a_problem_is_told_by_place_and_rule_and_never_by_value() -> None:
    arguments = {
        "path": "s3",
        "mode": "secret-word",
        "lines": [1, 0, "hush-hush"],
        "either": None,
        "extra": 1,
    }
    assert sorted(said(arguments)) == [
        ("", "additionalProperties"),
        ("either", "anyOf"),
        ("lines[1]", "minimum"),
        ("lines[2]", "type"),
        ("mode", "enum"),
        ("path", "minLength"),
    ]
    told = " ".join(each.text for each in problems(SCHEMA, arguments))
    assert "extra" in told
    assert not [value for value in ("s3", "secret-word", "hush-hush") if value in told]


def test_what_is_missing_is_named() -> None:
    assert said({}) == [("", "required")]
    assert "path" in problems(SCHEMA, {})[0].text


def test_another_dialect_is_heeded() -> None:
    old = {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "integer"}]}
    assert said(["x"], old) == [("[0]", "type")]


@pytest.mark.parametrize(
    "schema",
    [
        None,
        {"type": "nonsense"},
        {"$ref": "https://example.com/other.json"},
        {"$ref": "#/$defs/none"},
        {"$ref": "#"} | {"type": "object"},
        {"properties": {"a": {"pattern": "("}}},
        {"$schema": 5},
        {"$schema": ["x"]},
        {"$schema": "http://[x"},
    ],
    ids=["none", "invalid", "elsewhere", "dangling", "endless", "pattern", "number", "list", "no-uri"],
)
def test_a_schema_that_is_of_no_use_is_said_to_be(schema: object) -> None:
    with pytest.raises(BadSchemaError):
        problems(schema, {"a": "b"})
