"""Tools of carpool's own, which a profile may show its agents: what they are called, how they are defined.

Owns two sets: `find_tools`, `describe_tool` and `call_tool`, which stand in the list in place of all others
(`show: search`), and `list_resources`, `read_resource`, `list_prompts` and `get_prompt` for agents that know
only tools (`resource_tools`). And owns which of them are other requests in disguise (`TARGET_METHODS`).

Invariant: a name of ours is nobody else's in that view. A server's tool that is listed under such a name
keeps it, and ours gets a hash by the rules of `names`; `SPELLINGS` has every name that one of ours can have.

Pure. Knows nothing of: what is found (`finding`), how it is worded (`own_words`), sessions.
"""

from collections.abc import Collection, Sequence
from typing import Final, Literal, get_args

import msgspec
from msgspec import Struct

from carpool_protocol.faults.fault_answers import TOOLS_CALL
from carpool_protocol.ids import RawJson, ServerName
from carpool_protocol.wire.tool_name_resolver import qualify

BuiltinKind = Literal[
    "find_tools", "describe_tool", "call_tool",
    "list_resources", "read_resource", "list_prompts", "get_prompt",
]  # fmt: skip
SEARCH_TOOLS: Final[tuple[BuiltinKind, ...]] = get_args(BuiltinKind)[:3]
RESOURCE_TOOLS: Final[tuple[BuiltinKind, ...]] = get_args(BuiltinKind)[3:]

TARGET_METHODS: Final[dict[BuiltinKind, str]] = {
    "call_tool": TOOLS_CALL,
    "read_resource": "resources/read",
    "get_prompt": "prompts/get",
}
"""The tools that stand for a request to one server, and the method of that request."""

CARPOOL_SERVER: Final = ServerName("carpool")
MAX_FOUND: Final = 50
DEFAULT_FOUND: Final = 10
MAX_NAMED: Final = 30
"""The number of servers that `instructions` name."""
_MAX_SPELLINGS: Final = 4
"""The number of names that each of carpool's own tools can have. Where servers have all of them, it is not
shown.
"""


class BuiltinTool(Struct, frozen=True):
    """One of carpool's own tools, as the agents of a view see it."""

    qualified: str
    kind: BuiltinKind
    definition: RawJson

    @property
    def fingerprint(self) -> object:
        """See `pagination.Entry`."""
        return self.definition

    @property
    def max_bytes(self) -> int:
        """See `pagination.Entry`."""
        return len(self.definition)


def _spell(kind: BuiltinKind, way: int) -> str:
    return qualify(CARPOOL_SERVER, kind, prefix="", hashed=way)


SPELLINGS: Final[dict[str, BuiltinKind]] = {
    _spell(kind, way): kind for kind in (*SEARCH_TOOLS, *RESOURCE_TOOLS) for way in range(_MAX_SPELLINGS)
}
"""Every name that can mean one of carpool's own tools in some view."""


def builtin_tools(taken: Collection[str], *, search: bool, resources: bool) -> dict[str, BuiltinTool]:
    """Return the tools of a view, by name and in the order of its list. `taken` has the names of its
    servers' tools.
    """
    kinds = (*(SEARCH_TOOLS if search else ()), *(RESOURCE_TOOLS if resources else ()))
    names: dict[BuiltinKind, str] = {}
    for kind in kinds:
        if free := [name for way in range(_MAX_SPELLINGS) if (name := _spell(kind, way)) not in taken]:
            names[kind] = free[0]
    return {name: BuiltinTool(name, kind, _define(kind, names)) for kind, name in names.items()}


def usage_instructions(own: Collection[BuiltinTool], servers: Sequence[str]) -> str:
    """Return two sentences for `instructions`; empty where all tools are listed."""
    names = {tool.kind: tool.qualified for tool in own}
    if "find_tools" not in names or "call_tool" not in names:
        return ""
    more = [f"{len(servers) - MAX_NAMED} more"] if len(servers) > MAX_NAMED else []
    of = f" of {', '.join([*servers[:MAX_NAMED], *more])}" if servers else ""
    describe = names.get("describe_tool", "describe_tool")
    return (
        f"The tools{of} are not listed one by one: {names['find_tools']} finds them by what you want to do, "
        f"and {names['call_tool']} calls one. {describe} tells the parameters of a tool."
    )


# --- definitions -----------------------------------------------------------------------------------------


class _Form(Struct, frozen=True):
    """A definition in which `{find_tools}` stands for the name of that tool in a view."""

    description: str
    properties: dict[str, dict[str, object]]
    required: list[str] = []


def _text(description: str) -> dict[str, object]:
    return {"type": "string", "description": description}


_FORMS: Final[dict[BuiltinKind, _Form]] = {
    "find_tools": _Form(
        "Find tools by what they do. Answers the best matches, the best first, one in a line: name, "
        "parameters (optional ones with a ?), description.",
        {
            "query": _text("What you want to do, in a few words."),
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_FOUND, "default": DEFAULT_FOUND},
            "server": _text("Only tools of this server."),
            "tag": _text("Only tools of servers with this tag."),
        },
        ["query"],
    ),
    "describe_tool": _Form(
        "Tell the whole definition of one tool, with the schema of its arguments.",
        {"name": _text("As {find_tools} wrote it.")},
        ["name"],
    ),
    "call_tool": _Form(
        "Call a tool that {find_tools} found. The answer is that tool's own.",
        {
            "name": _text("As {find_tools} wrote it."),
            "arguments": {
                "type": "object",
                "description": "The tool's own arguments; {describe_tool} tells their schema.",
            },
        },
        ["name"],
    ),
    "list_resources": _Form(
        "List resources (files, records, pages) of all servers with their URIs, and templates of URIs.",
        {"cursor": _text("The nextCursor of the page before.")},
    ),
    "read_resource": _Form(
        "Read one resource.",
        {"uri": _text("As {list_resources} wrote it, or made from one of its templates.")},
        ["uri"],
    ),
    "list_prompts": _Form(
        "List prompts (prepared instructions) of all servers, with their arguments.",
        {"cursor": _text("The nextCursor of the page before.")},
    ),
    "get_prompt": _Form(
        "Get the text of one prompt.",
        {
            "name": _text("As {list_prompts} wrote it."),
            "arguments": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        ["name"],
    ),
}


def _define(kind: BuiltinKind, names: dict[BuiltinKind, str]) -> RawJson:
    form = _FORMS[kind]
    called = {**{each: each for each in get_args(BuiltinKind)}, **names}

    def filled(value: object) -> object:
        return value.format_map(called) if isinstance(value, str) else value

    properties = {
        name: {key: filled(value) for key, value in its.items()} for name, its in form.properties.items()
    }
    schema: dict[str, object] = {"type": "object", "properties": properties}
    if form.required:
        schema["required"] = form.required
    definition = {"name": names[kind], "description": filled(form.description), "inputSchema": schema}
    if kind != "call_tool":
        definition["annotations"] = {"readOnlyHint": True}
    return RawJson(msgspec.json.encode(definition))
