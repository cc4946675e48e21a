"""Workspaces that the user's file names: how they are written, where they are, what lies over what."""

import json
from pathlib import Path
from typing import Any

import pytest

from carpool_protocol.config.pages.describe import describe
from carpool_protocol.config.reading.load import ConfigFile, load_config, load_layer
from carpool_protocol.config.reading.merge import merge_configs, shadowed
from carpool_protocol.config.reading.parse import read_config
from carpool_protocol.config.reading.project import find_workspace, workspace_name_at
from carpool_protocol.config.reading.workspaces import roots_of
from carpool_protocol.config.schema.model import Config, variables
from carpool_protocol.ids import ServerName
from tests.behaviours import behaviour

A, B = ServerName("a"), ServerName("b")


def good(text: str) -> Config:
    loaded = read_config(text, "f")
    assert [problem.render() for problem in loaded.problems] == []
    assert loaded.config is not None
    return loaded.config


def bad(workspaces: Any, **rest: Any) -> list[str]:
    loaded = read_config(json.dumps({"workspaces": workspaces, **rest}), "f")
    assert loaded.config is None
    return [problem.render().removeprefix("f:1: workspaces") for problem in loaded.problems]


@behaviour("workspaces:named")
def test_a_named_workspace_has_a_root_and_servers_with_their_own_lines() -> None:
    config = good(
        """{
        "mcpServers": { "a": { "command": "x" } },
        "workspaces": {
          "shop": { "root": "~/code/shop", "mcpServers": {
            "a": { "command": "y", "timeout_s": "${T}", "env": { "K": "${V}" } },
            "b": { "disabled": true } } },
          "bare": { "mcpServers": { "b": { "command": "z" } } } } }"""
    )
    shop, bare = config.workspaces.values()
    assert (shop.name, shop.root, shop.line) == ("shop", "~/code/shop", 4)
    assert roots_of(config, "/h") == {"shop": "/h/code/shop"}
    own = shop.servers[A]
    assert (own.under, own.lines["timeout_s",]) == (("workspaces", "shop", "mcpServers", "a"), 5)
    assert own.late == {("timeout_s",): "${T}"}
    assert [each.cwd for each in (own, config.servers[A], bare.servers[B])] == ["${workspace}", "~", "~"]
    assert shop.servers[B].disabled
    assert variables(config) == frozenset()
    assert variables(merge_configs(config, shop)) == {"T", "V"}
    rows = {row.setting: (row.value, row.origin) for row in describe(config)}
    assert rows["workspaces.shop.root"] == ('"~/code/shop"', "f:4")
    assert rows["workspaces.bare.root"] == ("—", "default")
    assert rows["workspaces.shop.mcpServers.a.command"] == ('"y"', "f:5")
    assert rows["workspaces.shop.mcpServers.a.env.K"] == ("…", "f:5")


@behaviour("workspaces:named", "workspaces:override")
def test_its_servers_lie_over_those_of_everybody_and_it_is_said() -> None:
    config = good(
        '{"mcpServers": {"a": {"command": "x"}, "b": {"command": "x"}},'
        ' "workspaces": {"w": {"mcpServers": {"a": {"command": "y"}}}}}'
    )
    both = merge_configs(config, config.workspaces["w"])
    assert [(name, each.command) for name, each in both.servers.items()] == [("a", "y"), ("b", "x")]
    assert [each.render() for each in shadowed(config, config.workspaces["w"])] == [
        "f:1: workspaces.w.mcpServers.a: takes the place of your server of this name in f"
    ]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ([], ": must be an object of names and workspaces, found a list"),
        ({"w": 1}, '.w: must be an object like { "root": "~/code/shop" }, found a number'),
        ({"w": {"rot": "/x"}}, ".w.rot: unknown key; did you mean `root`?"),
        ({"w": {"mcpServer": {}}}, ".w.mcpServer: unknown key; did you mean `mcpServers`?"),
        ({"w": {"root": "x"}}, ".w.root: must be an absolute directory, or one below"),
        ({"w": {"root": "/x/../y"}}, ".w.root: must be an absolute directory, or one below"),
        ({"v": {"root": "/x"}, "w": {"root": "/x/"}}, ".w.root: is the root of the workspace v, too"),
        ({"w": {"mcpServers": []}}, ".w.mcpServers: must be an object of names and servers"),
        ({"w": {"mcpServers": {"a": {"comand": "x"}}}}, ".w.mcpServers.a.comand: unknown key; did you mean"),
        ({"w": {"mcpServers": {"a": {}}}}, ".w.mcpServers.a: has no command"),
        ({"w_": {}}, ".w_: The workspace name 'w_' has an underscore at an end"),
    ],
)
def test_what_is_wrong_with_a_workspace_is_said_where_it_is(written: Any, said: str) -> None:
    assert bad(written)[0].startswith(said)


