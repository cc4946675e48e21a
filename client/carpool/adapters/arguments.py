"""Arguments of a tool between a model API and the tool's own schema, in both directions.

Owns which of a tool's parameters are shown by another name. Source: an error of the Anthropic Messages API,
"input_schema.properties: Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'", for which it refuses
the whole request; servers do have `$filter` and `größe`. Only keys at the top are changed, as the error names
no others. Invariants: a name that is legal stays; shown names are distinct.

Owns also which `null` of a model means "left out": one for a property that is optional and takes no `null`.
Models write it because the strict form makes them (`strict_schema`), and some without being made to. Every
other value stays as it is, also one that the schema refuses: the server says so better.

Knows nothing of: tools' names, `$ref`s into the properties of the top, model APIs.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from carpool.adapters.schema import Schema, arms, as_object, followed, properties_of, required_of
from carpool_protocol.wire.tool_name_resolver import qualify

_LEGAL = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


def legal_keys(names: Mapping[str, Any]) -> dict[str, str]:
    """Names of parameters and, for each that is not legal, the one that is shown."""
    shown: dict[str, str] = {}
    illegal = [name for name in names if not _LEGAL.fullmatch(name)]
    taken = names.keys() - illegal
    for name in illegal:
        tries = 0
        while (other := qualify("", name, prefix="", hashed=tries)) in taken:
            tries += 1
        taken.add(other)
        shown[name] = other
    return shown


def with_legal_keys(schema: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """A schema that is an object at its top with legal keys there, and what the shown ones stand for."""
    shown = legal_keys(properties_of(schema))
    if not shown:
        return dict(schema), {}
    renamed: dict[str, Any] = dict(schema)
    renamed["properties"] = {shown.get(name, name): each for name, each in properties_of(schema).items()}
    if "required" in schema:
        renamed["required"] = [shown.get(name, name) for name in required_of(schema)]
    return renamed, {other: name for name, other in shown.items()}


_MAX_SCHEMAS: Final = 20_000
"""Looked at for one call; past that every `null` stays. Arms that refer to each other never end."""
_KINDS: Final[dict[type, tuple[str, ...]]] = {
    dict: ("object",),
    list: ("array",),
    str: ("string",),
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    type(None): ("null",),
}


def without_nulls(schema: object, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """`arguments` without what is `null` and may only be left out, at any depth that `schema` describes."""
    given = dict(arguments)
    if not isinstance(schema, Mapping):
        return given
    try:
        return _Reading(schema, given).whole()
    except RecursionError:  # a schema that holds itself, and a value as deep
        return given


class _Reading:
    """One call's arguments, read with the schema of its tool."""

    def __init__(self, root: Schema, given: dict[str, Any]) -> None:
        self._root = root
        self._given = given
        self._shown = properties_of(as_object(root).schema)
        """The properties that models are shown at the top: those of all arms of a union there."""
        self._left = _MAX_SCHEMAS

    def whole(self) -> dict[str, Any]:
        described: set[str] = set()
        for each in self._describing(self._root, self._given):
            described.update(properties_of(each), required_of(each))
        meant: dict[str, Any] = self.of(self._root, self._given)
        return {
            name: each for name, each in meant.items() if name in described or not self._is_of_an_arm(name)
        }

    def _is_of_an_arm(self, name: str) -> bool:
        """True if `null` leaves `name` out, for a name that only an arm that is not meant describes."""
        return self._given[name] is None and name in self._shown

    def of(self, schema: object, value: Any) -> Any:
        """`value` without what is `null` and may only be left out, where `schema` describes it."""
        for each in self._describing(schema, value):
            if isinstance(value, dict):
                value = self._object(each, value)
            elif isinstance(value, list) and "items" in each:
                value = [self.of(each["items"], element) for element in value]
        return value

    def _object(self, schema: Schema, value: dict[str, Any]) -> dict[str, Any]:
        properties, required = properties_of(schema), required_of(schema)
        return {
            name: self.of(properties.get(name), each)
            for name, each in value.items()
            if each is not None or name in required or self._fits(properties.get(name), None)
        }

    def _describing(self, schema: object, value: Any) -> list[Schema]:
        """The schemas that describe `value`: this one, its parts, and of a union the first arm it fits."""
        if not isinstance(schema, Mapping) or self._left <= 0:
            return []
        top = self._followed(schema)
        found: list[Schema] = [top]
        for part in arms(top, "allOf"):
            found += self._describing(part, value)
        for key in ("anyOf", "oneOf"):
            arm = next((arm for arm in arms(top, key) if self._fits(arm, value)), None)
            found += self._describing(arm, value)
        return found

    def _fits(self, schema: object, value: Any) -> bool:
        """True if `value` without its nulls can fit `schema`. Also true where that is hard to tell."""
        if not isinstance(schema, Mapping):
            return schema is not False
        if self._left <= 0:
            return True
        top = self._followed(schema)
        if not _is_of_type(top, value) or ("const" in top and top["const"] != value):
            return False
        if isinstance(values := top.get("enum"), list | tuple) and value not in values:
            return False
        for key in ("anyOf", "oneOf"):
            if arms(top, key) and not any(self._fits(arm, value) for arm in arms(top, key)):
                return False
        if not all(self._fits(part, value) for part in arms(top, "allOf")):
            return False
        if isinstance(value, dict):
            return self._object_fits(top, value)
        if isinstance(value, list) and "items" in top:
            return all(self._fits(top["items"], element) for element in value)
        return True

    def _object_fits(self, top: Schema, value: dict[str, Any]) -> bool:
        properties, required = properties_of(top), required_of(top)
        if any(name not in value for name in required):
            return False
        is_whole = value is self._given
        names = [name for name in value if not (is_whole and self._is_of_an_arm(name))]
        if top.get("additionalProperties") is False and not properties.keys() >= set(names):
            return False
        return all(
            self._fits(schema, value[name])
            for name, schema in properties.items()
            if name in value and (value[name] is not None or name in required)
        )

    def _followed(self, schema: Schema) -> dict[str, Any]:
        self._left -= 1
        return followed(schema, self._root)


def _is_of_type(schema: Schema, value: Any) -> bool:
    kinds = schema.get("type")
    if kinds is None or (value is None and schema.get("nullable") is True):  # the second is OpenAPI 3.0's
        return True
    said = kinds if isinstance(kinds, list | tuple) else [kinds]
    if isinstance(value, float) and value.is_integer():
        return "integer" in said or "number" in said
    return any(kind in said for kind in _KINDS.get(type(value), ()))
