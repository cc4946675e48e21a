"""Which workspace a directory belongs to, what is trusted of it, and how two configurations become one."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from carpool_protocol.bootstrap import paths
from carpool_protocol.bootstrap.paths import PROJECT_FILES
from carpool_protocol.config.reading.load import ConfigFile, ConfigLayer, load_layer
from carpool_protocol.config.reading.merge import cap_problem, merge_configs, shadowed, taken_over
from carpool_protocol.config.reading.parse import read_config
from carpool_protocol.config.reading.project import FoundWorkspace, find_workspace, unread_warnings
from carpool_protocol.config.reading.trust import (
    grant_trust,
    read_trust,
    revoke_trust,
    set_aside_unreadable,
    store_problem,
    trust_of,
)
from carpool_protocol.config.schema.model import Config
from carpool_protocol.config.text.file_stamps import is_current
from carpool_protocol.ids import ServerName
from tests.behaviours import behaviour


def touch(path: Path, text: str = "{}") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@behaviour("workspaces:found-upward")
def test_the_nearest_parent_with_a_project_file_is_the_workspace(tmp_path: Path) -> None:
    deep = tmp_path / "repo" / "a" / "b" / "c"
    deep.mkdir(parents=True)
    home = str(tmp_path)
    assert find_workspace(str(deep), home).root == str(deep)
    (tmp_path / "repo" / "a" / ".git").mkdir()
    assert find_workspace(str(deep), home).root == str(tmp_path / "repo" / "a")
    file = touch(tmp_path / "repo" / ".mcp.json")
    found = find_workspace(str(deep), home)
    assert (found.root, found.file) == (str(tmp_path / "repo"), str(file))
    nearer = touch(deep.parent / "opencode.json")
    assert find_workspace(str(deep), home).file == str(nearer)


@behaviour("workspaces:found-upward")
def test_home_is_nobodys_project_and_what_is_above_it_neither(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "work").mkdir(parents=True)
    touch(home / ".mcp.json")
    touch(tmp_path / ".mcp.json")
    for cwd in (home, home / "work"):
        found = find_workspace(str(cwd), str(home))
        assert (found.root, found.file) == (str(cwd), "")


def test_home_is_known_by_every_path_to_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    touch(home / ".mcp.json")
    (tmp_path / "link").symlink_to(home)
    assert find_workspace(str(tmp_path / "link"), str(home)).file == ""


@behaviour("workspaces:shadow")
def test_each_project_file_shadows_those_after_it(tmp_path: Path) -> None:
    held = '{"mcpServers": {"a": {"command": "x"}}}'
    files = [touch(tmp_path / "p" / name, held) for name in PROJECT_FILES]
    for at, file in enumerate(files):
        found = find_workspace(str(tmp_path / "p"), str(tmp_path))
        assert found.file == str(file)
        assert found.shadowed == tuple(map(str, files[at + 1 :]))
        file.unlink()


@behaviour("workspaces:shadow")
@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        (".mcp.json", '{"mcpServers": {"carpool": {"command": "carpool", "args": ["connect"]}}}', False),
        (
            "opencode.json",
            '{"mcp": {"carpool": {"type": "local", "command": ["/x/carpool", "connect"]}}}',
            False,
        ),
        ("mcp_servers.json", '[{"name": "carpool", "command": "carpool", "args": ["connect"]}]', False),
        ("opencode.json", '{"theme": "dark"}', False),
        (".mcp.json", '{"mcpServers": {}}', False),
        (
            ".mcp.json",
            '{"mcpServers": {"carpool": {"command": "carpool", "args": ["connect"]}, "a": {"command": "x"}}}',
            True,
        ),
        (".mcp.json", '{"mcpServers": {"carpool": {"command": "evil", "args": ["connect"]}}}', True),
        (".mcp.json", '{"include": ["other.json"]}', True),
        (".mcp.json", '{"mcpServers": 3}', True),
        (".mcp.json", "{", True),
        (".mcp.json", " " * 300_000, True),
    ],
)
def test_a_shadow_is_told_only_where_a_server_is_lost_by_it(
    tmp_path: Path, name: str, text: str, told: bool
) -> None:
    """`carpool setup` leaves its own entry in the files that it empties: each verb warned of them."""
    touch(tmp_path / "p" / ".carpool" / "mcp.json")
    file = touch(tmp_path / "p" / name, text)
    found = find_workspace(str(tmp_path / "p"), str(tmp_path))
    assert found.shadowed == ((str(file),) if told else ())
    assert str(file) in found.seen, "what it will hold is seen later"


HIDES = '{"mcpServers": {"a": {"command": "x"}}}'


@behaviour("workspaces:shadow")
@pytest.mark.parametrize(
    ("outer", "users", "told"),
    [
        (HIDES, False, True),
        (HIDES, True, False),
        ('{"mcpServers": {"carpool": {"command": "carpool", "args": ["connect"]}}}', False, False),
        (None, False, False),
    ],
)
def test_a_file_above_is_told_where_servers_are_lost_by_the_nearer_one(
    tmp_path: Path, outer: str | None, users: bool, told: bool
) -> None:
    above = tmp_path / "home" / "p" / "mcp_servers.json"
    if outer is not None:
        touch(above, outer)
    touch(tmp_path / "home" / "mcp_servers.json", HIDES)
    near = touch(tmp_path / "home" / "p" / "a" / "b" / ".mcp.json", HIDES)
    found = find_workspace(str(near.parent), str(tmp_path / "home"), users=[str(above)] if users else [])
    assert (found.file, found.hidden) == (str(near), str(above) if told else "")
    assert str(above) in found.seen, "it may come, go or change"
    said = f"{above} is not read here: {near} is nearer, and only the nearest project file counts"
    assert unread_warnings(found) == ([said] if told else [])
    if told:  # beyond the root of a named workspace nothing is looked for
        inside = find_workspace(str(near.parent), str(tmp_path / "home"), str(near.parents[1]))
        assert (inside.file, inside.hidden) == (str(near), "")
        assert find_workspace(str(above.parent), str(tmp_path / "home")).hidden == ""


@behaviour("private:places")
def test_a_file_of_somebody_else_where_everybody_may_put_files_makes_no_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, mine = tmp_path / "shared", tmp_path / "shared" / "mine"
    (mine / ".git").mkdir(parents=True)
    (shared / ".carpool").mkdir()
    for name in (".mcp.json", ".carpool/mcp.json"):
        (shared / name).write_text("{}")
    shared.chmod(0o1777)
    assert find_workspace(str(mine), "/h").file == str(shared / ".carpool/mcp.json")
    monkeypatch.setattr(paths, "our_users", lambda: (os.getuid() + 1,))
    found = find_workspace(str(mine), "/h")
    assert (found.root, found.file, found.shadowed) == (str(mine), "", ())
    os.utime(shared / ".mcp.json", (1, 1))
    assert is_current(found.seen)
    (mine / ".git").rmdir()
    (shared / ".git").mkdir()
    found = find_workspace(str(mine), "/h")
    assert (found.root, is_current(found.seen)) == (str(mine), True)
    shared.chmod(0o755)
    assert find_workspace(str(mine), "/h").root == str(shared)


@pytest.mark.parametrize("cwd", ["", "relative", "/no/\0/such", "/no/such/directory"])
def test_a_directory_that_cannot_be_searched_has_no_project(cwd: str) -> None:
    assert find_workspace(cwd, "/h").file == ""


@pytest.mark.parametrize("name", PROJECT_FILES)
def test_a_project_file_that_comes_is_noticed_by_the_directories_that_were_searched(
    tmp_path: Path, name: str
) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    for each in (deep, deep.parent):
        os.utime(each, (1, 1))  # the clock of a file system may tick slower than this test
    before = find_workspace(str(deep), str(tmp_path))
    assert is_current(before.seen)
    touch(tmp_path / "a" / name)
    assert not is_current(before.seen)


def test_files_that_come_and_go_in_a_project_are_no_change_of_where_it_is(tmp_path: Path) -> None:
    """Else a build, or a cwd below /tmp, would have everything read again every second."""
    deep = tmp_path / "repo" / "src"
    deep.mkdir(parents=True)
    plain = find_workspace(str(deep), str(tmp_path / "home"))
    touch(tmp_path / "repo" / "made.o")
    touch(deep / "made.o")
    assert is_current(plain.seen)
    (tmp_path / "repo" / ".git").mkdir()
    assert not is_current(plain.seen)
    root = find_workspace(str(deep), str(tmp_path / "home"))
    touch(tmp_path / "repo" / ".git" / "index.lock")
    assert is_current(root.seen)
    for each in PROJECT_FILES:
        file = touch(tmp_path / "repo" / each)
        assert not is_current(root.seen)
        file.unlink()
        assert is_current(root.seen)


# --- trust -------------------------------------------------------------------------------------------------


@behaviour("trust:asked-again")
def test_trust_is_for_the_very_bytes(tmp_path: Path) -> None:
    store = str(tmp_path / "state" / "trust.json")
    file = touch(tmp_path / "p" / ".carpool" / "mcp.json", '{"include": ["*.part"], "env_file": "e"}')
    touch(tmp_path / "p" / ".carpool" / "e", "A=1\n")

    workspace = find_workspace(str(tmp_path / "p"), str(tmp_path))

    def layer() -> ConfigLayer:
        return load_layer(ConfigFile(str(file), asked_for=True), "/h", project=True)

    def now() -> str:
        assert layer().loaded.config is not None
        return trust_of(read_trust(store), workspace, layer().digest)

    def give() -> None:
        grant_trust(store, workspace, layer().digest)
        assert now() == "trusted"

    assert now() == "untrusted"
    give()
    file.write_text(file.read_text() + " ")
    assert now() == "changed"
    give()
    touch(tmp_path / "p" / ".carpool" / "1.part", '{"mcpServers": {"a": {"command": "x"}}}')
    assert now() == "changed"
    give()
    touch(tmp_path / "p" / ".carpool" / "e", "A=2\n")
    assert now() == "changed"
    give()
    assert revoke_trust(store, workspace)
    assert not revoke_trust(store, workspace)
    assert now() == "untrusted"


@behaviour("private:files")
def test_the_file_of_trust_is_private_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        grant_trust(str(tmp_path / "state" / "trust.json"), FoundWorkspace("/p", "/p/.mcp.json"), "d")
    finally:
        os.umask(old)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert modes == {"state": 0o700, "trust.json": 0o600, "trust.json.lock": 0o600}


@behaviour("private:places")
def test_a_project_file_that_anybody_may_write_is_not_read(tmp_path: Path) -> None:
    file = touch(tmp_path / "p" / ".mcp.json", '{"mcpServers": {"a": {"command": "x"}}}')
    file.chmod(0o666)
    loaded = load_layer(ConfigFile(str(file), asked_for=True), "/h", project=True).loaded
    assert loaded.config is None
    assert "is writable for all users" in loaded.problems[0].render()


def test_a_project_is_trusted_however_its_directory_is_reached(tmp_path: Path) -> None:
    store = str(tmp_path / "trust.json")
    home = tmp_path / "h"
    said = {
        "env_file": "~/env",
        "include": ["x.json"],
        "mcpServers": {"a": {"command": "x", "tools_file": "../t"}},
    }
    for name, text in ((".carpool/mcp.json", json.dumps(said)), (".carpool/x.json", "{}"), ("t", "[]")):
        touch(tmp_path / "p" / name, text)
    touch(home / "env", "A=1")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "link").symlink_to(tmp_path / "p")
    first, other = (find_workspace(str(tmp_path / each), str(home)) for each in ("p", "deep/link"))
    layers = [
        load_layer(ConfigFile(each.file, asked_for=True), str(home), project=True) for each in (first, other)
    ]
    assert [len(each.files) for each in layers] == [4, 4]
    digests = {each.digest for each in layers}
    (digest,) = digests
    grant_trust(store, first, digest)
    assert trust_of(read_trust(store), other, digest) == "trusted"


@behaviour("trust:asked")
@pytest.mark.parametrize("linked", [".carpool", ".carpool/mcp.json"])
def test_a_directory_that_links_to_trusted_bytes_is_not_trusted(tmp_path: Path, linked: str) -> None:
    """They may name a program by a relative path, and there it would be another one."""
    store = str(tmp_path / "trust.json")
    good = touch(tmp_path / "p" / ".carpool" / "mcp.json", '{"mcpServers": {"a": {"command": "./run"}}}')
    bad = tmp_path / "q" / linked
    bad.parent.mkdir(parents=True)
    bad.symlink_to(good.parent if linked == ".carpool" else good)
    ours, theirs = (find_workspace(str(tmp_path / each), str(tmp_path)) for each in ("p", "q"))
    digest = load_layer(ConfigFile(ours.file, asked_for=True), "/h", project=True).digest
    assert load_layer(ConfigFile(theirs.file, asked_for=True), "/h", project=True).digest == digest
    grant_trust(store, ours, digest)
    assert trust_of(read_trust(store), theirs, digest) == "untrusted"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"trusted": 3}', "[" * 5000, '{"trusted": {"a": 1}}'])
def test_a_store_that_cannot_be_read_trusts_nothing_and_is_set_aside(tmp_path: Path, text: str) -> None:
    store = touch(tmp_path / "trust.json", text)
    assert read_trust(str(store)) == {}
    assert store_problem(str(store)).startswith(f"{store} is not a trust file of this version; no project is")
    assert store.read_text() == text, "who only reads it leaves it alone"
    assert f"it is now {store}.aside-1, and no project is trusted" in set_aside_unreadable(str(store))
    assert set_aside_unreadable(str(store)) == store_problem(str(store)) == ""
    assert (tmp_path / "trust.json.aside-1").read_text() == text
    store.write_text(text)
    grant_trust(str(store), FoundWorkspace("/p", "/p/.mcp.json"), "d")
    assert (tmp_path / "trust.json.aside-2").read_text() == text
    assert read_trust(str(store)) == {"/p/.mcp.json": "d"}
    assert store.stat().st_mode & 0o777 == 0o600


# --- two configurations ------------------------------------------------------------------------------------


def config(file: str, servers: dict[str, Any], *, project: bool = False, **rest: Any) -> Config:
    loaded = read_config(json.dumps({"mcpServers": servers, **rest}), file, project=project)
    assert [each.render() for each in loaded.problems] == []
    assert loaded.config is not None
    return loaded.config


def test_a_projects_server_takes_the_place_of_the_users_and_says_so() -> None:
    user = config("u", {"a": {"command": "mine"}, "b": {"command": "mine"}, "c": {"command": "mine"}})
    project = config(
        ".mcp.json",
        {"b": {"command": "its"}, "d": {"command": "its"}, "c": {"type": "ws"}},
        project=True,
    )
    both = merge_configs(user, project)
    assert {name: server.command for name, server in both.servers.items()} == {
        "a": "mine",
        "b": "its",
        "d": "its",
    }
    assert list(both.unusable) == ["c"]
    takes = "takes the place of your server of this name in u"
    assert [each.render() for each in shadowed(user, project)] == [
        f".mcp.json:1: b: {takes}",
        f".mcp.json:1: c: {takes}, and cannot be run as it is written",
    ]
    assert taken_over(user, project) == {"b"}
    theirs = config("/h/.cursor/mcp.json", {"d": {"type": "ws"}})
    assert taken_over(theirs, project) == {"d"}
    assert [each.where for each in shadowed(theirs, project)] == ["d"]


def test_a_projects_server_runs_in_the_workspace_unless_it_says_otherwise() -> None:
    project = config("p", {"a": {"command": "x"}, "b": {"command": "x", "cwd": "/o"}}, project=True)
    assert [each.cwd for each in project.servers.values()] == ["${workspace}", "/o"]
    assert config("u", {"a": {"command": "x"}}).servers[ServerName("a")].cwd == "~"


def test_a_projects_file_sets_nothing_that_concerns_other_projects() -> None:
    text = '{"max_instances": 1, "separator": ".", "env_file": "e", "session": {"slow_reader_s": 1}}'
    loaded = read_config(text, "p", project=True)
    assert [each.render() for each in loaded.problems] == [
        "p:1: max_instances: concerns all projects: it belongs in the user's own file",
        "p:1: separator: concerns all projects: it belongs in the user's own file",
        "p:1: session: concerns all projects: it belongs in the user's own file",
    ]


def test_what_must_always_run_of_both_together_has_to_fit() -> None:
    user = config("u", {"a": {"command": "x", "pool": {"min": 2}}}, max_instances=3)
    project = config("p", {"b": {"command": "x", "pool": {"min": 2}}}, project=True)
    assert cap_problem(user, "u") is None
    problem = cap_problem(merge_configs(user, project), "p")
    assert problem is not None
    assert "add up to 4 instances, more than your max_instances (3)" in problem.text


HELD = '{"mcpServers": {"a": {"command": "x"}}}'


def users_file(tmp_path: Path, way: str) -> tuple[str, Path]:
    """A project whose file is the user's own configuration: how the user names it, and where it is there."""
    file = tmp_path / "p" / "mcp_servers.json"
    if way == "the project has a link":
        file.parent.mkdir()
        file.symlink_to(touch(tmp_path / "own.json", HELD))
        return str(tmp_path / "own.json"), file
    touch(file, HELD)
    if way == "link":
        (tmp_path / "own.json").symlink_to(file)
    elif way == "link to a link":
        (tmp_path / "first.json").symlink_to(file)
        (tmp_path / "own.json").symlink_to("first.json")
    elif way == "hard link":
        (tmp_path / "own.json").hardlink_to(file)
    elif way == "linked directory":
        (tmp_path / "there").symlink_to("p")
        return str(tmp_path / "there" / file.name), file
    elif way == "include":
        touch(tmp_path / "own.json", '{"include": ["p/mcp_servers.json"]}')
    elif way == "include of a pattern":
        touch(tmp_path / "own.json", '{"include": ["p/*.json"]}')
    else:
        return str(file if way == "the same path" else tmp_path / "p" / ".." / "p" / file.name), file
    return str(tmp_path / "own.json"), file


