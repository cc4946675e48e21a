"""Cline CLI, by `cline --json`, with an OpenAI-compatible provider of the test's own."""

from collections.abc import Mapping
from typing import Final

from tests.programs.agents.mcp_servers import mcp_servers, write_json
from tests.programs.program import Entry, Home, Program

_ENTRY: Final = """\
// ~/.cline/data/settings/cline_mcp_settings.json
"mcpServers": {
  "carpool": { "command": "{command}", "args": ["connect"] }
}
"""


def configure(home: Home, servers: Mapping[str, Entry], model: str) -> None:
    settings = home.path / ".cline" / "data" / "settings"
    provider = "openai-compatible"
    chosen = {"provider": provider, "apiKey": "none", "model": "scripted", "baseUrl": f"{model}/v1"}
    known = {provider: {"settings": chosen, "updatedAt": "2026-01-01T00:00:00.000Z", "tokenSource": "manual"}}
    write_json(
        settings / "providers.json",
        {"version": 1, "lastUsedProvider": provider, "modes": {}, "providers": known},
    )
    told = mcp_servers(servers, url_type="streamableHttp")
    write_json(settings / "cline_mcp_settings.json", {"mcpServers": told})


PROGRAM: Final = Program(
    name="cline",
    title="Cline CLI",
    kind="agent",
    api="chat",
    executable=lambda directory: [str(directory / "cline/node_modules/@cline/cli-linux-x64/bin/cline")],
    configure=configure,
    arguments=lambda prompt: ["--json", "--provider", "openai-compatible", "--model", "scripted", prompt],
    environ=lambda _: {"CLINE_NO_AUTO_UPDATE": "1", "CLINE_SESSION_BACKEND_MODE": "local"},
    entry=_ENTRY,
    package="npm cline",
    notes=(
        "Cline CLI gives the instructions of servers to no model.",
        "Cline CLI waits less than three seconds for an entry to start, and goes on without its tools.",
    ),
)
