"""Hooks in the configuration file."""

import json
from typing import Any

import pytest

from carpool_protocol.config.pages.describe import describe
from carpool_protocol.config.reading.parse import LoadedConfig, read_config
from carpool_protocol.config.schema.model import HookConfig
from tests.behaviours import behaviour

GUARD = {"name": "guard", "command": "guard", "args": ["--strict", "hunter2"], "env": {"TOKEN": "${TOKEN}"}}


def read(*hooks: Any, **more: Any) -> LoadedConfig:
    project = more.pop("project", False)
    text = json.dumps({"mcpServers": {}, "hooks": list(hooks), **more})
    return read_config(text, "f.json", project=project)


def texts(loaded: LoadedConfig) -> list[str]:
    return [f"{each.where}: {each.text}" for each in loaded.problems]


def only(loaded: LoadedConfig) -> HookConfig:
    assert loaded.config is not None, texts(loaded)
    (hook,) = loaded.config.hooks
    return hook


def test_a_hook_has_defaults_that_look_before_every_call_and_fail_closed() -> None:
    hook = only(read({"name": "guard", "command": "guard"}))
    assert (hook.on, hook.match, hook.profiles) == (("before",), ("*",), ())
    assert (hook.timeout_s, hook.on_failure, hook.rewrite) == (5.0, "deny", False)


def test_hooks_stay_in_the_order_of_the_file() -> None:
    loaded = read({"name": "b", "command": "x"}, {"name": "a", "python": "pkg.mod:Class.method"})
    assert loaded.config is not None
    assert [hook.name for hook in loaded.config.hooks] == ["b", "a"]


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        (3, "hooks[0]: must be an object"),
        ({"command": "x"}, "needs a `name`"),
        ({"name": "a"}, "needs a `command` or `python`, and not both"),
        ({"name": "a", "command": "x", "python": "m:f"}, "needs a `command` or `python`, and not both"),
        ({"name": "a", "python": "m:f", "args": []}, "goes with `command` only"),
        ({"name": "a", "python": "m"}, "must be a module and a function"),
        ({"name": "a", "command": "x", "on": ["later"]}, 'must be "before" or "after"'),
        ({"name": "a", "command": "x", "on": []}, "would never run"),
        ({"name": "a", "command": "x", "match": ["github"]}, "must be"),
        ({"name": "a", "command": "x", "profiles": ["raeder"]}, "did you mean `reader`?"),
        ({"name": "a", "command": "x", "on_failure": "alow"}, 'did you mean "allow"?'),
        ({"name": "a", "command": "x", "timeout": 3}, "unknown key; did you mean `timeout_s`?"),
        ({"name": "a b", "command": "x"}, "name"),
        ({"name": "a", "command": ["x"]}, "must be text"),
    ],
)
def test_what_is_wrong_with_a_hook_is_said_at_its_place(hook: Any, said: str) -> None:
    loaded = read(hook, profiles={"reader": {}})
    assert loaded.config is None
    assert any(said in each and each.startswith("hooks[0]") for each in texts(loaded)), texts(loaded)


def test_two_hooks_have_two_names_and_the_list_is_one() -> None:
    assert "is the name of another hook, too" in texts(read(GUARD, GUARD))[0]
    wrong = read_config('{"hooks": {"guard": {}}}', "f.json")
    assert "must be a list of hooks in [ ]" in texts(wrong)[0]


@behaviour("hooks:the-users")
def test_a_projects_own_file_may_have_none() -> None:
    (said,) = texts(read(project=True))
    assert "concerns all projects: it belongs in the user's own file" in said


def test_another_programs_hooks_are_none_of_ours() -> None:
    text = '{"mcpServers": {}, "hooks": {"PreToolUse": []}}'
    loaded = read_config(text, "/home/me/.cursor/mcp.json")
    assert loaded.config is not None, texts(loaded)
    assert loaded.config.hooks == ()


def test_what_is_told_back_of_a_hook_holds_no_secret() -> None:
    loaded = read(GUARD)
    assert loaded.config is not None
    rows = {row.setting: row.value for row in describe(loaded.config)}
    assert rows["hooks[0].args"] == '["--strict", "…"]'
    assert rows["hooks[0].env.TOKEN"] == "…"
    assert "hunter2" not in str(loaded.config.hooks)
