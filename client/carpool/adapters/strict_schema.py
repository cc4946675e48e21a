"""The strict form of a schema, in which a model of OpenAI cannot but keep to it.

Owns what the form allows, and the reasons why a schema has none. Source: OpenAI API, "Structured Outputs",
supported schemas (2026-09): every object is closed and requires all of its properties, an optional one takes
`null`; no `allOf`, `not`, `if`, `dependent…`; sizes are limited. Errors of the API add: no `oneOf`, nothing
beside a `$ref`, no `default`, few formats, no pattern that looks around.

Invariants: a rule that only narrows a value (`maxLength`, a foreign `format`) is left out, since the server
checks it again; what the form has no words for (free keys, no type, `not`) has no strict form. `null` for an
optional property means "left out": `null_arguments` takes it out on the way back.

Takes what `schema.as_object` gives. Knows nothing of: names, what is sent when there is no strict form.
"""

from collections.abc import Mapping
from typing import Any, Final

from carpool.adapters.schema import Schema, pointed, properties_of, required_of

MAX_PROPERTIES: Final = 5000
MAX_LEVELS: Final = 10
MAX_ENUM_VALUES: Final = 1000
MAX_CHARS: Final = 120_000
"""Of all names of properties and definitions, and all texts of `enum` and `const`, together."""
MAX_SCHEMAS: Final = 50_000

