"""The tables of servers in a program's file.

Owns the reading of such a file: its tables of servers, the program's main one first. Pure. Knows nothing of:
what a server says.
"""

from msgspec import Struct

from carpool.setup import toml
from carpool.setup.client_files import CLAUDE_CODE, McpClient
from carpool_protocol.config.edit.edit import value_at
from carpool_protocol.config.foreign.formats import VS_CODE_SETTINGS, shape_of
from carpool_protocol.config.text.jsonc import JsonValue, parse
from carpool_protocol.config.text.problems import render_path


class ServerTable(Struct, frozen=True):
    """An object of servers."""

    path: tuple[str, ...]
    servers: dict[str, JsonValue]
    written: bool = True
    """True if the table is in the file; the program's main one may be missing."""
    root: str = ""
    """The directory that these servers are for; empty if they are for all, or for the project of the file."""

    def __repr__(self) -> str:
        return f"Table({self.path!r})"


def tables(client: McpClient, path: str, text: str) -> list[ServerTable]:
    """Return all tables; the main one is always among them, and may be empty.

    Raises `ValueError` with the fault of the file, a clause that quotes no value.
    """
    if client.form == "codex":
        servers = toml.plain(toml.read(text).get(toml.SERVERS, {}))
        return [_table({toml.SERVERS: servers}, (toml.SERVERS,))]
    parsed = parse(text, path)
    if not parsed.complete or parsed.problems:
        first = parsed.problems[0]
        raise ValueError(f"is broken at line {first.line}: {first.text}")
    if not isinstance(parsed.value, dict):
        raise ValueError("holds no object")  # noqa: TRY004 - of a text, not of a program
    found = [_table(parsed.value, _main(client, path, parsed.value))]
    projects = parsed.value.get("projects")
    if client is CLAUDE_CODE and isinstance(projects, dict):
        for root, held in projects.items():
            if isinstance(held, dict) and isinstance(held.get("mcpServers"), dict):
                found.append(_table(parsed.value, ("projects", root, "mcpServers"), root))
    return found


def _main(client: McpClient, path: str, value: dict[str, JsonValue]) -> tuple[str, ...]:
    match client.form:
        case "vscode" if path.endswith("settings.json"):
            return ("mcp", "servers")
        case "vscode":
            return ("servers",)
        case "opencode" if shape_of({"mcp": value.get("mcp", {})}) is VS_CODE_SETTINGS:
            return ("mcp", "servers")  # of its second version
        case "opencode":
            return ("mcp",)
        case _:
            return ("mcpServers",)


def _table(value: dict[str, JsonValue], path: tuple[str, ...], root: str = "") -> ServerTable:
    held = value_at(value, path)
    written = held is not None
    if held is None:
        held = {}
    if not isinstance(held, dict):
        raise ValueError(f"has no object at {render_path(path)}")  # noqa: TRY004 - of a text, not of a program
    return ServerTable(path, held, written, root)
