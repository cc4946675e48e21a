"""The list of tools that people write or export for a server that is not always available.

Owns the content of such a file: `{"tools": [TOOL, …]}` as in the answer to `tools/list`, a bare list of
these, or the output of `carpool tools --json`, of which the tools of this server count. A tool is an object
with a `name`; one without `inputSchema` takes any object, and `null` members are ignored. Comments are
allowed, as in every file that people write.

Invariant: agents on every SDK can read the result. Some drop a whole list, of all servers, for one tool with
an `inputSchema` that breaks MCP's rules (`"type": "object"`; schema of 2025-11-25, Tool).

Knows nothing of: the reading of the file from disk, when the list counts.
"""

from typing import Any, Final

import msgspec

from carpool_protocol.config.schema.value_types import kind_of
from carpool_protocol.config.text.jsonc import JsonValue, ValueBudget, parse
from carpool_protocol.config.text.problems import ConfigProblem, KeyPath, render_path
from carpool_protocol.ids import RawJson, ServerName
from carpool_protocol.link.messages import ToolOffer
from carpool_protocol.wire.list_repair import repair_entry

MAX_TOOLS: Final = 10_000
MAX_NAME_CHARS: Final = 256
MAX_PROBLEMS: Final = 5
_OTHERS_SCHEMA: Final = frozenset({"input_schema", "parameters"})
"""The names of `inputSchema` in model APIs."""


def read_tools(
    text: str, file: str, server: ServerName, allowance: ValueBudget | None = None
) -> tuple[ToolOffer, ...] | list[ConfigProblem]:
    """The tools of `server` in the order of the file, or its problems. `allowance`: see `parse`."""
    parsed = parse(text, file, least="[]", allowance=allowance)
    problems = list(parsed.problems)
    if not parsed.complete:
        return problems

    def problem(path: KeyPath, why: str) -> None:
        at = path
        while at not in parsed.lines:
            at = at[:-1]
        problems.append(ConfigProblem(file, parsed.lines[at], render_path(path), why))

    under, found = _entries(parsed.value)
    if not isinstance(found, list):
        problem((), 'must be a list of tools, or an object like { "tools": [ … ] }')
        return problems
    if len(found) > MAX_TOOLS:
        problem(under, f"lists more than {MAX_TOOLS} tools")
        return problems
    offers: dict[str, ToolOffer] = {}
    for at, value in enumerate(found):
        tool = _exported(value, server)
        if tool is None:
            continue
        why = _tool_problem(tool)
        if why:
            problem((*under, at), why)
        elif isinstance(tool, dict):
            name = str(tool["name"])
            if name in offers:
                problem((*under, at), "this tool is listed twice; keep one")
            offers[name] = ToolOffer(
                name, repair_entry(RawJson(msgspec.json.encode(_complete_tool(tool))), "tools")
            )
    if found and not offers and not problems:
        problem(under, f"lists tools of other servers only, and none of {server}")
    return problems[:MAX_PROBLEMS] or tuple(offers.values())


def _entries(whole: JsonValue) -> tuple[KeyPath, JsonValue]:
    return (("tools",), whole.get("tools")) if isinstance(whole, dict) else ((), whole)


def _complete_tool(tool: dict[str, JsonValue]) -> dict[str, Any]:
    members = {key: value for key, value in tool.items() if value is not None}
    schema: Any = members.get("inputSchema", {})
    return {**members, "inputSchema": schema if "type" in schema else {"type": "object", **schema}}


def _exported(value: JsonValue, server: ServerName) -> JsonValue:
    """The tool in an entry of `carpool tools --json`, or the entry itself. None: it is another server's."""
    if isinstance(value, dict) and "definition" in value and "server" in value:
        return value["definition"] if value["server"] == server else None
    return value if value is not None else ""


def _tool_problem(tool: JsonValue) -> str:
    """The problem of one tool; empty: none."""
    if not isinstance(tool, dict):
        return f'must be a tool, like {{ "name": "…", "inputSchema": {{ … }} }}, found {kind_of(tool)}'
    name = tool.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable():
        return f"has no name: a text of 1 to {MAX_NAME_CHARS} printable characters"
    for key in _OTHERS_SCHEMA & tool.keys():
        if "inputSchema" not in tool:
            return f"its {key} is no member of a tool in MCP; call it inputSchema"
    schema = tool.get("inputSchema")
    if schema is not None and not isinstance(schema, dict):
        return "its inputSchema must be an object"
    if schema and schema.get("type", "object") != "object":
        return 'its inputSchema must have "type": "object": arguments are always named'
    if not isinstance(tool.get("description") or "", str):
        return "its description must be text"
    return ""
