"""Schemas on their way to a model API and arguments on their way back."""

from contextlib import suppress
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.adapters.arguments import without_nulls
from carpool.adapters.schema import MAX_LOST_CHARS, TOO_LONG, as_object
from carpool.adapters.strict_schema import MAX_LEVELS, NotStrictError, strict
from tests.behaviours import behaviour

Json = dict[str, Any]
TEXT = {"type": "string"}
WHOLE = {"type": "integer"}
NULL = {"type": "null"}


def schema(properties: Json, *required: str, **more: Any) -> Json:
    return {"type": "object", "properties": properties, "required": list(required), **more}


# --- an object at the top ------------------------------------------------------------------------------


def test_a_sound_schema_stays_as_it_is() -> None:
    sound = schema(
        {"a": {"anyOf": [TEXT, NULL]}, "b": {"type": ["integer", "null"]}, "c": {"$ref": "#/$defs/C"}},
        "a",
        **{"$defs": {"C": schema({"d": TEXT})}},
    )
    assert as_object(sound) == (sound, "")


@pytest.mark.parametrize(
    "missing", [None, True, {}, [], "text", {"type": "object"}, {"properties": None}, {"type": "array"}]
)
def test_what_says_no_properties_takes_none(missing: Any) -> None:
    assert as_object(missing) == ({"type": "object", "properties": {}}, "")


@behaviour("adapters:schemas")
@pytest.mark.parametrize("key", ["anyOf", "oneOf"])
def test_a_union_at_the_top_becomes_one_object_that_says_what_it_lost(key: str) -> None:
    by_url = schema({"kind": {"const": "url"}, "url": TEXT, "size": WHOLE}, "kind", "url")
    by_name = schema({"kind": {"const": "name"}, "name": TEXT, "size": WHOLE}, "kind", "name")
    found, lost = as_object({key: [by_url, {"$ref": "#/$defs/N"}], "$defs": {"N": by_name}})
    assert found == {
        "type": "object",
        "properties": {
            "kind": {"anyOf": [{"const": "url"}, {"const": "name"}]},
            "url": TEXT,
            "size": WHOLE,
            "name": TEXT,
        },
        "required": ["kind"],
        "$defs": {"N": by_name},
    }
    assert f'{{"{key}":[{{"type":"object"' in lost


