"""opencode and its fork Kilo, by `run`, with an OpenAI-compatible provider of the test's own."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.programs.agents.mcp_servers import write_json
from tests.programs.program import Entry, Home, Program, Setup
from tests.programs.script import Json, ScriptedCall

FILE: Final = "opencode/opencode.json"
IDLE: Final = ScriptedCall("", "", {"pattern": "*.none"}, name="glob")
ENTRY: Final = """\
// {file}
"mcp": {{
  "carpool": {{ "type": "local", "command": ["{{command}}", "connect"] }}
}}
"""


def _server(entry: Entry) -> Json:
    if entry.url:
        return {"type": "remote", "url": entry.url}
    # A variable of the shell is written `{env:NAME}` here.
    environment = {name: re.sub(r"\$\{(\w+)\}", r"{env:\1}", value) for name, value in entry.env.items()}
    return {"type": "local", "command": [entry.command, *entry.args], "environment": environment}


def configuration(servers: Mapping[str, Entry], model: str) -> Json:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "scripted",
        "options": {"baseURL": f"{model}/v1", "apiKey": "none"},
        "models": {
            "scripted": {
                "name": "scripted",
                "tool_call": True,
                "attachment": True,
                "modalities": {"input": ["text", "image"], "output": ["text"]},
                "limit": {"context": 1_000_000, "output": 32_000},
            }
        },
    }
    return {
        "model": "scripted/scripted",
        "small_model": "scripted/scripted",
        "provider": {"scripted": provider},
        "autoupdate": False,
        "share": "disabled",
        "mcp": {name: _server(entry) for name, entry in servers.items()},
    }


def _config_file(home: Home, file: str) -> Path:
    return Path(home.environ.get("XDG_CONFIG_HOME", str(home.path / ".config"))) / file


def _edit_entry(home: Home, change: Callable[[Entry], Entry]) -> None:
    file = _config_file(home, FILE)
    whole = json.loads(file.read_text(encoding="utf-8"))
    old = whole["mcp"]["carpool"]
    new = change(Entry(old["command"][0], tuple(old["command"][1:]), old.get("environment", {})))
    old |= {"command": [new.command, *new.args], "environment": dict(new.env)}
    write_json(file, whole)


def writer(file: str) -> Callable[[Home, Mapping[str, Entry], str], None]:
    """Write the configuration into this file below the directory for configurations."""

    def configure(home: Home, servers: Mapping[str, Entry], model: str) -> None:
        write_json(_config_file(home, file), configuration(servers, model))

    return configure


PROGRAM: Final = Program(
    name="opencode",
    title="opencode",
    kind="agent",
    api="chat",
    executable=lambda directory: [str(directory / "opencode/node_modules/opencode-linux-x64/bin/opencode")],
    configure=writer(FILE),
    arguments=lambda prompt: ["run", prompt],
    environ=lambda _: {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
    entry=ENTRY.format(file="~/.config/opencode/opencode.json"),
    package="npm opencode-ai",
    asks_progress=True,
    lists_again=True,
    setup=Setup("opencode", _edit_entry),
    idle=IDLE,
    notes=("opencode sends `notifications/cancelled` for each call that has ended; carpool ignores it.",),
)
