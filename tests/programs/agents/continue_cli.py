"""Continue CLI, by `cn --print`, with an OpenAI-compatible model of the test's own."""

from collections.abc import Mapping
from typing import Final

from tests.programs.agents.mcp_servers import write_json
from tests.programs.program import Entry, Home, Program
from tests.programs.script import Json, ScriptedCall

_ENTRY: Final = """\
# ~/.continue/config.yaml
mcpServers:
  - name: carpool
    command: {command}
    args: [connect]
"""


def _server(name: str, entry: Entry) -> Json:
    if entry.url:
        return {"name": name, "type": "streamable-http", "url": entry.url}
    return {"name": name, "command": entry.command, "args": list(entry.args), "env": dict(entry.env)}


def configure(home: Home, servers: Mapping[str, Entry], model: str) -> None:
    whole = {
        "name": "scripted",
        "version": "1.0.0",
        "schema": "v1",
        "models": [
            {
                "name": "scripted",
                "provider": "openai",
                "model": "scripted",
                "apiKey": "none",
                "apiBase": f"{model}/v1",
                "roles": ["chat"],
                "capabilities": ["tool_use", "image_input"],
                "defaultCompletionOptions": {"contextLength": 1_000_000},
            }
        ],
        "mcpServers": [_server(name, entry) for name, entry in servers.items()],
    }
    # JSON is YAML.
    write_json(home.path / ".continue" / "config.yaml", whole)


PROGRAM: Final = Program(
    name="continue",
    title="Continue CLI",
    kind="agent",
    api="chat",
    executable=lambda directory: [
        str(directory / "node/bin/node"),
        str(directory / "continue/node_modules/@continuedev/cli/dist/cn.js"),
    ],
    configure=configure,
    arguments=lambda prompt: ["--auto", "--print", prompt],
    environ=lambda _: {"CONTINUE_CLI_ENABLE_TELEMETRY": "0", "CONTINUE_CLI_AUTO_UPDATED": "1"},
    entry=_ENTRY,
    package="npm @continuedev/cli",
    idle=ScriptedCall("", "", {"dirpath": "."}, name="List"),
    notes=(
        "Continue CLI puts nothing in front of the names of tools and gives the instructions to no model.",
    ),
)
