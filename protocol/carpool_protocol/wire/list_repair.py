"""Repairs entries of lists so that every agent can read them.

Owns the repair of an entry that breaks the MCP schema. Agents on the typed SDKs (TypeScript, Python) drop a
whole list for one such entry, and through carpool that is the list of all servers (rule 18: a bad server
never blocks the others). A member of a wrong type, such as `null`, is left out. An `inputSchema` becomes an
object with `"type": "object"`, which adds nothing, because arguments are always an object; one that is nested
too deeply says no more than that. An `outputSchema` that agents cannot compile is left out (`output_schema`).
An entry that needs a name gets its URI as its name. Sources: MCP 2025-11-25, schema, `Tool`, `Prompt`,
`Resource`, `ResourceTemplate`, `ToolAnnotations`, `Annotations`, `Icon`; 2026-07-28 keeps them.

Invariant: a valid entry stays byte for byte, and so does one that cannot be read. Pure. Knows nothing of:
pages, names that are used twice, the reader.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from carpool_protocol.ids import RawJson
from carpool_protocol.wire.output_schema import is_compilable, is_too_deep

Family = Literal["tools", "prompts", "resources", "templates"]
_TIME: Final = (
    r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
    r"T([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d+)?)?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$"
)
"""A time as the official TypeScript SDK accepts it (zod: `iso.datetime({offset: true})`)."""


class _Object(Struct):
    """Any object."""


class _Icon(Struct, rename="camel"):
    src: str
    mime_type: str = ""
    sizes: list[str] = []
    theme: Literal["light", "dark"] = "light"


class _Hints(Struct, rename="camel"):
    title: str = ""
    read_only_hint: bool = False
    destructive_hint: bool = False
    idempotent_hint: bool = False
    open_world_hint: bool = False


class _Annotations(Struct, rename="camel"):
    audience: list[Literal["user", "assistant"]] = []
    priority: Annotated[float, Meta(ge=0, le=1)] = 0
    last_modified: Annotated[str, Meta(pattern=_TIME)] = "2000-01-01T00:00Z"


class _Argument(Struct):
    name: str
    title: str = ""
    description: str = ""
    required: bool = False


class _Entry(Struct, rename="camel", kw_only=True):
    title: str = ""
    description: str = ""
    icons: list[_Icon] = []
    meta: _Object = msgspec.field(name="_meta", default_factory=_Object)


class _Schema(Struct, kw_only=True):
    """The schema of a result. MCP 2026-07-28 leaves its type open."""

    dialect: str = msgspec.field(name="$schema", default="")
    properties: dict[str, _Object] = {}
    required: list[str] = []


class _InputSchema(_Schema, kw_only=True):
    type: Literal["object"]


class _Execution(Struct, rename="camel"):
    task_support: Literal["forbidden", "optional", "required"] = "forbidden"


class _Tool(_Entry, rename="camel", kw_only=True):
    input_schema: _InputSchema
    output_schema: _Schema = msgspec.field(default_factory=_Schema)
    annotations: _Hints = msgspec.field(default_factory=_Hints)
    execution: _Execution = msgspec.field(default_factory=_Execution)


class _Prompt(_Entry, rename="camel", kw_only=True):
    arguments: list[_Argument] = []


class _Template(_Entry, rename="camel", kw_only=True):
    name: str
    mime_type: str = ""
    annotations: _Annotations = msgspec.field(default_factory=_Annotations)


class _Resource(_Template, rename="camel", kw_only=True):
    size: int = 0


_KINDS: Final[Mapping[Family, type[Struct]]] = {
    "tools": _Tool,
    "prompts": _Prompt,
    "resources": _Resource,
    "templates": _Template,
}
_URIS: Final[Mapping[Family, str]] = {"resources": "uri", "templates": "uriTemplate"}
_FORMS: Final = {b"true": Raw(b"{}"), b"false": Raw(b'{"not":{}}')}
"""A boolean schema (JSON Schema 2020-12, 4.3.2) → the equivalent object."""


def _members(kind: type[Struct]) -> dict[str, msgspec.json.Decoder[Any]]:
    return {each.encode_name: msgspec.json.Decoder(each.type) for each in msgspec.structs.fields(kind)}


_whole: Final = {family: msgspec.json.Decoder(kind) for family, kind in _KINDS.items()}
_each: Final = {family: _members(kind) for family, kind in _KINDS.items()}
_of_schema: Final = _members(_Schema)
_cut: Final = msgspec.json.Decoder(dict[str, Raw])


def repair_entry(definition: RawJson, family: Family) -> RawJson:
    """The entry, repaired if necessary."""
    try:
        if _is(_whole[family], definition) and not (family == "tools" and _has_bad_schema(definition)):
            return definition
        return _repaired_entry(definition, family)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, KeyError):
        return definition


def lost_members(definition: RawJson, repaired: RawJson) -> list[str]:
    """The members of an entry that its repair has left out or emptied, for people. A `null` says nothing, so
    its loss is none.
    """
    if repaired is definition:
        return []
    before, after = _cut.decode(definition), _cut.decode(repaired)
    lost = [name for name, value in before.items() if name not in after and bytes(value) != b"null"]
    arguments = bytes(before.get("inputSchema", b"null"))
    emptied = after.get("inputSchema") == _ANY_ARGUMENTS and arguments not in _NO_ARGUMENTS
    return [*lost, *(["inputSchema"] if emptied and not _is_object(arguments) else [])]


def _is_object(schema: bytes) -> bool:
    """True if nothing but types was to be added to a schema."""
    return not is_too_deep(schema) and _is(_cut, schema)


_ANY_ARGUMENTS: Final = Raw(b'{"type":"object"}')
_NO_ARGUMENTS: Final = (b"null", b"true", b"{}")


class _Schemas(Struct, rename="camel"):
    """The schemas of a tool."""

    input_schema: Raw = Raw()
    output_schema: Raw = Raw()


_schemas: Final = msgspec.json.Decoder(_Schemas)


def _has_bad_schema(definition: RawJson) -> bool:
    """True if a tool whose members have the right types has a schema that agents cannot read."""
    found = _schemas.decode(definition)
    arguments, result = bytes(found.input_schema), bytes(found.output_schema)
    return is_too_deep(arguments) or bool(result and not is_compilable(result))


def _repaired_entry(definition: RawJson, family: Family) -> RawJson:
    entry = _cut.decode(definition)
    for name in ("inputSchema", "outputSchema") if family == "tools" else ():
        if name == "inputSchema" or name in entry:
            entry[name] = _schema(entry.get(name), typed=name == "inputSchema")
    fit = {name: value for name, value in entry.items() if _is(_each[family].get(name), value)}
    if "outputSchema" in fit and not is_compilable(bytes(fit["outputSchema"])):
        del fit["outputSchema"]
    if family in _URIS and "name" not in fit:
        fit["name"] = fit[_URIS[family]]
    return RawJson(msgspec.json.encode(fit))


def _schema(raw: Raw | None, *, typed: bool) -> Raw:
    """The repaired schema of arguments (`typed`) or of a result. A result's schema that is no object
    stays.
    """
    if typed and raw is not None and is_too_deep(raw):
        return _ANY_ARGUMENTS
    try:
        members = _cut.decode(raw or b"{}")
    except msgspec.ValidationError:
        if not typed:
            return raw or Raw(b"{}")
        members = {}
    try:
        properties = _cut.decode(members.get("properties", b"{}"))
        forms = {name: _FORMS.get(bytes(value), value) for name, value in properties.items()}
    except msgspec.ValidationError:
        forms = {}
    fit = {**members, "properties": Raw(msgspec.json.encode(forms))} if forms else members
    if typed:
        fit = {"type": Raw(b'"object"')} | {name: value for name, value in fit.items() if name != "type"}
    return Raw(msgspec.json.encode({name: it for name, it in fit.items() if _is(_of_schema.get(name), it)}))


def _is(decoder: "msgspec.json.Decoder[Any] | None", value: Raw | bytes) -> bool:
    """True if `value` has the decoder's type. Raises msgspec's errors if it cannot be read at all."""
    if decoder is None:
        return True
    try:
        decoder.decode(value)
    except msgspec.ValidationError:
        return False
    return True
