"""Qwen Code, by `qwen PROMPT`, with an OpenAI-compatible model of the test's own."""

from collections.abc import Mapping
from typing import Final

from tests.programs.agents.mcp_servers import mcp_servers, write_json
from tests.programs.program import Entry, Home, Program
from tests.programs.script import ScriptedCall

_ENTRY: Final = """\
// ~/.qwen/settings.json
"mcpServers": {
  "carpool": { "command": "{command}", "args": ["connect"] }
}
"""


def configure(home: Home, servers: Mapping[str, Entry], model: str) -> None:
    settings = {
        "security": {"auth": {"selectedType": "openai"}},
        "general": {"disableAutoUpdate": True},
        "privacy": {"usageStatisticsEnabled": False},
        "memory": {"enableManagedAutoMemory": False},
        "mcpServers": mcp_servers(servers, url_key="httpUrl"),
    }
    write_json(home.path / ".qwen" / "settings.json", settings)


def environ(model: str) -> dict[str, str]:
    return {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": f"{model}/v1", "OPENAI_MODEL": "scripted"}


PROGRAM: Final = Program(
    name="qwen",
    title="Qwen Code",
    kind="agent",
    api="chat",
    executable=lambda directory: [
        str(directory / "node/bin/node"),
        str(directory / "qwen/node_modules/@qwen-code/qwen-code/cli.js"),
    ],
    configure=configure,
    arguments=lambda prompt: ["--yolo", "--auth-type", "openai", prompt],
    environ=environ,
    entry=_ENTRY,
    package="npm @qwen-code/qwen-code",
    asks_progress=True,
    restarts_entry=True,
    idle=ScriptedCall("", "", {"pattern": "*.none"}, name="glob"),
    notes=("Qwen Code offers tools of servers only after the model has found them by `tool_search`.",),
)
