"""Which file is the configuration, and that no file makes reading it raise or wait."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from carpool_protocol.config.reading.includes import MAX_INCLUDED, MAX_NAMES, MAX_PATTERNS
from carpool_protocol.config.reading.load import (
    MAX_FILE_BYTES,
    MAX_LAYER_BYTES,
    MAX_PROJECT_BYTES,
    MAX_PROJECT_VALUES,
    ConfigFile,
    env_file_path,
    find_config_file,
    load_config,
    load_layer,
)
from carpool_protocol.config.reading.parse import MAX_PROJECT_SERVERS, LoadedConfig
from carpool_protocol.config.text.file_stamps import is_current
from carpool_protocol.ids import ServerName
from tests.behaviours import behaviour


@pytest.mark.parametrize(
    ("option", "environ", "path", "asked_for"),
    [
        ("/o.json", {"CARPOOL_CONFIG": "/v.json", "HOME": "/h"}, "/o.json", True),
        ("~/o.json", {"HOME": "/h"}, "/h/o.json", True),
        (None, {"CARPOOL_CONFIG": "/v.json", "XDG_CONFIG_HOME": "/x", "HOME": "/h"}, "/v.json", True),
        (None, {"XDG_CONFIG_HOME": "/x", "HOME": "/h"}, "/x/carpool/carpool.json", False),
        (
            None,
            {"CARPOOL_CONFIG": "", "XDG_CONFIG_HOME": "relative", "HOME": "/h"},
            "/h/.config/carpool/carpool.json",
            False,
        ),
        (None, {"HOME": "/h"}, "/h/.config/carpool/carpool.json", False),
    ],
)
def test_the_configuration_is_found(
    option: str | None, environ: dict[str, str], path: str, asked_for: bool
) -> None:
    assert find_config_file(environ, option) == ConfigFile(path, asked_for)


def test_a_relative_option_is_meant_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_config_file({"HOME": "/h"}, "c.json").path == str(tmp_path / "c.json")


def asked(path: Path) -> LoadedConfig:
    return load_config(ConfigFile(str(path), asked_for=True))


def test_a_missing_file_matters_only_to_whoever_named_it(tmp_path: Path) -> None:
    missing = tmp_path / "none.json"
    assert [problem.render() for problem in asked(missing).problems] == [
        f"{missing}:1: there is no such file: write it, or name another one (--config, CARPOOL_CONFIG)"
    ]
    loaded = load_config(ConfigFile(str(missing), asked_for=False))
    assert loaded.problems == []
    assert loaded.config is not None
    assert loaded.config.servers == {}


def test_what_is_no_readable_text_file_is_a_problem(tmp_path: Path) -> None:
    directory, fifo, huge, bad = (tmp_path / name for name in ("directory", "fifo", "huge", "bad"))
    directory.mkdir()
    os.mkfifo(fifo)
    huge.write_bytes(b" " * (MAX_FILE_BYTES + 1))
    bad.write_bytes(b'{\n"a": "\xff"}')
    texts = [asked(path).problems[0].render() for path in (directory, fifo, huge, bad, Path("/\0"))]
    assert texts[0] == f"{directory}:1: is not a regular file"
    assert texts[1] == f"{fifo}:1: is not a regular file"
    assert texts[2] == f"{huge}:1: is larger than {MAX_FILE_BYTES} bytes"
    assert texts[3] == f"{bad}:2: is not UTF-8 here; save it as UTF-8"
    assert "cannot be opened" in texts[4]


@behaviour("private:places")
def test_a_file_that_anybody_may_write_is_not_read(tmp_path: Path) -> None:
    file, env_file = tmp_path / "c.json", tmp_path / "secrets"
    file.write_text('{"env_file": "secrets"}')
    env_file.write_text("A=1")
    for mode, readable in ((0o664, True), (0o666, False), (0o602, False)):
        file.chmod(mode)
        assert (asked(file).config is not None) is readable
        assert [each.render() for each in asked(file).problems] == [
            f"{file}:1: is writable for all users, who could make carpool run any program; "
            "run `chmod o-w` on it"
        ] * (not readable)
    file.chmod(0o600)
    config = asked(file).config
    assert config is not None
    env_file.chmod(0o666)
    layer = load_layer(ConfigFile(str(file), asked_for=True), "/h")
    assert layer.env == {}
    assert "is writable for all users" in layer.loaded.problems[0].render()


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    file, open_file = tmp_path / "c.json", tmp_path / "o.json"
    file.write_text("{}")
    open_file.write_text("{}")
    open_file.chmod(0o666)
    before = set(os.listdir("/dev/fd"))
    for path in (file, open_file, tmp_path, tmp_path / "none"):
        asked(path)
    assert set(os.listdir("/dev/fd")) == before


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary() | st.text().map(str.encode))
def test_no_bytes_make_loading_raise(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "c.json"
    file.write_bytes(data)
    loaded = asked(file)
    assert (loaded.config is None) == bool(loaded.problems)


def test_the_env_file_lies_beside_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text('{\n"env_file": "secrets.env"}')
    config = asked(file).config
    assert config is not None
    assert env_file_path(config, "/h") == str(tmp_path / "secrets.env")
    layer = load_layer(ConfigFile(str(file), asked_for=True), "/h")
    assert layer.env == {}
    assert [each.render() for each in layer.loaded.problems] == [
        f"{file}:2: env_file: there is no file {tmp_path / 'secrets.env'}"
    ]
    (tmp_path / "secrets.env").write_text("A=1\n")
    layer = load_layer(ConfigFile(str(file), asked_for=True), "/h")
    assert (layer.env, layer.loaded.problems) == ({"A": "1"}, [])
    file.write_text('{"env_file": "~/s.env"}')
    config = asked(file).config
    assert config is not None
    assert env_file_path(config, "/h") == "/h/s.env"


# --- files that are included -------------------------------------------------------------------------------


def servers(*names: str) -> str:
    return json.dumps({"mcpServers": {name: {"command": name} for name in names}})


@behaviour("config:included")
def test_the_servers_of_included_files_belong_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / "carpool.json"
    (tmp_path / "servers.d").mkdir()
    file.write_text('{"include": ["servers.d/*.json", "one.json"], "mcpServers": {"a": {"command": "a"}}}')
    (tmp_path / "servers.d" / "2.json").write_text(servers("d"))
    (tmp_path / "servers.d" / "1.json").write_text('[{"name": "b", "command": "b"}]')
    (tmp_path / "one.json").write_text(servers("c"))
    layer = load_layer(ConfigFile(str(file), asked_for=True), "/h")
    assert layer.loaded.config is not None
    found = layer.loaded.config.servers
    assert list(found) == ["a", "b", "d", "c"]
    assert found[ServerName("b")].file == str(tmp_path / "servers.d" / "1.json")
    assert layer.seen.keys() == {*layer.files, str(tmp_path / "servers.d"), str(tmp_path)}
    assert [Path(each).name for each in layer.files] == ["carpool.json", "1.json", "2.json", "one.json"]
    assert load_layer(ConfigFile(str(file), asked_for=True), "/h").digest == layer.digest
    (tmp_path / "servers.d" / "2.json").unlink()
    fewer = load_layer(ConfigFile(str(file), asked_for=True), "/h")
    assert fewer.loaded.config is not None
    assert list(fewer.loaded.config.servers) == ["a", "b", "c"]
    assert fewer.digest != layer.digest


@behaviour("config:name-used-once")
def test_a_name_in_two_included_files_is_an_error_that_names_both(tmp_path: Path) -> None:
    file = tmp_path / "carpool.json"
    file.write_text('{"include": ["*.part"]}')
    (tmp_path / "1.part").write_text(servers("a"))
    (tmp_path / "2.part").write_text(servers("a"))
    assert [each.render() for each in asked(file).problems] == [
        f"{tmp_path}/2.part:1: a: the name is used twice, also in {tmp_path}/1.part; give one another name"
    ]


@pytest.mark.parametrize(
    ("pattern", "part", "problem"),
    [
        ("../x.json", "", "include[0]: must be a pattern below the directory of this file"),
        ("/etc/*.json", "", "include[0]: must be a pattern below the directory of this file"),
        ("none.json", "", "none.json:1: the file is included, but it does not exist"),
        ("part.json", "{", "part.json:1: this { is not closed"),
        ("part.json", '{"max_instances": 3}', "part.json:1: an included file may hold servers only"),
        ("*/*/*.json", "", "include[0]: may have *, ? and [ in 2 of its steps"),
    ],
)
def test_what_cannot_be_included_is_told(tmp_path: Path, pattern: str, part: str, problem: str) -> None:
    file = tmp_path / "carpool.json"
    file.write_text(json.dumps({"include": [pattern]}))
    if part:
        (tmp_path / "part.json").write_text(part)
    (found,) = asked(file).problems
    assert problem in found.render()


@behaviour("config:bounded")
def test_more_files_or_patterns_than_anybody_needs_are_refused_and_not_read(tmp_path: Path) -> None:
    file = tmp_path / "carpool.json"
    file.write_text('{"include": ["d/*"]}')
    (tmp_path / "d").mkdir()
    for number in range(MAX_INCLUDED + 1):
        (tmp_path / "d" / str(number)).touch()
    (found,) = asked(file).problems
    assert "include: more than 256 files match it" in found.render()
    assert load_layer(ConfigFile(str(file), asked_for=True), "/h").files == (str(file),)
    file.write_text(json.dumps({"include": ["x.json"] * (MAX_PATTERNS + 1)}))
    assert "more than 32 patterns" in asked(file).problems[0].render()


@behaviour("config:bounded")
def test_a_tree_that_is_many_times_larger_than_what_is_in_it_is_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory full of links to itself: as many names two steps deep as there are links, squared."""
    file = tmp_path / "carpool.json"
    file.write_text('{"include": ["*/*.json"]}')
    for number in range(MAX_INCLUDED - 1):
        (tmp_path / f"{number:03}").symlink_to(".")
    looked = 0
    real = os.scandir

    def scandir(path: str) -> Any:
        nonlocal looked
        looked += 1
        return real(path)

    monkeypatch.setattr("carpool_protocol.config.reading.includes.os.scandir", scandir)
    (found,) = asked(file).problems
    assert (
        f"include: there are more than {MAX_NAMES} names in the directories that it searches"
        in found.render()
    )
    assert looked <= MAX_NAMES // MAX_INCLUDED + 1
    (tmp_path / "another").symlink_to(".")
    (tmp_path / "yet another").symlink_to(".")
    file.write_text('{"include": ["*/carpool.json"]}')
    (found,) = asked(file).problems
    assert f"include: more than {MAX_INCLUDED} directories match it" in found.render()


