"""`python -m carpool_protocol.config.pages.json_schema` prints `docs/carpool.schema.json`.

Made from the table of settings (JSON Schema 2020-12). A test compares the file with it, and it with the
reader: every file in carpool's own shape that the reader accepts is valid, and the schema has no key that the
reader does not know. Rules between settings are only in the reader.
"""

import json
import re
import sys
from typing import Any

from msgspec import UNSET

from carpool_protocol.config.schema.server_kinds import SERVER_KINDS
from carpool_protocol.config.schema.settings import (
    FILE_SETTINGS,
    HOOK_SETTINGS,
    PROFILE_SETTINGS,
    SERVER_SETTINGS,
    WORKSPACE_SETTINGS,
    Setting,
    may_be_late,
)

Schema = dict[str, Any]

_NAME = "^[A-Za-z0-9-]+(_[A-Za-z0-9-]+)*$"
_PAGE_LINK = re.compile(r"\[([a-z-]+)\.md\]\(\1\.md\)")
"""A link of the settings page. An editor shows the command that prints the page in its place."""
_SWITCHED_OFF: Schema = {
    "type": "object",
    "properties": {"disabled": {"const": True}},
    "required": ["disabled"],
}


def schema() -> Schema:
    """The schema of a `carpool.json`."""
    server = _object(SERVER_SETTINGS, late=True)
    alone = {"required": ["tools_file"], "not": {"anyOf": [{"required": [kind]} for kind in SERVER_KINDS]}}
    server["oneOf"] = [*({"required": [kind]} for kind in SERVER_KINDS), alone]
    whole = _object(FILE_SETTINGS, late=False)
    workspace = _object(WORKSPACE_SETTINGS, late=False)
    workspace["properties"]["mcpServers"] = _servers(
        "Servers for the agents in this workspace; each replaces a server of the same name for all agents.",
        {"anyOf": [{"$ref": "#/$defs/server"}, _SWITCHED_OFF]},
    )
    whole["properties"] = {
        "$schema": {"type": "string"},
        "mcpServers": _servers("The servers, by name.", {"$ref": "#/$defs/server"}),
        "workspaces": {
            "type": "object",
            "description": "Workspaces with servers of their own, by name.",
            "patternProperties": {_NAME: {"$ref": "#/$defs/workspace"}},
            "additionalProperties": False,
        },
        "profiles": {
            "type": "object",
            "description": "Profiles by name: what their agents may see and call, and how much.",
            "patternProperties": {_NAME: {"$ref": "#/$defs/profile"}},
            "additionalProperties": False,
        },
        "hooks": {
            "type": "array",
            "description": "Hooks that check calls before and after them, in this order.",
            "items": {"$ref": "#/$defs/hook"},
        },
        **whole["properties"],
    }
    hook = _object(HOOK_SETTINGS, late=False)
    hook["oneOf"] = [{"required": ["command"]}, {"required": ["python"]}]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "carpool.json",
        **whole,
        "$defs": {
            "server": server,
            "workspace": workspace,
            "profile": _object(PROFILE_SETTINGS, late=False),
            "hook": hook,
        },
    }


def _servers(description: str, each: Schema) -> Schema:
    return {
        "type": "object",
        "description": description,
        "patternProperties": {_NAME: each},
        "additionalProperties": False,
    }


def text() -> str:
    """The schema as the text of a file."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def _object(settings: tuple[Setting, ...], *, late: bool) -> Schema:
    properties: Schema = {}
    for setting in settings:
        for spelling in (setting.key, *setting.also):
            group, _, name = spelling.rpartition(".")
            holder = properties
            if group:
                inner = {"type": "object", "properties": {}, "additionalProperties": False}
                holder = properties.setdefault(group, inner)["properties"]
            holder[name] = _described(setting, late=late)
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _described(setting: Setting, *, late: bool) -> Schema:
    kind = _kind(setting)
    if late and may_be_late(setting):
        kind = {"anyOf": [kind, {"type": "string", "pattern": r"\$\{"}]}
    unit = f" In {setting.unit}." if setting.unit else ""
    found = {"description": _PAGE_LINK.sub(r"`carpool docs \1`", setting.text) + unit, **kind}
    if setting.default is not UNSET and setting.default is not None:
        found["default"] = list(setting.default) if isinstance(setting.default, tuple) else setting.default
    return found


def _kind(setting: Setting) -> Schema:
    match setting.kind:
        case "switch":
            return {"type": "boolean"}
        case "count":
            return {"type": "integer", "minimum": int(setting.low), "maximum": int(setting.high)}
        case "seconds":
            return _seconds(setting)
        case "fraction":
            return {"type": "number", "minimum": 0, "maximum": 1}
        case "text":
            choices = [*setting.choices, *(theirs for theirs, _ in setting.spellings)]
            return {"type": "string", **({"enum": choices} if choices else {})}
        case "template" | "url" | "secret":
            return {"type": "string"}
        case "texts" | "templates":
            texts = {"type": "array", "items": {"type": "string"}}
            return {"anyOf": [{"type": "string"}, texts]} if setting.alone else texts
        case "template map" | "header map":
            return {"type": "object", "additionalProperties": {"type": "string"}}
        case "token map":
            digest = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}
            keys = {
                "hash": digest,
                "profile": {"type": "string", "minLength": 1},
                "operator": {"enum": [True, False, "read"]},
                "expires": {"type": "string"},
                "workspaces": {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
            }
            token = {"type": "object", "properties": keys, "required": ["hash"]}
            tokens = {
                "type": "object",
                "additionalProperties": {"anyOf": [digest, {**token, "additionalProperties": False}]},
            }
            return {"anyOf": [{"const": False}, tokens]}
        case "seconds map":
            return {"type": "object", "additionalProperties": _seconds(setting)}


def _seconds(setting: Setting) -> Schema:
    least = "minimum" if setting.zero else "exclusiveMinimum"
    return {"type": "number", least: 0, "maximum": int(setting.high)}


if __name__ == "__main__":
    sys.stdout.write(text())
