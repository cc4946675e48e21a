"""Claude Code, by `claude -p`, with the base URL of a model of the test's own."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.programs.program import Entry, Home, Program, Setup
from tests.programs.script import ScriptedCall

_ENTRY: Final = """\
claude mcp add --scope user carpool -- {command} connect
"""


def executable(directory: Path) -> list[str]:
    package = directory / "claude-code/node_modules/@anthropic-ai"
    if (package / "claude-code-linux-x64/claude").exists():
        return [str(package / "claude-code-linux-x64/claude")]
    return [str(directory / "node" / "bin" / "node"), str(package / "claude-code/cli-wrapper.cjs")]


def config_file(home: Home) -> Path:
    return home.path / ".claude.json"


def configure(home: Home, servers: Mapping[str, Entry], model: str) -> None:
    entries = {
        name: {"type": "http", "url": entry.url}
        if entry.url
        else {"type": "stdio", "command": entry.command, "args": list(entry.args), "env": dict(entry.env)}
        for name, entry in servers.items()
    }
    whole = {"hasCompletedOnboarding": True, "autoUpdates": False, "mcpServers": entries}
    config_file(home).write_text(json.dumps(whole), encoding="utf-8")
    settings = home.path / ".claude" / "settings.json"
    settings.parent.mkdir(parents=True, exist_ok=True)
    allowed = {"permissions": {"allow": [f"mcp__{name}" for name in ("carpool", *servers)]}}
    settings.write_text(json.dumps(allowed), encoding="utf-8")


def edit_entry(home: Home, change: Callable[[Entry], Entry]) -> None:
    whole = json.loads(config_file(home).read_text(encoding="utf-8"))
    old = whole["mcpServers"]["carpool"]
    new = change(Entry(old["command"], tuple(old.get("args", ())), old.get("env", {})))
    old |= {"command": new.command, "args": list(new.args), "env": dict(new.env)}
    config_file(home).write_text(json.dumps(whole), encoding="utf-8")


def environ(model: str) -> dict[str, str]:
    return {
        "ANTHROPIC_BASE_URL": model,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }


PROGRAM: Final = Program(
    name="claude-code",
    title="Claude Code",
    kind="agent",
    api="messages",
    executable=executable,
    configure=configure,
    arguments=lambda prompt: ["-p", prompt],
    environ=environ,
    entry=_ENTRY,
    package="npm @anthropic-ai/claude-code",
    asks_progress=True,
    lists_again=True,
    restarts_entry=True,
    is_askable=True,
    call_limit_s=3600,
    setup=Setup("claude-code", edit_entry),
    idle=ScriptedCall("", "", {}, name="TaskList"),
    notes=("Claude Code starts an entry again whose process has ended.",),
)