def test_alternatives_beside_properties_are_said_in_words() -> None:
    either = {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    found, lost = as_object({**schema({"a": TEXT, "b": TEXT, "c": WHOLE}, "c"), **either})
    assert found == schema({"a": TEXT, "b": TEXT, "c": WHOLE}, "c")
    assert lost.endswith(': {"anyOf":[{"required":["a"]},{"required":["b"]}]}')


def test_parts_at_the_top_are_one_object_and_lose_nothing() -> None:
    base = schema({"a": TEXT, "b": {"minimum": 0}}, "a")
    found = as_object(
        {"allOf": [{"$ref": "#/$defs/Base"}, schema({"b": WHOLE}, "b")], "$defs": {"Base": base}}
    )
    assert found.schema == {
        **schema({"a": TEXT, "b": {"allOf": [{"minimum": 0}, WHOLE]}}, "a", "b"),
        "$defs": {"Base": base},
    }
    assert found.lost == ""
    assert "allOf" in as_object({"allOf": [{"not": {"required": ["a"]}}]}).lost


def test_a_reference_at_the_top_is_what_it_names() -> None:
    definitions = {"$defs": {"a/b": schema({"x": TEXT}, "x")}}
    assert as_object({"$ref": "#/$defs/a~1b", **definitions}).schema == {
        **schema({"x": TEXT}, "x"),
        **definitions,
    }
    for nowhere in ("#/$defs/none", "https://example.org/schema", "#", 5):
        assert as_object({"$ref": nowhere}).schema["properties"] == {}


def test_closed_arms_make_a_closed_object() -> None:
    closed = schema({"a": TEXT}, additionalProperties=False)
    assert as_object({"oneOf": [closed, closed]}).schema["additionalProperties"] is False
    assert "additionalProperties" not in as_object({"oneOf": [closed, schema({"b": TEXT})]}).schema


def test_long_rules_are_not_shown() -> None:
    arms = [schema({f"p{at}": TEXT}, f"p{at}") for at in range(100)]
    found, lost = as_object({"anyOf": arms})
    assert (len(found["properties"]), lost) == (100, TOO_LONG)
    assert len(as_object({"not": {"required": ["a"]}}).lost) < MAX_LOST_CHARS


def test_arms_without_an_end_end() -> None:
    itself = {"$ref": "#/$defs/A"}
    endless = {"anyOf": [itself, itself], "oneOf": [itself, itself], "properties": {"a": TEXT}}
    found, _ = as_object({**itself, "$defs": {"A": endless}})
    assert found["properties"] == {"a": TEXT}
    assert without_nulls({**itself, "$defs": {"A": endless}}, {"a": "x", "b": None}) == {"a": "x", "b": None}


# --- the strict form -----------------------------------------------------------------------------------


@behaviour("adapters:strict")
@pytest.mark.parametrize(
    ("given_", "becomes"),
    [
        ({"type": "string"}, {"type": ["string", "null"]}),
        ({"type": ["string", "integer"]}, {"type": ["string", "integer", "null"]}),
        ({"type": ["string", "null"]}, {"type": ["string", "null"]}),
        ({"type": "string", "enum": ["C", "F"]}, {"type": ["string", "null"], "enum": ["C", "F", None]}),
        ({"enum": ["C", 1]}, {"type": ["string", "integer", "null"], "enum": ["C", 1, None]}),
        ({"const": "x"}, {"anyOf": [{"type": "string", "const": "x"}, NULL]}),
        ({"anyOf": [TEXT, WHOLE]}, {"anyOf": [TEXT, WHOLE, NULL]}),
        ({"oneOf": [TEXT, NULL]}, {"anyOf": [TEXT, NULL]}),
        ({"$ref": "#/$defs/D"}, {"anyOf": [{"$ref": "#/$defs/D"}, NULL]}),
        (
            {"$ref": "#/$defs/D", "description": "why"},
            {"anyOf": [{"$ref": "#/$defs/D"}, NULL], "description": "why"},
        ),
        (
            {"allOf": [{"$ref": "#/$defs/D"}], "description": "why"},
            {"anyOf": [{"$ref": "#/$defs/D"}, NULL], "description": "why"},
        ),
        (
            {"type": "array", "items": TEXT, "title": "T", "uniqueItems": True},
            {"anyOf": [{"type": "array", "items": TEXT}, NULL], "title": "T"},
        ),
        (
            {"type": ["array", "string"], "items": TEXT, "description": "why"},
            {"anyOf": [{"type": "array", "items": TEXT}, TEXT, NULL], "description": "why"},
        ),
        (
            {"type": "string", "default": "a", "maxLength": 5, "examples": ["b"], "description": "why"},
            {"type": ["string", "null"], "description": "why Default: 'a'."},
        ),
        ({"type": "string", "format": "uuid"}, {"type": ["string", "null"], "format": "uuid"}),
        ({"type": "string", "format": "uri"}, {"type": ["string", "null"]}),
        ({"type": "string", "format": ["uri"]}, {"type": ["string", "null"]}),
        ({"type": "string", "pattern": "^a"}, {"type": ["string", "null"], "pattern": "^a"}),
        ({"type": "string", "pattern": "(?!a)"}, {"type": ["string", "null"]}),
        ({"type": "number", "minimum": 0}, {"type": ["number", "null"], "minimum": 0}),
    ],
)
def test_an_optional_property_takes_null_in_the_strict_form(given_: Json, becomes: Json) -> None:
    definitions = {"$defs": {"D": {**WHOLE}}}
    assert strict(schema({"p": given_}, **definitions)) == {
        **schema({"p": becomes}, "p", additionalProperties=False),
        **definitions,
    }


def test_objects_are_closed_and_require_everything_at_every_depth() -> None:
    inner = schema({"x": TEXT, "y": WHOLE}, "x")
    found = strict(schema({"a": inner, "b": {"type": "array", "items": inner}}, "a", "b"))
    closed = schema({"x": TEXT, "y": {"type": ["integer", "null"]}}, "x", "y", additionalProperties=False)
    assert found["properties"] == {"a": closed, "b": {"type": "array", "items": closed}}
    assert strict(schema({}))["additionalProperties"] is False


def test_a_reference_into_another_property_is_a_copy_of_it() -> None:
    found = strict(schema({"a": TEXT, "b": {"$ref": "#/properties/a", "description": "too"}}, "b"))
    assert found["properties"] == {
        "a": {"type": ["string", "null"]},
        "b": {"type": "string", "description": "too"},
    }


def test_a_schema_that_holds_itself_has_a_strict_form() -> None:
    tree = schema({"children": {"type": "array", "items": {"$ref": "#/$defs/T"}}}, "children")
    found = strict(schema({"t": {"$ref": "#/$defs/T"}}, "t", **{"$defs": {"T": tree}}))
    assert found["properties"]["t"] == {"$ref": "#/$defs/T"}
    assert found["$defs"]["T"]["additionalProperties"] is False


@behaviour("adapters:strict")
@pytest.mark.parametrize(
    ("given_", "why"),
    [
        ({}, "p takes a value of any type"),
        (True, "p takes a value of any type"),
        ({"description": "anything"}, "p takes a value of any type"),
        ({"type": "object"}, "p takes keys of any name"),
        ({"type": "object", "additionalProperties": TEXT}, "p takes keys of any name"),
        (schema({"a": TEXT}, additionalProperties=True), "p takes keys of any name"),
        ({"type": "array"}, "p[] takes a value of any type"),
        ({"type": "array", "prefixItems": [TEXT]}, "p uses 'prefixItems'"),
        ({"not": TEXT}, "p uses 'not'"),
        ({"allOf": [TEXT, {"minLength": 1}]}, "p uses 'allOf'"),
        ({"minimum": 1}, "p says no type"),
        ({"type": "any"}, "p is of a type that JSON Schema does not have"),
        ({"type": ["string", {}]}, "p is of a type that JSON Schema does not have"),
        ({"anyOf": []}, "p has an 'anyOf' of nothing"),
        ({"type": "string", "anyOf": [TEXT]}, "p has 'anyOf' beside 'type'"),
        ({"$ref": "#/$defs/none"}, "p refers to something that is not in it"),
        ({"$ref": "https://example.org/s"}, "p refers to something that is not in it"),
        ({"$ref": "#/$defs/D", "minimum": 1}, "p has '$ref' beside 'minimum'"),
        (schema({"q": {"$ref": "#/properties/p"}}), "p.q.q holds itself without a definition"),
        (schema({"q": {"if": {}}}), "p.q uses 'if'"),
        (schema({"a": TEXT}, "b"), "p requires 'b' and does not describe it"),
        ({"type": "string", "enum": "abc"}, "p has an 'enum' that is no list"),
    ],
)
def test_what_has_no_strict_form_says_where_and_why(given_: Any, why: str) -> None:
    with pytest.raises(NotStrictError) as refused:
        strict(schema({"p": given_}, "p", **{"$defs": {"D": WHOLE}}))
    assert str(refused.value) == why


def test_what_is_too_big_has_no_strict_form() -> None:
    nested: Json = schema({"a": TEXT}, "a")
    for _ in range(MAX_LEVELS + 1):
        nested = schema({"a": nested}, "a")
    wide = schema({f"p{at}": TEXT for at in range(5001)})
    many = schema({"a": {"type": "integer", "enum": list(range(1001))}})
    deep: Any = TEXT
    for _ in range(3000):
        deep = {"type": "array", "items": deep}
    for big in (nested, wide, many, schema({"a": deep})):
        with pytest.raises(NotStrictError):
            strict(big)


# --- and back ------------------------------------------------------------------------------------------

FILTERS = schema(
    {
        "q": TEXT,
        "page": WHOLE,
        "owner": {"type": ["string", "null"]},
        "any": {},
        "sort": schema({"by": TEXT, "down": {"type": "boolean"}}, "by"),
        "marks": {"type": "array", "items": {"$ref": "#/$defs/M"}},
        "size": {"anyOf": [WHOLE, TEXT]},
        "target": {
            "oneOf": [
                schema({"kind": {"const": "url"}, "note": TEXT}, "kind"),
                schema({"kind": {"const": "id"}, "note": {"type": ["string", "null"]}}, "kind"),
            ]
        },
    },
    "q",
    **{"$defs": {"M": schema({"name": TEXT, "colour": {"enum": ["red"]}}, "name")}},
)


@behaviour("adapters:strict")
@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ({"q": "a", "page": None, "size": None}, {"q": "a"}),
        ({"q": None}, {"q": None}),
        ({"owner": None, "any": None, "unknown": None}, {"owner": None, "any": None, "unknown": None}),
        ({"sort": {"by": "x", "down": None}}, {"sort": {"by": "x"}}),
        ({"marks": [{"name": "n", "colour": None}, None]}, {"marks": [{"name": "n"}, None]}),
        ({"target": {"kind": "url", "note": None}}, {"target": {"kind": "url"}}),
        ({"target": {"kind": "id", "note": None}}, {"target": {"kind": "id", "note": None}}),
        ({"sort": "no object", "marks": {"no": "list"}}, {"sort": "no object", "marks": {"no": "list"}}),
    ],
)
def test_null_for_what_may_only_be_left_out_is_left_out(said: Json, meant: Json) -> None:
    assert without_nulls(FILTERS, said) == meant


