"""Tool lists that were written for model APIs, read as MCP's.

Owns which shapes are known: chat completions (`{"type": "function", "function": {…}}`), the Responses API and
the older `functions` (`{"name", "parameters"}`), the Messages API (`{"name", "input_schema"}`), MCP itself;
`required` within the parameters or beside them, parameters that are a bare map of properties, or none at all.
What comes out can be written into a `tools_file` (docs/names.md). Sources: see `tools`.

Knows nothing of: files, names that are legal.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

Json = dict[str, Any]

_SCHEMAS: Final = ("parameters", "input_schema", "inputSchema")
_OF_A_SCHEMA: Final = ("$ref", "$defs", "anyOf", "oneOf", "allOf", "additionalProperties", "enum")
_KEPT: Final = ("title", "outputSchema", "annotations", "_meta")


class ToolListError(ValueError):
    """A list that cannot be read; the text says which tool of it, and why."""


def mcp_tools(functions: Iterable[Mapping[str, Any]] | Mapping[str, Any]) -> list[Json]:
    """The tools as `tools/list` gives them: `name`, `description` where there is one, `inputSchema`.

    Takes the list, or an object that has it under `tools` or `functions`. Raises `ToolListError`, also
    for tools that a provider runs itself (`web_search`, `bash_20250124`).
    """
    found: object = functions
    if isinstance(functions, Mapping):
        found = functions.get("tools", functions.get("functions"))
    if not isinstance(found, Iterable) or isinstance(found, str | bytes):
        raise ToolListError("a list of tools is needed, or an object that has one under 'tools'")
    return [_tool(function, f"tool {at}") for at, function in enumerate(found)]


def _tool(entry: object, which: str) -> Json:
    if not isinstance(entry, Mapping):
        raise ToolListError(f"{which} is no object")
    inner = entry.get("function")
    about = inner if isinstance(inner, Mapping) else entry
    name = about.get("name")
    kind = entry.get("type") or "function"
    # The Messages API says `custom` of functions, OpenAI of tools that take free text.
    if kind != "function" and not (kind == "custom" and any(key in about for key in _SCHEMAS)):
        raise ToolListError(f"{which} is of type {str(kind)[:40]!r}: no function that can be called here")
    if not isinstance(name, str) or not name:
        raise ToolListError(f"{which} has no name")
    tool: Json = {"name": name}
    description = about.get("description", entry.get("description"))
    if isinstance(description, str):
        tool["description"] = description
    tool |= {key: about[key] for key in _KEPT if key in about}
    given = next((about[key] for key in _SCHEMAS if about.get(key) is not None), None)
    if given is None and inner is not None:  # parameters beside the function, not in it
        given = next((entry[key] for key in _SCHEMAS if entry.get(key) is not None), None)
    tool["inputSchema"] = _schema(given, f"{which} ({name[:80]})")
    for beside in (about, entry):
        _require(tool["inputSchema"], beside.get("required"))
    return tool


def _schema(given: object, which: str) -> Json:
    if given is None:
        return {"type": "object", "properties": {}}
    if not isinstance(given, Mapping):
        raise ToolListError(f"the parameters of {which} are no object")
    schema = dict(given)
    if _is_schema(schema):
        return schema if "type" in schema or "$ref" in schema else {"type": "object", **schema}
    if not all(isinstance(each, Mapping) for each in schema.values()):
        raise ToolListError(f"the parameters of {which} are neither a schema nor a map of properties")
    return {"type": "object", "properties": schema}


def _is_schema(given: Json) -> bool:
    """True for a schema, false for a bare map of properties (one of which may be called `type`)."""
    if isinstance(given.get("type"), str | list) or not given:
        return True
    if isinstance(given.get("required"), list) or any(
        not isinstance(given[key], Mapping) for key in _OF_A_SCHEMA if key in given
    ):
        return True
    properties = given.get("properties")
    return isinstance(properties, Mapping) and all(
        isinstance(each, Mapping | bool) for each in properties.values()
    )


def _require(schema: Json, names: object) -> None:
    """Add what is required beside the schema. A bare `true`, as some write it, is no list."""
    if not isinstance(names, list | tuple):
        return
    within = schema.get("required")
    known = list(within) if isinstance(within, list | tuple) else []
    schema["required"] = known + [name for name in names if isinstance(name, str) and name not in known]
