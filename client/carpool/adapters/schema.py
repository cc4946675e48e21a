"""An `inputSchema` as model APIs take it: an object at its top, with nothing else there.

Owns what becomes of a schema that is something else at its top. Sources: OpenAI API, "Function calling", and
its error "schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'const'/'not' at the top
level"; Anthropic Messages API, `ToolParam.input_schema` (its `type` is "object"), and its error "input_schema
does not support oneOf, allOf, or anyOf at the top level". One such tool makes either of them refuse the whole
request.

Invariants: everything that the given schema describes can still be said; what is said less is in `lost`, for
the model to read. Everything below the top stays as it is: `$defs`, `$ref`, unions, formats.

Knows nothing of: names, the strict form.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

Schema = Mapping[str, Any]

MAX_LOST_CHARS: Final = 1000
TOO_LONG: Final = (
    "The arguments must also fit rules that are too long to show; the tool says what it refuses."
)
_MAX_HOPS: Final = 16
_MAX_ARMS: Final = 1000
"""Of all unions at the top together: arms that refer to each other never end."""
_NOT_AT_THE_TOP: Final = ("anyOf", "oneOf", "allOf", "not", "enum", "const")
_MERGED: Final = frozenset(
    {"type", "properties", "required", "additionalProperties", "title", "description", "$ref", "$defs"}
)
"""The keys that a part of an `allOf` may have without a loss when it is merged."""


class Parameters(NamedTuple):
    """A schema with an object at its top."""

    schema: dict[str, Any]
    lost: str
    """The rules that were dropped, as a sentence for the tool's description; empty if nothing is lost."""


def as_object(schema: object) -> Parameters:
    """`schema` with an object at its top; `{"type": "object", "properties": {}}` for what is no schema.

    The properties of all arms of an `anyOf`, `oneOf` or `allOf` become its own; those that every arm of a
    union requires are required.
    """
    if not isinstance(schema, Mapping):
        return Parameters({"type": "object", "properties": {}}, "")
    whole, lost = dict(schema), ""
    if whole.get("type") != "object" or "$ref" in whole or any(key in whole for key in _NOT_AT_THE_TOP):
        try:
            whole, lost = _Flattening(schema).of(schema), _lost(followed(schema, schema))
        except RecursionError:
            whole, lost = {"type": "object"}, TOO_LONG
    if not isinstance(whole.get("properties"), Mapping):
        whole["properties"] = {}  # OpenAI: "object schema missing properties"
    return Parameters(whole, lost)


def followed(schema: Schema, root: Schema) -> dict[str, Any]:
    """A schema with the `$ref` at its own top replaced by what it names within `root`.

    What stands beside the `$ref` wins. One that leads nowhere, out of `root`, or in a circle names nothing.
    """
    found = dict(schema)
    for _ in range(_MAX_HOPS):
        if "$ref" not in found:
            return found
        target = pointed(root, found.pop("$ref"))
        found = {**target, **found} if target is not None else found
    found.pop("$ref", None)
    return found


def pointed(root: Schema, ref: object) -> Schema | None:
    """The schema that `#/…` names (RFC 6901, as a URI fragment); None where there is none."""
    if not isinstance(ref, str) or not ref.startswith("#"):
        return None
    found: object = root
    for step in unquote(ref[1:]).split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found.get(key)
        elif isinstance(found, Sequence) and not isinstance(found, str) and key.isdecimal():
            found = found[int(key)] if int(key) < len(found) else None
        else:
            return None
    return found if isinstance(found, Mapping) else None


def arms(schema: Schema, key: str) -> list[Schema]:
    """The schemas under `anyOf`, `oneOf` or `allOf`; those that are `true` or `false` are left out."""
    found = schema.get(key)
    return [arm for arm in found if isinstance(arm, Mapping)] if isinstance(found, list | tuple) else []


def properties_of(schema: Schema) -> dict[str, Any]:
    """The properties that a schema describes itself."""
    found = schema.get("properties")
    return dict(found) if isinstance(found, Mapping) else {}


def required_of(schema: Schema) -> list[str]:
    """The names that a schema requires itself, in its order, each once."""
    found = schema.get("required")
    names = found if isinstance(found, list | tuple) else ()
    return list(dict.fromkeys(name for name in names if isinstance(name, str)))


class _Flattening:
    """The arms of one schema, as far as they go."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._left = _MAX_ARMS

    def of(self, schema: Schema, depth: int = 0) -> dict[str, Any]:
        """The schema as an object without arms."""
        top = followed(schema, self._root)
        properties, required = properties_of(top), required_of(top)
        for part in self._arms(top, "allOf", depth):
            _join(properties, part, "allOf")
            required += required_of(part)
        for key in ("anyOf", "oneOf"):
            variants = self._arms(top, key, depth)
            own: dict[str, Any] = {}
            for variant in variants:
                _join(own, variant, "anyOf")
            _join(properties, {"properties": own}, "allOf")
            if variants:
                required += [name for name in required_of(variants[0]) if _all_require(variants, name)]
                if "additionalProperties" not in top and _all_closed(variants):
                    top["additionalProperties"] = False
        for key in (*_NOT_AT_THE_TOP, "required"):
            top.pop(key, None)
        needed = {"required": list(dict.fromkeys(required))} if required else {}
        return {**top, "type": "object", "properties": properties, **needed}

    def _arms(self, top: Schema, key: str, depth: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for arm in arms(top, key):
            if self._left <= 0 or depth >= _MAX_HOPS:
                break
            self._left -= 1
            found.append(self.of(arm, depth + 1))
        return found


def _join(properties: dict[str, Any], more: Schema, how: str) -> None:
    """Add properties; one that is described in two ways fits either (`anyOf`) or both (`allOf`)."""
    for name, schema in properties_of(more).items():
        known = properties.get(name, schema)
        if known == schema:
            properties[name] = schema
        elif isinstance(known, Mapping) and known.keys() == {how}:
            properties[name] = {how: [*known[how], schema]} if schema not in known[how] else known
        else:
            properties[name] = {how: [known, schema]}


def _all_require(variants: list[dict[str, Any]], name: str) -> bool:
    return all(name in required_of(variant) for variant in variants)


def _all_closed(variants: list[dict[str, Any]]) -> bool:
    return all(variant.get("additionalProperties") is False for variant in variants)


def _lost(top: Schema) -> str:
    rules = {key: top[key] for key in _NOT_AT_THE_TOP if key in top}
    if all(part.keys() <= _MERGED for part in arms(top, "allOf")):
        rules.pop("allOf", None)
    if not rules:
        return ""
    try:
        said = json.dumps(rules, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError):
        said = ""
    if said and len(said) <= MAX_LOST_CHARS:
        return f"The arguments must also fit this JSON Schema: {said}"
    return TOO_LONG