@behaviour("adapters:strict")
@pytest.mark.parametrize("more", [{}, {"additionalProperties": False}])
def test_null_for_what_only_another_arm_of_the_top_describes_is_left_out(more: Json) -> None:
    noted = {"kind": {"const": "id"}, "note": {"type": ["string", "null"]}}
    union = {
        "oneOf": [schema({"url": TEXT, "size": WHOLE}, "url", **more), schema(noted, "kind", "note", **more)]
    }
    form = strict(as_object(union).schema)
    by_url: Json = {**dict.fromkeys(form["required"]), "url": "x"}
    assert without_nulls(union, by_url) == {"url": "x"}
    by_note: Json = {**dict.fromkeys(form["required"]), "kind": "id"}
    assert without_nulls(union, by_note) == {"kind": "id", "note": None}
    assert without_nulls(union, {"url": "x", "unknown": None}) == {"url": "x", "unknown": None}


def test_arguments_of_a_tool_without_a_schema_stay() -> None:
    assert without_nulls(None, {"a": None}) == {"a": None}


SCALARS: st.SearchStrategy[Json] = st.sampled_from(
    [
        TEXT,
        WHOLE,
        {"type": "boolean"},
        {"type": ["string", "null"]},
        {"enum": ["x", "y"]},
        {"const": 7},
        {"type": "integer", "minimum": 3, "default": 3},
        {"$ref": "#/$defs/D"},
    ]
)


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    properties = st.dictionaries(st.sampled_from("abcd"), inner, max_size=3)
    return st.tuples(properties, st.sets(st.sampled_from("abcd"))).map(
        lambda found: schema(found[0], *sorted(found[1] & found[0].keys()))
    )