WAYS = [
    "the same path",
    "a path with dots",
    "link",
    "link to a link",
    "hard link",
    "linked directory",
    "the project has a link",
    "include",
    "include of a pattern",
]


@behaviour("workspaces:one-file-once")
@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_is_the_users_own_is_no_project_file(tmp_path: Path, way: str) -> None:
    named, file = users_file(tmp_path, way)
    config = load_layer(ConfigFile(named, asked_for=True), str(tmp_path)).loaded.config
    assert config is not None
    assert list(config.servers) == ["a"]
    (below := tmp_path / "p" / "below").mkdir()
    for cwd in (tmp_path / "p", below):
        found = find_workspace(str(cwd), str(tmp_path), users=config.files)
        assert (found.root, found.file, found.shadowed, found.own) == (str(file.parent), "", (), str(file))
        assert find_workspace(str(cwd), str(tmp_path)).file == str(file), "it is that of everybody else"


@behaviour("workspaces:one-file-once")
def test_a_users_own_file_shadows_nothing_and_is_not_shadowed(tmp_path: Path) -> None:
    files = [touch(tmp_path / "p" / name, HELD) for name in PROJECT_FILES[:3]]
    for own in files:
        found = find_workspace(str(tmp_path / "p"), str(tmp_path), users=[str(own)])
        assert [found.file, *found.shadowed] == [str(file) for file in files if file != own]
        assert found.own == str(own)


@behaviour("workspaces:one-file-once")
def test_a_file_that_only_looks_like_the_users_own_is_a_project_file(tmp_path: Path) -> None:
    own, copy = touch(tmp_path / "own.json", HELD), touch(tmp_path / "p" / ".mcp.json", HELD)
    found = find_workspace(str(copy.parent), str(tmp_path), users=[str(own), str(tmp_path / "none.json")])
    assert (found.file, found.own) == (str(copy), "")
