"""The programs whose servers `carpool setup` takes over: the places of their files, and the form of an
entry.

Owns that table. The places are those of the programs' own reference pages, as of 2026-11. A place may hold
`*` (a profile of VS Code). If a variable of the environment sends a program to another place, that place is
used. Pure: the environment comes in. Knows nothing of: which files exist, what is in them.
"""

import os
from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

from carpool_protocol.config.text.jsonc import JsonValue

Scope = Literal["user", "project"]
Form = Literal["plain", "vscode", "opencode", "codex"]
"""The form in which the file holds servers: `mcpServers`, or `servers`, `mcp`, or tables of TOML."""


class McpClient(Struct, frozen=True):
    """One program that uses MCP servers."""

    id: str
    """The name of the program for `--client`."""
    title: str
    form: Form
    reads_as: str
    """A path by which `config.foreign` knows the program; if empty, `convert_server` translates
    its entries.
    """
    desktop: bool = False
    """True if the program is started from a desktop, where PATH is not the shell's."""
    anywhere: bool = False
    """True if its servers do not run in the directory of a project."""
    puts_prefix: bool = True
    """True if it puts a prefix with the entry's name before names of tools; the whole must fit model APIs."""
    variables_in: str = ""
    """How an entry asks for a variable that the program would keep to itself: `env_vars`, or the value for
    `env`, with `{0}` for the name. Empty if the program passes all of its environment on, or has no way.
    """


class ClientFilePath(Struct, frozen=True):
    """A file of a program that may exist."""

    client: McpClient
    path: str
    scope: Scope

    @property
    def is_main(self) -> bool:
        """True if new servers are written to this file.

        They are not written to VS Code's settings: VS Code has another file for servers.
        """
        return self.scope == "user" and not (self.client.form == "vscode" and self.path.endswith(_SETTINGS))


_SETTINGS: Final = "settings.json"
CLAUDE_CODE: Final = McpClient("claude-code", "Claude Code", "plain", ".claude.json")
CLAUDE_DESKTOP: Final = McpClient(
    "claude-desktop",
    "Claude Desktop",
    "plain",
    "claude_desktop_config.json",
    desktop=True,
    anywhere=True,
    puts_prefix=False,
)
CURSOR: Final = McpClient(
    "cursor", "Cursor", "plain", ".cursor/mcp.json", desktop=True, variables_in="${{env:{0}}}"
)
VS_CODE: Final = McpClient("vscode", "VS Code", "vscode", ".vscode/mcp.json", desktop=True)
WINDSURF: Final = McpClient(
    "windsurf",
    "Windsurf",
    "plain",
    "mcp_config.json",
    desktop=True,
    anywhere=True,
    variables_in="${{env:{0}}}",
)
CODEX: Final = McpClient("codex", "Codex", "codex", "", variables_in="env_vars")
GEMINI: Final = McpClient("gemini", "Gemini CLI", "plain", ".gemini/settings.json", variables_in="${{{0}}}")
OPENCODE: Final = McpClient("opencode", "opencode", "opencode", "opencode.json")

CLIENTS: Final = (CLAUDE_CODE, CLAUDE_DESKTOP, CURSOR, VS_CODE, WINDSURF, CODEX, GEMINI, OPENCODE)

_PROJECT: Final[tuple[tuple[McpClient, str], ...]] = (
    (CLAUDE_CODE, ".mcp.json"),
    (CURSOR, ".cursor/mcp.json"),
    (VS_CODE, ".vscode/mcp.json"),
    (CODEX, ".codex/config.toml"),
    (GEMINI, ".gemini/settings.json"),
    (OPENCODE, "opencode.json"),
    (OPENCODE, "opencode.jsonc"),
    (OPENCODE, ".opencode/opencode.json"),
    (OPENCODE, ".opencode/opencode.jsonc"),
)
_EDITORS: Final = ("Code", "Code - Insiders", "VSCodium")
"""VS Code and its relatives, by the names of their directories."""


def candidates(environ: Mapping[str, str], home: str, platform: str, project: str) -> list[ClientFilePath]:
    """Return every file that may hold servers.

    `platform`: as `sys.platform`; `project`: a directory, or empty.
    """
    found = [ClientFilePath(client, path, "user") for client, path in _users(environ, home, platform)]
    if project and os.path.normpath(project) != os.path.normpath(home):
        found += [ClientFilePath(client, os.path.join(project, name), "project") for client, name in _PROJECT]
    return found


def _users(environ: Mapping[str, str], home: str, platform: str) -> list[tuple[McpClient, str]]:
    def told(name: str, otherwise: str) -> str:
        said = environ.get(name, "")
        return said if os.path.isabs(said) else os.path.join(home, otherwise)

    config = told("XDG_CONFIG_HOME", ".config")
    support = os.path.join(home, "Library", "Application Support") if platform == "darwin" else config
    found = [
        (CLAUDE_CODE, os.path.join(told("CLAUDE_CONFIG_DIR", ""), ".claude.json")),
        (CLAUDE_DESKTOP, os.path.join(support, "Claude", "claude_desktop_config.json")),
        (CURSOR, os.path.join(home, ".cursor", "mcp.json")),
    ]
    for editor in _EDITORS:
        user = os.path.join(support, editor, "User")
        found += [(VS_CODE, os.path.join(user, "mcp.json")), (VS_CODE, os.path.join(user, "settings.json"))]
        found.append((VS_CODE, os.path.join(user, "profiles", "*", "mcp.json")))
    found += [
        (WINDSURF, os.path.join(home, ".codeium", "windsurf", "mcp_config.json")),
        (CODEX, os.path.join(told("CODEX_HOME", ".codex"), "config.toml")),
        (GEMINI, os.path.join(told("GEMINI_CLI_HOME", ""), ".gemini", "settings.json")),
    ]
    found += [
        (OPENCODE, os.path.join(config, "opencode", name)) for name in ("opencode.json", "opencode.jsonc")
    ]
    said = environ.get("OPENCODE_CONFIG", "")
    if os.path.isabs(said):
        found.append((OPENCODE, said))
    return found


def entry(client: McpClient, command: list[str]) -> dict[str, JsonValue]:
    """Return the one entry that is left in the program's file. `command`: carpool's, with `connect`."""
    match client.form:
        case "opencode":
            return {"type": "local", "command": [*command], "enabled": True}
        case "vscode":
            return {"type": "stdio", "command": command[0], "args": [*command[1:]]}
        case _:
            return {"command": command[0], "args": [*command[1:]]}
