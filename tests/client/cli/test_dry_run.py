"""Arguments against a schema: what is wrong is told by place and rule, and never by value."""

import gc
import signal
from typing import Any

import pytest

from carpool.cli.dry_run import MAX_PROBLEMS, ArgumentProblem, BadSchemaError, problems
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

FORMS: dict[str, Any] = {
    "$defs": {f"d{at}": {"anyOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(60)} | {"d60": False},
    "properties": {"a": {"$ref": "#/$defs/d0"}},
}
"""What tries 2 to the power of 60 ways."""


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


def test_what_must_not_be_there_is_told_as_that() -> None:
    (problem,) = problems({"properties": {"a": {"properties": {"b": False}}}}, {"a": {"b": "hush-hush"}})
    assert problem == ArgumentProblem("a", "false", "something in it must not be there")


def test_of_very_many_problems_the_first_are_told_in_their_order() -> None:
    found = said(["x"] * 100_000, {"items": {"type": "integer"}})
    assert found == [(f"[{at}]", "type") for at in range(MAX_PROBLEMS)]


@behaviour("call:dry-run")
@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"pattern": "^(a+)+$"}}},
        FORMS,
    ],
    ids=["pattern", "forms"],
)
def test_a_schema_that_takes_for_ever_is_given_up(schema: object) -> None:
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(BadSchemaError, match=r"takes more than 0\.2 s"):
        problems(schema, {"a": "a" * 60 + "!"}, check_s=0.2)
    assert signal.getsignal(signal.SIGALRM) == before


def test_no_finalizer_of_the_collector_runs_where_the_end_of_a_check_may_fall() -> None:
    within: list[bool] = []

    def note(phase: str, _: object) -> None:
        within.append(signal.getitimer(signal.ITIMER_REAL)[0] > 0)

    gc.callbacks.append(note)
    try:
        with pytest.raises(BadSchemaError, match="takes more than"):
            problems(FORMS, {"a": "a"}, check_s=0.2)
    finally:
        gc.callbacks.remove(note)
    assert True not in within
    assert gc.isenabled()


@pytest.mark.parametrize("pattern", [r"^\p{L}+$", "^(?<word>a)$"])
def test_a_pattern_of_javascript_is_named(pattern: str) -> None:
    with pytest.raises(BadSchemaError, match=r"^properties\.a\.pattern: Python cannot read this pattern: "):
        problems({"properties": {"a": {"pattern": pattern}}}, {"a": "b"})


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