SCHEMAS = st.recursive(
    SCALARS,
    lambda inner: (
        objects(inner)
        | inner.map(lambda items: {"type": "array", "items": items})
        | st.lists(inner, min_size=1, max_size=2).map(lambda variants: {"anyOf": variants})
    ),
    max_leaves=6,
)
VALUE_OF: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(max_size=2),
    "integer": st.integers(3, 5),
    "boolean": st.booleans(),
    "null": st.none(),
}


def written(form: Json, root: Json) -> st.SearchStrategy[Any]:
    """What a model that keeps to this strict form can write."""
    if "$ref" in form:
        return written(root["$defs"]["D"], root)
    if "anyOf" in form:
        return st.one_of([written(each, root) for each in form["anyOf"]])
    if "const" in form:
        return st.just(form["const"])
    if "enum" in form:
        return st.sampled_from(form["enum"])
    if form["type"] == "object":
        assert form["additionalProperties"] is False
        assert form["required"] == list(form["properties"])
        return st.fixed_dictionaries({name: written(each, root) for name, each in form["properties"].items()})
    if form["type"] == "array":
        return st.lists(written(form["items"], root), max_size=2)
    kinds = form["type"] if isinstance(form["type"], list) else [form["type"]]
    return st.one_of([VALUE_OF[kind] for kind in kinds])


@behaviour("adapters:strict")
@given(objects(SCHEMAS), st.data())
def test_whatever_the_strict_form_lets_a_model_write_fits_the_schema_of_the_tool(
    tool: Json, data: st.DataObject
) -> None:
    tool["$defs"] = {"D": schema({"deep": TEXT, "more": WHOLE}, "deep")}
    form = strict(as_object(tool).schema)
    arguments = data.draw(written(form, form))
    jsonschema.Draft202012Validator(form).validate(arguments)
    jsonschema.Draft202012Validator(tool).validate(without_nulls(tool, arguments))


WORDS = [
    "type",
    "properties",
    "required",
    "anyOf",
    "oneOf",
    "allOf",
    "$ref",
    "$defs",
    "a",
    "items",
    "enum",
    "format",
    "const",
]


@given(
    st.recursive(
        st.none() | st.booleans() | st.sampled_from(["object", "#/$defs/a", "#", "a"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(WORDS),
                inner,
                max_size=5,
            )
        ),
        max_leaves=25,
    )
)
def test_whatever_comes_as_a_schema_is_an_object_for_models(value: Any) -> None:
    found, _ = as_object(value)
    assert found["type"] == "object"
    assert isinstance(found["properties"], dict)
    assert not found.keys() & {"anyOf", "oneOf", "allOf", "not", "enum", "const", "$ref"}
    with suppress(NotStrictError):
        assert strict(found)["additionalProperties"] is False
    assert without_nulls(value, {"a": "x", "b": None}).keys() >= {"a"}
