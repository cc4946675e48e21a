"""Codex, by `codex exec`, with a model provider of the test's own."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import tomlkit

from tests.programs.program import Entry, Home, Program, Setup
from tests.programs.script import ScriptedCall

_ENTRY: Final = """\
# ~/.codex/config.toml
[mcp_servers.carpool]
command = "{command}"
args = ["connect"]
"""


def executable(directory: Path) -> list[str]:
    native = "codex/node_modules/@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex"
    if (directory / native).exists():
        return [str(directory / native)]
    node = directory / "node" / "bin" / "node"
    return [str(node), str(directory / "codex/node_modules/@openai/codex/bin/codex.js")]


def config_file(home: Home) -> Path:
    return home.path / ".codex" / "config.toml"


def configure(home: Home, servers: Mapping[str, Entry], model: str) -> None:
    tables = {name: _table(entry) for name, entry in servers.items()}
    provider = {"name": "scripted", "base_url": f"{model}/v1", "wire_api": "responses"}
    whole = {
        "model": "scripted",
        "model_provider": "scripted",
        "check_for_update_on_startup": False,
        "analytics": {"enabled": False},
        "model_providers": {"scripted": provider},
        "mcp_servers": tables,
    }
    config_file(home).parent.mkdir(parents=True, exist_ok=True)
    config_file(home).write_text(tomlkit.dumps(whole), encoding="utf-8")


def _table(entry: Entry) -> dict[str, Any]:
    """The table of one server. A variable that is passed on has its name in `env_vars`."""
    if entry.url:
        return {"url": entry.url}
    passed = [name for name, value in entry.env.items() if value == f"${{{name}}}"]
    env = {name: value for name, value in entry.env.items() if name not in passed}
    return {"command": entry.command, "args": list(entry.args), "env": env, "env_vars": passed}


def edit_entry(home: Home, change: Callable[[Entry], Entry]) -> None:
    whole = tomlkit.parse(config_file(home).read_text(encoding="utf-8"))
    table: Any = whole["mcp_servers"]
    old = table["carpool"]
    new = change(Entry(str(old["command"]), tuple(map(str, old.get("args", ()))), dict(old.get("env", {}))))
    old["command"], old["args"], old["env"] = new.command, list(new.args), dict(new.env)
    config_file(home).write_text(tomlkit.dumps(whole), encoding="utf-8")


def arguments(prompt: str) -> list[str]:
    return ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", prompt]


PROGRAM: Final = Program(
    name="codex",
    title="Codex",
    kind="agent",
    api="responses",
    executable=executable,
    configure=configure,
    arguments=arguments,
    environ=lambda _: {},
    entry=_ENTRY,
    package="npm @openai/codex",
    asks_progress=True,
    is_askable=True,
    call_limit_s=150,
    setup=Setup("codex", edit_entry),
    idle=ScriptedCall("", "", {}, name="get_goal"),
    notes=(
        "Codex passes HOME, PATH, LANG, SHELL, TERM and a few more variables to servers; other names "
        "stand in `env_vars` of the entry.",
        "Codex lists tools once in a run.",
    ),
)
