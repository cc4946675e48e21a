"""The programs whose servers `carpool setup` takes over: where their files lie, and what an entry looks like.

Owns that table. The places are those of the programs' own reference pages, as of 2026-11: a place may hold
`*` (a profile of VS Code), and a program that is told by the environment to be elsewhere is there.

Pure: the environment comes in. Knows nothing of: which files exist, what is in them.
"""

import os
from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

from carpool_protocol.config.text.jsonc import JsonValue

Scope = Literal["user", "project"]
Form = Literal["plain", "vscode", "opencode", "codex"]
"""How the file holds servers: `mcpServers`, or `servers`, `mcp`, or tables of TOML."""


class McpClient(Struct, frozen=True):
    """One program."""

    id: str
    """What `--client` says."""
    title: str
    form: Form
    reads_as: str
    """A path by which `config.foreign` knows the program; empty: its entries are put into our keys here."""
    desktop: bool = False
    """Started from a desktop, where PATH is not the shell's."""
    anywhere: bool = False
    """Its servers do not run in the directory of a project."""
    puts_prefix: bool = True
    """It puts something with the entry's name before names of tools, and the whole must fit model APIs."""


class ClientFilePath(Struct, frozen=True):
    """A file that may be there."""

    client: McpClient
    path: str
    scope: Scope

    @property
    def is_main(self) -> bool:
        """New servers are written there; not in VS Code's settings, which has another file for them."""
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
CURSOR: Final = McpClient("cursor", "Cursor", "plain", ".cursor/mcp.json", desktop=True)
VS_CODE: Final = McpClient("vscode", "VS Code", "vscode", ".vscode/mcp.json", desktop=True)
WINDSURF: Final = McpClient("windsurf", "Windsurf", "plain", "mcp_config.json", desktop=True, anywhere=True)
CODEX: Final = McpClient("codex", "Codex", "codex", "")
GEMINI: Final = McpClient("gemini", "Gemini CLI", "plain", ".gemini/settings.json")
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
"""VS Code and its kin, by the name of their directories."""


def candidates(environ: Mapping[str, str], home: str, platform: str, project: str) -> list[ClientFilePath]:
    """Every file that may hold servers. `platform`: as `sys.platform`; `project`: a directory, or empty."""
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
    """The one entry that is left in the program's file. `command`: carpool's, with `connect`."""
    match client.form:
        case "opencode":
            return {"type": "local", "command": [*command], "enabled": True}
        case "vscode":
            return {"type": "stdio", "command": command[0], "args": [*command[1:]]}
        case _:
            return {"command": command[0], "args": [*command[1:]]}