def test_what_is_included_is_found_as_a_shell_finds_it_and_watched_wherever_more_may_come(
    tmp_path: Path,
) -> None:
    file = tmp_path / "carpool.json"
    file.write_text('{"include": ["teams/./*/servers.d/[ab]*.json", "later/on/x.json", "later/*.json"]}')
    for path in ("teams/one/servers.d/a.json", "teams/one/servers.d/c.json", "teams/.two/servers.d/b.json"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("{}")
    layer = load_layer(ConfigFile(str(file), asked_for=True), "/h")
    assert [each.removeprefix(f"{tmp_path}/") for each in layer.files] == [
        "carpool.json",
        "teams/one/servers.d/a.json",
        "later/on/x.json",
    ]
    looked_in = {"", "/teams", "/teams/one", "/teams/one/servers.d", "/later/on"}
    assert layer.seen.keys() - set(layer.files) == {f"{tmp_path}{each}" for each in looked_in}
    (tmp_path / "teams" / "three").mkdir()
    assert not is_current(layer.seen)


@behaviour("config:bounded")
def test_all_files_together_are_bounded_and_the_rest_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "carpool.json"
    file.write_text('{"include": ["?.json"]}')
    count = MAX_LAYER_BYTES // MAX_FILE_BYTES
    for number in range(count + 2):
        (tmp_path / f"{number}.json").write_text("{}" + " " * (MAX_FILE_BYTES - 2))
    found = asked(file).problems
    # The file itself counts, so that one less is read.
    assert [Path(each.file).name for each in found] == ["3.json", "4.json", "5.json"]
    assert "with it the files of one configuration are larger" in found[0].render()


@behaviour("config:bounded")
def test_what_a_project_has_read_before_it_is_trusted_is_bounded_more_narrowly(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text('{"include": ["?.json"]}')
    (tmp_path / "1.json").write_text("{}" + " " * (MAX_PROJECT_BYTES - file.stat().st_size - 2))
    assert of_project(file).problems == []
    (tmp_path / "2.json").write_text("{}")
    (found,) = of_project(file).problems
    assert "2.json:1: is not read: with it the files of a project are larger" in found.render()
    (tmp_path / "1.json").write_text(servers(*(f"a{number}" for number in range(MAX_PROJECT_SERVERS))))
    assert of_project(file).problems == []
    (tmp_path / "2.json").write_text(servers("b"))
    (found,) = of_project(file).problems
    assert f"2.json:1: a project may have {MAX_PROJECT_SERVERS} servers in all its files" in found.render()
    assert asked(file).problems == []


@behaviour("config:bounded")
def test_a_project_may_hold_so_many_values_in_all_its_files_and_lists_of_tools(tmp_path: Path) -> None:
    file, more = tmp_path / ".mcp.json", tmp_path / "more.json"
    file.write_text(json.dumps({"x": [0] * (MAX_PROJECT_VALUES - 10)}))
    assert of_project(file).problems == []
    file.write_text(json.dumps({"x": [0] * MAX_PROJECT_VALUES}))
    (found,) = of_project(file).problems
    assert f"the files of a project hold more than {MAX_PROJECT_VALUES} values" in found.render()
    assert asked(file).problems == []
    server = {"command": "x", "args": ["a"] * (MAX_PROJECT_VALUES - 100), "tools_file": "more.json"}
    (file := tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"a": server}}))
    more.write_text(json.dumps([{"name": f"t{at}"} for at in range(100)]))
    config = of_project(file).config
    assert config is not None
    assert f"more than {MAX_PROJECT_VALUES} values" in config.unusable[ServerName("a")]
    more.write_text(json.dumps([{"name": f"t{at}"} for at in range(40)]))
    config = of_project(file).config
    assert config is not None
    assert len(config.servers[ServerName("a")].offline or ()) == 40


