"""The programs with MCP servers that `carpool setup` does not look into: the places of their files.

Owns that table, and the decision which of these files has servers in carpool's form. The places are those of
the programs' own pages, as of 2026-11. Pure: the environment and the texts come in. Knows nothing of: the
programs that setup looks for (`client_files`).
"""

import os
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from carpool_protocol.config.reading.parse import read_config


class OtherProgramFile(Struct, frozen=True):
    """A file that may exist. Its path may hold `*`."""

    title: str
    path: str
    mark: str
    """A text that marks a file with servers."""


class OtherProgramFound(Struct, frozen=True):
    """A file that exists and holds servers."""

    title: str
    path: str
    readable: bool
    """True if carpool reads such a file as one of its own, through `include`."""


_SERVERS: Final = '"mcpServers"'
_EXTENSIONS: Final = os.path.join("User", "globalStorage")
_EDITORS: Final = ("Code", "Code - Insiders", "VSCodium", "Cursor", "Windsurf")
_IN_EDITORS: Final = (
    ("Cline", "saoudrizwan.claude-dev/settings/cline_mcp_settings.json"),
    ("Roo Code", "rooveterinaryinc.roo-cline/settings/mcp_settings.json"),
)
_IN_HOME: Final = (
    ("Kiro", ".kiro/settings/mcp.json", _SERVERS),
    ("Cline", ".cline/mcp_settings.json", _SERVERS),
    ("Copilot CLI", ".copilot/mcp-config.json", _SERVERS),
    ("LM Studio", ".lmstudio/mcp.json", _SERVERS),
    ("LM Studio", ".cache/lm-studio/mcp.json", _SERVERS),
    ("Continue", ".continue/config.yaml", "mcpServers:"),
    ("Continue", ".continue/mcpServers/*", "mcpServers"),
    ("JetBrains Junie", ".junie/mcp/mcp.json", _SERVERS),
)
_IN_CONFIG: Final = (
    ("Zed", "zed/settings.json", '"context_servers"'),
    ("Goose", "goose/config.yaml", "extensions:"),
)
_IN_PROJECT: Final = (
    ("Zed", ".zed/settings.json", '"context_servers"'),
    ("Kiro", ".kiro/settings/mcp.json", _SERVERS),
    ("Roo Code", ".roo/mcp.json", _SERVERS),
    ("Continue", ".continue/mcpServers/*", "mcpServers"),
    ("JetBrains Junie", ".junie/mcp/mcp.json", _SERVERS),
)
TITLES: Final = tuple(
    dict.fromkeys(
        [
            *(each[0] for each in (*_IN_HOME, *_IN_CONFIG, *_IN_EDITORS)),
            "JetBrains AI Assistant",
        ]
    )
)
"""The titles of all these programs."""


def others(environ: Mapping[str, str], home: str, platform: str, project: str) -> list[OtherProgramFile]:
    """Return every such file that may exist."""
    said = environ.get("XDG_CONFIG_HOME", "")
    config = said if os.path.isabs(said) else os.path.join(home, ".config")
    support = os.path.join(home, "Library", "Application Support") if platform == "darwin" else config
    found = [OtherProgramFile(title, os.path.join(home, name), mark) for title, name, mark in _IN_HOME]
    found += [OtherProgramFile(title, os.path.join(config, name), mark) for title, name, mark in _IN_CONFIG]
    found += [
        OtherProgramFile(title, os.path.join(support, editor, _EXTENSIONS, name), _SERVERS)
        for editor in _EDITORS
        for title, name in _IN_EDITORS
    ]
    ide = os.path.join(support, "JetBrains", "*", "options", "*mcp*.xml")
    found.append(OtherProgramFile("JetBrains AI Assistant", ide, "ommand"))
    if project and os.path.normpath(project) != os.path.normpath(home):
        found += [
            OtherProgramFile(title, os.path.join(project, name), mark) for title, name, mark in _IN_PROJECT
        ]
    return found


def check_other_program(other: OtherProgramFile, path: str, text: str) -> OtherProgramFound | None:
    """Return the finding about a file that exists; None if it holds no servers."""
    if other.mark not in text:
        return None
    config = read_config(text, "servers.d/other.json").config if path.endswith(".json") else None
    return OtherProgramFound(other.title, path, config is not None and bool(config.servers))
