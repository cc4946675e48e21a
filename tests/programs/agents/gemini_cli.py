"""Gemini CLI, by `gemini --prompt`, with the base URL of a model of the test's own."""

from collections.abc import Mapping
from typing import Final

from tests.programs.agents.mcp_servers import entry_editor, mcp_servers, write_json
from tests.programs.program import Entry, Home, Program, Setup
from tests.programs.script import ScriptedCall

_ENTRY: Final = """\
// ~/.gemini/settings.json
"mcpServers": {
  "carpool": { "command": "{command}", "args": ["connect"] }
}
"""


def configure(home: Home, servers: Mapping[str, Entry], model: str) -> None:
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "general": {"disableAutoUpdate": True, "enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
        "mcpServers": mcp_servers(servers, url_key="httpUrl"),
    }
    write_json(home.path / ".gemini" / "settings.json", settings)


PROGRAM: Final = Program(
    name="gemini",
    title="Gemini CLI",
    kind="agent",
    api="gemini",
    executable=lambda directory: [
        str(directory / "node/bin/node"),
        str(directory / "gemini/node_modules/@google/gemini-cli/bundle/gemini.js"),
    ],
    configure=configure,
    arguments=lambda prompt: ["--yolo", "--skip-trust", "--model", "gemini-2.5-pro", "--prompt", prompt],
    environ=lambda model: {"GEMINI_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": model},
    entry=_ENTRY,
    package="npm @google/gemini-cli",
    asks_progress=True,
    lists_again=True,
    call_limit_s=600,
    setup=Setup("gemini", entry_editor(".gemini/settings.json")),
    idle=ScriptedCall("", "", {"pattern": "*.none"}, name="glob"),
    notes=(
        "Gemini CLI cuts names of more than 63 characters in the middle.",
        "Gemini CLI reads a text that is JSON as structured content, and refuses a number.",
    ),
)