def of_project(path: Path) -> LoadedConfig:
    return load_layer(ConfigFile(str(path), asked_for=True), "/h", project=True).loaded


@behaviour("trust:asked")
def test_what_is_no_regular_file_is_not_even_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project of a stranger may name any path; a terminal, a tape or a port does something when opened."""
    opened: list[str] = []

    def spied(path: str, flags: int, **more: Any) -> int:
        opened.append(path)
        return real(path, flags, **more)

    real = os.open
    monkeypatch.setattr("carpool_protocol.config.reading.load.os.open", spied)
    os.mkfifo(tmp_path / "device")
    (tmp_path / ".carpool").mkdir()
    file = tmp_path / ".carpool" / "mcp.json"
    file.write_text(
        '{"env_file": "../device", "mcpServers": {"a": {"command": "x", "tools_file": "../device"}}}'
    )
    assert "is not a regular file" in of_project(file).problems[0].render()
    (tmp_path / "link").symlink_to("device")
    assert "is not a regular file" in of_project(tmp_path / "link").problems[0].render()
    assert opened == [str(file)]


def test_a_file_of_the_kernel_with_nothing_in_it_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To root some look regular: trace_pipe waits for the next line. A FIFO with a writer stands in."""
    file = tmp_path / "carpool.json"
    os.mkfifo(file, 0o600)
    writer = os.open(file, os.O_RDWR | os.O_NONBLOCK)
    monkeypatch.setattr("carpool_protocol.config.reading.load.stat.S_ISREG", lambda _: True)
    (found,) = asked(file).problems
    os.close(writer)
    assert "it has no content at the moment" in found.render()