def test_what_must_always_run_has_to_fit_in_each_workspace() -> None:
    always = {"command": "x", "pool": {"min": 2}}
    servers = {"mcpServers": {"a": always}}
    (said,) = bad({"w": {"mcpServers": {"b": always}}}, max_instances=3, **servers)
    assert said.startswith(".w: the pool.min of its servers and of all others add up to 4 instances")
    instead = {"w": {"mcpServers": {"a": always}}}
    assert good(json.dumps({"workspaces": instead, "max_instances": 3, **servers})).workspaces


@pytest.mark.parametrize("file", [".carpool/mcp.json", "servers.d/a.json"])
def test_only_the_users_own_file_names_workspaces(tmp_path: Path, file: str) -> None:
    path = tmp_path / file
    path.parent.mkdir()
    path.write_text('{"workspaces": {"w": {}}}', encoding="utf-8")
    if file.startswith("."):
        (problem,) = read_config(path.read_text(), str(path), project=True).problems
        assert "belongs in the user's own file" in problem.text
    else:
        outer = tmp_path / "carpool.json"
        outer.write_text('{"include": ["servers.d/*.json"]}', encoding="utf-8")
        (problem,) = load_config(ConfigFile(str(outer), asked_for=True)).problems
        assert problem.text == "an included file may hold servers only"


@behaviour("workspaces:named")
def test_a_directory_is_in_the_workspace_with_the_nearest_root(tmp_path: Path) -> None:
    deep = tmp_path / "code" / "shop" / "src"
    deep.mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "code" / "shop")
    work, shop = str(tmp_path / "code"), str(tmp_path / "code" / "shop")
    assert workspace_name_at(str(deep), {"code": work, "shop": shop}) == "shop"
    assert workspace_name_at(shop, {"code": work, "shop": shop}) == "shop"
    assert workspace_name_at(str(tmp_path / "code" / "other"), {"code": work, "shop": shop}) == "code"
    assert workspace_name_at(str(deep), {"shop": str(tmp_path / "link")}) == "shop", "however it is reached"
    assert workspace_name_at(str(tmp_path), {"code": work}) == ""
    assert workspace_name_at(f"{work}-2", {"code": work}) == ""
    assert workspace_name_at("", {"code": work}) == ""


@behaviour("workspaces:named")
def test_the_search_for_a_project_ends_at_the_root(tmp_path: Path) -> None:
    shop = tmp_path / "code" / "shop"
    inside = shop / "a" / "b"
    inside.mkdir(parents=True)
    (tmp_path / "code" / ".mcp.json").write_text("{}", encoding="utf-8")
    (shop / "a" / ".git").mkdir()

    def found(within: str) -> tuple[str, str]:
        workspace = find_workspace(str(inside), str(tmp_path), within)
        return workspace.root, workspace.file

    assert found("")[0] == str(tmp_path / "code")
    assert found(str(shop)) == (str(shop), ""), "what is above is another workspace's, and git says nothing"
    own = shop / "a" / ".mcp.json"
    own.write_text("{}", encoding="utf-8")
    assert found(str(shop)) == (str(shop / "a"), str(own))


def test_home_as_a_root_is_nobodys_project_still(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / ".mcp.json").write_text("{}", encoding="utf-8")
    home = str(tmp_path)
    for cwd in (home, str(tmp_path / "x")):
        assert workspace_name_at(cwd, {"all": home}) == "all"
        found = find_workspace(cwd, home, home)
        assert (found.root, found.file) == (home, "")


def test_a_list_of_tools_for_a_server_of_a_workspace_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text('{"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}')
    listed = {"command": "x", "tools_file": "tools.json"}
    servers = {"a": listed, "b": {**listed, "tools_file": "none.json"}}
    file = tmp_path / "carpool.json"
    file.write_text(json.dumps({"workspaces": {"w": {"mcpServers": servers}}}))
    config = load_layer(ConfigFile(str(file), asked_for=True), str(tmp_path)).loaded.config
    assert config is not None
    workspace = config.workspaces["w"]
    assert [tool.name for tool in workspace.servers[A].offline or ()] == ["t"]
    assert "workspaces.w.mcpServers.b.tools_file: there is no file" in workspace.unusable[B]
    assert merge_configs(config, workspace).unusable.keys() == {"b"}
