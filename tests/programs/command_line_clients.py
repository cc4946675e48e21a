"""MCP clients that are one command per request: mcporter and the inspector.

Owns how each is told of a server, asked for the tools and told to call one, and what of its output is the
same in every run. Knows nothing of: what a run compares.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.programs.installed import node_program
from tests.programs.program import Entry
from tests.programs.stage import ProgramStage

MCPORTER: Final = "mcporter"
INSPECTOR: Final = "inspector"


@dataclass(frozen=True)
class CommandLineClient:
    """One client: the words of its command for a file of servers and the name of one of them."""

    name: str
    list_tools: Callable[[str, str], list[str]]
    call: Callable[[str, str, str], list[str]]


def _mcporter(*words: str) -> list[str]:
    return [*node_program(MCPORTER, "mcporter/dist/cli.js"), *words]


def _inspector(file: str, server: str, *words: str) -> list[str]:
    script = "@modelcontextprotocol/inspector-cli/build/cli.js"
    return [*node_program(INSPECTOR, script), "--cli", "--config", file, "--server", server, *words]


CLIENTS: Final = {
    MCPORTER: CommandLineClient(
        MCPORTER,
        lambda file, server: _mcporter("--config", file, "list", server, "--json"),
        lambda file, server, tool: _mcporter(
            "--config", file, "call", f"{server}.{tool}", "--output", "json"
        ),
    ),
    INSPECTOR: CommandLineClient(
        INSPECTOR,
        lambda file, server: _inspector(file, server, "--method", "tools/list"),
        lambda file, server, tool: _inspector(file, server, "--method", "tools/call", "--tool-name", tool),
    ),
}


def _file(stage: ProgramStage, name: str, entry: Entry) -> str:
    """A file of servers in the shape that both read."""
    server = (
        {"type": "streamable-http", "url": entry.url}
        if entry.url
        else {"command": entry.command, "args": list(entry.args), "env": dict(entry.env)}
    )
    file = stage.base / "servers.json"
    file.write_text(json.dumps({"mcpServers": {name: server}, "imports": []}), encoding="utf-8")
    return str(file)


def list_tools(
    stage: ProgramStage, client: CommandLineClient, server: str = "odd", *, http: bool = False
) -> dict[str, Any]:
    """Each tool that the client lists: name, and description and schema. `http`: it comes over HTTP."""
    name = server if stage.arm == "direct" else "carpool"
    entry = Entry(url=stage.url()) if http else stage.entries()[name]
    done = stage.run(client.list_tools(_file(stage, name, entry), name))
    assert done.returncode == 0, done.stderr
    return {
        each["name"]: [each["description"], each["inputSchema"]] for each in json.loads(done.stdout)["tools"]
    }


def call(stage: ProgramStage, client: CommandLineClient, tool: str, server: str = "odd") -> tuple[int, str]:
    """What a call prints, with the names that carpool gives put back to the server's own."""
    name, told = (server, tool) if stage.arm == "direct" else ("carpool", f"{server}__{tool}")
    done = stage.run(client.call(_file(stage, name, stage.entries()[name]), name, told))
    said = (
        (done.stdout + done.stderr).replace(f"{server}__{tool}", tool).replace("carpool+odd+odd://", "odd://")
    )
    return done.returncode, re.sub(r'"server": "\w+"', '"server": "odd"', said)