_KEPT: Final = frozenset(
    {"title", "description", "enum", "const", "multipleOf", "minItems", "maxItems"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
)
_FORMATS: Final = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")
_TYPES: Final = ("string", "number", "integer", "boolean", "null", "object", "array")
_REFUSED: Final = (
    *("not", "if", "dependentRequired", "dependentSchemas", "dependencies", "patternProperties"),
    *("prefixItems", "$dynamicRef", "$recursiveRef"),
)
_SAYS_ONLY: Final = frozenset({"title", "description", "default", "examples", "deprecated", "$comment"})
_MAX_DEFAULT_CHARS: Final = 80
_SCALARS: Final = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_NULL: Final = {"type": "null"}


class NotStrictError(Exception):
    """The schema has no strict form; the text says where and why."""


def strict(schema: Schema) -> dict[str, Any]:
    """The strict form of a schema that is an object at its top. Raises `NotStrictError`."""
    try:
        return _Form(schema).whole()
    except RecursionError:
        raise NotStrictError("it is nested too deep") from None


class _Form:
    """One schema on its way into the strict form."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._copying: list[str] = []
        self._schemas = self._properties = self._values = self._chars = 0

    def whole(self) -> dict[str, Any]:
        done = self._schema(self._root, "", 0)
        for key in ("$defs", "definitions"):
            definitions = self._root.get(key)
            if isinstance(definitions, Mapping) and definitions:
                self._chars += sum(len(str(name)) for name in definitions)
                done[key] = {name: self._schema(each, name, 1) for name, each in definitions.items()}
        return done

    def _schema(self, schema: object, path: str, level: int) -> dict[str, Any]:
        self._schemas += 1
        if self._schemas > MAX_SCHEMAS:
            raise NotStrictError("it is too big")
        if not isinstance(schema, Mapping) or not schema.keys() - _SAYS_ONLY:
            raise _no(path, "takes a value of any type")
        for key in _REFUSED:
            if key in schema:
                raise _no(path, f"uses {key!r}")
        if "allOf" in schema:
            return self._schema(_only_part(schema, path), path, level)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self._union(schema, key, path, level)
        if "$ref" in schema:
            return self._reference(schema, path, level)
        return self._typed(schema, path, level)

    def _union(self, schema: Schema, key: str, path: str, level: int) -> dict[str, Any]:
        variants = schema[key]
        beside = schema.keys() - _SAYS_ONLY - {key, "discriminator", "$defs", "definitions", "$schema"}
        if beside or not isinstance(variants, list | tuple) or not variants:
            raise _no(
                path, f"has {key!r} beside {_listed(beside)}" if beside else f"has an {key!r} of nothing"
            )
        # `oneOf` only forbids what fits twice: nothing that a model writes needs that.
        return _said(schema, {"anyOf": [self._schema(each, path, level) for each in variants]})

    def _reference(self, schema: Schema, path: str, level: int) -> dict[str, Any]:
        ref = schema["$ref"]
        beside = schema.keys() - _SAYS_ONLY - {"$ref"}
        if beside:
            raise _no(path, f"has '$ref' beside {_listed(beside)}")
        target = pointed(self._root, ref)
        if target is None:
            raise _no(path, "refers to something that is not in it")
        is_defined = ref == "#" or (ref.startswith(("#/$defs/", "#/definitions/")) and ref.count("/") == 2)
        if (
            not is_defined
        ):  # into another property, as zod's JSON Schema has it: that one's form may take null
            return self._copied(ref, {**target, **_said(schema, {})}, path, level)
        said = _said(schema, {})
        return {"anyOf": [{"$ref": ref}], **said} if said else {"$ref": ref}

    def _copied(self, ref: str, schema: Schema, path: str, level: int) -> dict[str, Any]:
        if ref in self._copying:
            raise _no(path, "holds itself without a definition")
        self._copying.append(ref)
        form = self._schema(schema, path, level)
        self._copying.pop()
        return form

    def _typed(self, schema: Schema, path: str, level: int) -> dict[str, Any]:
        kinds = _kinds(schema, path)
        if len(kinds) > 1 and {"object", "array"} & set(kinds):
            bare = {key: value for key, value in schema.items() if key not in _SAYS_ONLY}
            each = [self._typed({**bare, "type": kind}, path, level) for kind in kinds]
            return _said(schema, {"anyOf": each})
        kept = {key: value for key, value in schema.items() if key in _KEPT}
        done = _said(schema, {"type": kinds[0] if len(kinds) == 1 else kinds} | kept)
        if schema.get("format") in _FORMATS:
            done["format"] = schema["format"]
        if isinstance(pattern := schema.get("pattern"), str) and "(?" not in pattern:
            done["pattern"] = pattern
        self._count_values(done, path)
        if kinds == ["object"]:
            done |= self._object(schema, path, level)
        elif kinds == ["array"]:
            done["items"] = self._schema(schema.get("items"), f"{path}[]", level)
        return done

    def _object(self, schema: Schema, path: str, level: int) -> dict[str, Any]:
        if schema.get("additionalProperties", False) is not False or "properties" not in schema:
            raise _no(path, "takes keys of any name")
        if level > MAX_LEVELS:
            raise _no(path, f"is nested in more than {MAX_LEVELS} objects")
        properties, required = properties_of(schema), set(required_of(schema))
        self._properties += len(properties)
        self._chars += sum(map(len, properties))
        if self._properties > MAX_PROPERTIES:
            raise NotStrictError(f"it has more than {MAX_PROPERTIES} properties")
        unknown = required - properties.keys()
        if unknown:
            raise _no(path, f"requires {_listed(unknown)} and does not describe it")
        done = {}
        for name, each in properties.items():
            form = self._schema(each, f"{path}.{name}" if path else name, level + 1)
            done[name] = form if name in required else _or_null(form)
        return {"properties": done, "required": list(done), "additionalProperties": False}

    def _count_values(self, schema: Schema, path: str) -> None:
        values = schema.get("enum", [])
        if not isinstance(values, list | tuple):
            raise _no(path, "has an 'enum' that is no list")
        self._values += len(values)
        self._chars += sum(len(each) for each in (*values, schema.get("const")) if isinstance(each, str))
        if self._values > MAX_ENUM_VALUES or self._chars > MAX_CHARS:
            raise NotStrictError("its names and fixed values are too many")


def _only_part(schema: Schema, path: str) -> Schema:
    """Return an `allOf` of one part merged into its schema: some libraries so add a description
    to a `$ref`.
    """
    parts = schema["allOf"]
    if not isinstance(parts, list | tuple) or len(parts) != 1 or schema.keys() - _SAYS_ONLY - {"allOf"}:
        raise _no(path, "uses 'allOf'")
    if not isinstance(parts[0], Mapping):
        raise _no(path, "takes a value of any type")
    return {**parts[0], **{key: value for key, value in schema.items() if key != "allOf"}}


def _kinds(schema: Schema, path: str) -> list[str]:
    """The types that a schema names, or that follow from what else it says."""
    kind = schema.get("type")
    if kind in _TYPES:
        return [kind]
    if isinstance(kind, list | tuple) and kind and all(each in _TYPES for each in kind):
        return list(kind)
    if kind is None and "properties" in schema:
        return ["object"]
    if kind is None and "items" in schema:
        return ["array"]
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if kind is None and isinstance(values, list | tuple) and values:
        kinds = {_SCALARS.get(type(each)): None for each in values}
        if None not in kinds:
            return [each for each in kinds if each is not None]
    raise _no(path, "says no type" if kind is None else "is of a type that JSON Schema does not have")


def _said(schema: Schema, done: dict[str, Any]) -> dict[str, Any]:
    """`done` with the title and the description, which also names a default: the form has no word for it."""
    for key in ("title", "description"):
        if isinstance(schema.get(key), str):
            done[key] = schema[key]
    default = schema.get("default")
    shown = repr(default) if isinstance(default, int | float | str) else ""
    if shown and len(shown) <= _MAX_DEFAULT_CHARS:
        done["description"] = f"{done.get('description', '')} Default: {shown}.".lstrip()
    return done


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    kinds = schema.get("type")
    if kinds == "null" or (isinstance(kinds, list) and "null" in kinds):
        return schema
    if "anyOf" in schema:
        if _NULL not in schema["anyOf"]:
            schema["anyOf"] = [*schema["anyOf"], _NULL]
        return schema
    if kinds in (None, "object", "array") or "const" in schema:
        said: dict[str, Any] = {key: schema.pop(key) for key in ("title", "description") if key in schema}
        return {"anyOf": [schema, _NULL], **said}
    schema["type"] = [*([kinds] if isinstance(kinds, str) else kinds), "null"]
    if "enum" in schema:
        schema["enum"] = [*schema["enum"], None]
    return schema


def _no(path: str, why: str) -> NotStrictError:
    return NotStrictError(f"{path or 'it'} {why}")


def _listed(names: set[str]) -> str:
    return ", ".join(repr(name) for name in sorted(map(str, names)))
