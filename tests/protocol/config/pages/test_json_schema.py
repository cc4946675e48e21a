"""The schema for editors says what the reader says."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from carpool_protocol.config.pages.json_schema import schema, text
from carpool_protocol.config.reading.parse import read_config
from carpool_protocol.config.schema.settings import FILE_SETTINGS, SERVER_SETTINGS
from tests.behaviours import behaviour

PAGE = Path(__file__).parents[4] / "docs" / "carpool.schema.json"
VALID = Draft202012Validator(schema())
KEYS = sorted({step for each in (*FILE_SETTINGS, *SERVER_SETTINGS) for step in each.key.split(".")})


@behaviour("config:schema")
def test_the_schema_in_the_documentation_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == text(), (
        "run `python -m carpool_protocol.config.pages.json_schema > docs/carpool.schema.json`"
    )
    Draft202012Validator.check_schema(schema())


def accepted(document: Any) -> bool:
    return read_config(json.dumps(document), "carpool.json").config is not None


def of_server(**keys: Any) -> Any:
    return {"mcpServers": {"a": {"command": "x", **keys}}}


@behaviour("config:schema")
@pytest.mark.parametrize(
    "document",
    [
        {},
        {"$schema": "x", "max_instances": 3, "session": {"slow_reader_s": 1}, "include": ["a.json"]},
        {"http": {"host": "127.0.0.1", "path": "/x", "tokens": {"a": f"sha256:{'0a' * 32}"}}},
        of_server(limits={"calls": 3}, era="match", restart={"open_s": "${S}"}),
        of_server(type="stdio", timeout_s="${T}", disabled="${D}", pool={"max": "${N}", "min": 0}),
        {"workspaces": {"w": {"root": "~/x", "mcpServers": {"a": {"disabled": True}}}, "v": {}}},
        {"workspaces": {"w": {"mcpServers": {"a": {"command": "x", "timeout_s": "${T}"}}}}},
        of_server(env={"A": "b"}, args=["x"], tool_timeouts_s={"t": 5}, tools={"deny": ["*"]}, tags=["t"]),
    ],
)
def test_what_the_reader_takes_is_valid(document: Any) -> None:
    assert accepted(document)
    assert VALID.is_valid(document)


@behaviour("config:schema")
@pytest.mark.parametrize(
    "document",
    [
        [],
        {"max_instances": "3"},
        {"separater": "_"},
        {"http": {"tokens": {"a": "sha256:0a"}}},
        {"http": {"token": {}}},
        {"mcpServers": {"a__b": {"command": "x"}}},
        {"mcpServers": {"a": {}}},
        {"workspaces": {"w": {"mcpServers": {"a": {}}}}},
        {"workspaces": {"w": {"rot": "/x"}}},
        {"workspaces": {"a__b": {}}},
        of_server(disabledd=True),
        of_server(pool={"mim": 1}),
        of_server(pool={"min": "${N}"}),
        of_server(timeout_s="60"),
        of_server(timeout_s=0),
        of_server(sharing="concurent"),
        of_server(args="--x"),
    ],
)
def test_what_the_reader_refuses_is_not_valid(document: Any) -> None:
    assert document == [] or not accepted(document)
    assert not VALID.is_valid(document)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 100) | st.floats(0, 10) | st.sampled_from(["x", "${X}", "*"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=2),
    max_leaves=5,
)


@behaviour("config:schema")
@settings(deadline=None, max_examples=300)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3))
def test_whatever_the_reader_takes_of_our_own_shape_is_valid(keys: dict[str, Any]) -> None:
    for document in (of_server(**keys), {"mcpServers": {}, **keys}):
        if accepted(document):
            assert VALID.is_valid(document)