def test_a_pattern_that_matches_nothing_is_fine(tmp_path: Path) -> None:
    file = tmp_path / "carpool.json"
    file.write_text('{"include": ["servers.d/*.json"]}')
    assert asked(file).problems == []


def test_the_variables_of_the_env_file_come_with_the_layer_and_count_in_its_digest(tmp_path: Path) -> None:
    file = tmp_path / "carpool.json"
    file.write_text('{"env_file": "e.env"}')
    missing = load_layer(ConfigFile(str(file), asked_for=True), "/h")
    assert missing.loaded.config is None
    (tmp_path / "e.env").write_text("A=1\n")
    layer = load_layer(ConfigFile(str(file), asked_for=True), "/h")
    assert layer.env == {"A": "1"}
    assert "'1'" not in repr(layer)
    (tmp_path / "e.env").write_text("A=2\n")
    assert load_layer(ConfigFile(str(file), asked_for=True), "/h").digest != layer.digest


def test_a_carpool_without_a_configuration_file_has_the_servers_of_other_nodes(tmp_path: Path) -> None:
    offered = tmp_path / "node-servers.json"
    servers = {"git": {"node": "alpha", "server": "git"}}
    offered.write_text(json.dumps({"cluster": {"node": "beta"}, "mcpServers": servers}))
    file = ConfigFile(str(tmp_path / "missing.json"), asked_for=False, node_servers=str(offered))
    config = load_layer(file, "").loaded.config
    assert config is not None
    assert list(config.servers) == ["git"]
