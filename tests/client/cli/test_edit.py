"""The verbs `add` and `remove`, without a daemon."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec import structs

from carpool.cli import edit as cli_edit
from carpool.cli.edit import edit_file
from carpool_protocol.config.foreign.formats import shape_of
from carpool_protocol.config.reading.parse import read_config
from carpool_protocol.config.schema.model import ServerConfig
from carpool_protocol.config.text.jsonc import parse
from carpool_protocol.ids import ServerName
from tests.behaviours import behaviour
from tests.kit.private_daemon import PrivateDaemon

FILE = ".config/carpool/carpool.json"


def written(house: PrivateDaemon, text: str, name: str = FILE) -> Path:
    file = house.base / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


@behaviour("config:edited", "private:files")
def test_a_server_is_added_to_a_file_that_is_made_for_it_and_taken_out_again(house: PrivateDaemon) -> None:
    done = house.run("add", "a", "--env", "T=${T}", "--cwd", "/w", "--", "cmd", "--flag", "x y", "--json")
    file = house.base / FILE
    assert (done.returncode, done.stdout) == (0, f"a added to {file}\n")
    assert json.loads(file.read_text()) == {
        "mcpServers": {
            "a": {"command": "cmd", "args": ["--flag", "x y", "--json"], "env": {"T": "${T}"}, "cwd": "/w"}
        }
    }
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    done = house.run("remove", "a", "--json")
    assert json.loads(done.stdout) == {"server": "a", "file": str(file), "running": False, "problems": []}
    assert json.loads(file.read_text()) == {"mcpServers": {}}


SHAPES = {
    "servers.json": '{\n  "servers": [\n    {"name": "github", "command": "g"}\n  ]\n}\n',
    "mcp/servers.json": '{"servers": [{"name": "github", "command": "g"}]}\n',
    "mcp_servers.json": '[\n  // kept\n  {"name": "github", "command": "g"},  // this, too\n]\n',
    ".vscode/mcp.json": '{\n  "servers": {\n    "github": {"command": "g"}\n  },\n  "inputs": []\n}\n',
    ".vscode/settings.json": '{"editor.tabSize": 2, "mcp": {"servers": {"github": {"command": "g"}}}}\n',
    ".mcp.json": '{\n\t"mcpServers": {\n\t\t"github": {"command": "g"}\n\t}\n}\n',
    "empty_list.json": '{"servers": []}\n',
    "nested.json": "[]\n",
}


@behaviour("config:edited")
@pytest.mark.parametrize("name", SHAPES)
def test_a_server_is_added_in_the_shape_that_the_file_has_and_taken_out_again(
    house: PrivateDaemon, name: str
) -> None:
    file = written(house, SHAPES[name], name)
    before = servers_of(file)
    done = house.run("add", "late", "--config", str(file), "--", "sh", "-c", "true")
    assert (done.returncode, done.stderr) == (0, "")
    found = servers_of(file)
    assert found.keys() == {*before, "late"}
    late = found[ServerName("late")]
    assert (late.command, late.args) == ("sh", ("-c", "true"))
    assert shape_of(parse(file.read_text(), "").value) is shape_of(parse(SHAPES[name], "").value)
    done = house.run("remove", "late", "--config", str(file))
    assert done.returncode == 0, done.stderr
    assert servers_of(file) == before
    assert ("// kept" in SHAPES[name]) is ("// kept" in file.read_text())


@behaviour("config:edited")
def test_nothing_is_added_to_a_file_whose_servers_are_written_in_another_way(house: PrivateDaemon) -> None:
    text = '{"theme": "dark", "mcp": {"a": {"type": "local", "command": ["x"]}}}'
    file = written(house, text, "opencode.json")
    done = house.run("add", "late", "--config", str(file), "--", "sh")
    assert (done.returncode, file.read_text()) == (1, text)
    assert "opencode's shape of a server is another one; add it there by hand" in done.stderr


def servers_of(file: Path) -> dict[ServerName, ServerConfig]:
    config = read_config(file.read_text(), str(file)).config
    assert config is not None
    return {name: structs.replace(each, lines={}) for name, each in config.servers.items()}


def test_a_command_that_is_not_here_is_added_and_said(house: PrivateDaemon) -> None:
    done = house.run("add", "a", "--", "no-such-program")
    assert done.returncode == 0
    assert done.stderr == (
        "carpool: no-such-program is not in PATH here: a cannot start before it is installed\n"
    )
    for at, program in enumerate(("sh", "${SHELL}", "bin/later")):
        assert house.run("add", f"b{at}", "--", program).stderr == ""


def test_one_verb_at_a_time_edits_a_file(tmp_path: Path) -> None:
    file = tmp_path / "real" / "carpool.json"
    file.parent.mkdir()
    file.write_text("{}")
    (tmp_path / "link.json").symlink_to(file)
    other = os.open(file.parent, os.O_RDONLY)

    def edit(text: str) -> str:
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return text + "\n"

    assert edit_file(str(tmp_path / "link.json"), edit)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)
    assert file.read_text() == "{}\n"


@behaviour("config:edited")
def test_of_two_who_add_one_name_at_once_the_second_hears_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "carpool.json"
    file.write_text("{}")
    first = '{"mcpServers": {"a": {"command": "first"}}}'

    @contextmanager
    def after_the_other(_: str) -> Iterator[None]:
        file.write_text(first)
        yield

    monkeypatch.setattr(cli_edit, "_alone_in", after_the_other)
    done = CliRunner().invoke(cli_edit.add, ["a", "--config", str(file), "--", "second"])
    assert (done.exit_code, "there is a server a already" in done.output) == (1, True), done.output
    assert file.read_text() == first


@behaviour("config:edited", "python:run")
def test_a_python_module_is_added_with_the_directory_it_is_looked_for_in(house: PrivateDaemon) -> None:
    assert house.run("add", "a", "--python", "pack.mine").returncode == 0
    assert house.run("add", "b", "--python", "mine", "--cwd", "~/code").returncode == 0
    assert json.loads((house.base / FILE).read_text()) == {
        "mcpServers": {
            "a": {"python": "pack.mine", "cwd": os.getcwd()},
            "b": {"python": "mine", "cwd": "~/code"},
        }
    }


@behaviour("config:edited", "remote:secrets")
def test_a_url_is_added_with_headers_that_are_not_filled_in(house: PrivateDaemon) -> None:
    key = "Authorization=Bearer ${TOKEN}"
    words = ("--url", "https://h.example/mcp?a=b", "--transport", "http", "--header", key, "--header", "X-A=")
    assert house.run("add", "a", *words).returncode == 0
    assert house.run("add", "b", "--url", "https://h.example").returncode == 0
    assert json.loads((house.base / FILE).read_text()) == {
        "mcpServers": {
            "a": {
                "url": "https://h.example/mcp?a=b",
                "transport": "http",
                "headers": {"Authorization": "Bearer ${TOKEN}", "X-A": ""},
            },
            "b": {"url": "https://h.example"},
        }
    }


@behaviour("config:edited", "remote:secrets")
@pytest.mark.parametrize("header", [f"Authorization{mark}Bearer docs-9f8a7b6c" for mark in ("=", ": ")])
def test_secrets_of_an_added_server_are_kept_in_the_env_file(house: PrivateDaemon, header: str) -> None:
    done = house.run("add", "a", "--url", "https://h.example", "--header", header, "--header", "X-Mode: fast")
    assert done.returncode == 0, done.stderr
    file, secrets = house.base / FILE, (house.base / FILE).parent / "secrets.env"
    assert json.loads(file.read_text()) == {
        "mcpServers": {
            "a": {
                "url": "https://h.example",
                "headers": {"Authorization": "Bearer ${CARPOOL_A_AUTHORIZATION}", "X-Mode": "fast"},
            }
        },
        "env_file": "secrets.env",
    }
    assert secrets.read_text() == 'CARPOOL_A_AUTHORIZATION="docs-9f8a7b6c"\n'
    assert secrets.stat().st_mode & 0o777 == 0o600
    assert "docs-9f8a7b6c" not in done.stdout + done.stderr
    assert str(secrets) in done.stderr
    token = ("--env", "MY_TOKEN=ghp_0123456789abcdef0123456789abcdef", "--", "cmd")
    done = house.run("add", "b", *token)
    assert (done.returncode, "are kept in" in done.stderr, "written out" in done.stderr) == (0, True, False)
    assert json.loads(file.read_text())["mcpServers"]["b"]["env"] == {"MY_TOKEN": "${CARPOOL_B_MY_TOKEN}"}
    assert secrets.read_text().count("\n") == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--url", "ftp://h"], "must be a URL that begins with http:// or https:// and names a host"),
        (
            ["--header", "A=hunter2", "--", "cmd"],
            "headers: goes with `url` only, and this server is a command",
        ),
        (["--url", "https://h", "--cwd", "/w"], "cwd: has no meaning for a server over a URL"),
        (["--url", "https://h", "--header", "hunter2"], "--header is NAME=VALUE or 'NAME: VALUE'"),
    ],
)
def test_a_url_is_added_only_with_what_goes_with_it(
    house: PrivateDaemon, words: list[str], says: str
) -> None:
    done = house.run("add", "a", *words)
    assert done.returncode == 2
    assert says in done.stderr
    assert "hunter2" not in done.stderr
    assert not (house.base / FILE).exists()


@pytest.mark.parametrize(
    "words", [[], ["--python", "mine", "--", "cmd"], ["--url", "https://h", "--", "cmd"]]
)
def test_a_server_that_is_added_is_one_thing(house: PrivateDaemon, words: list[str]) -> None:
    done = house.run("add", "a", *words)
    assert (done.returncode, done.stderr.strip().splitlines()[-1]) == (
        2,
        "Error: a server is a command after --, --url URL or --python MODULE: say one of them",
    )
    assert not (house.base / FILE).exists()


def test_what_is_wrong_with_a_name_is_said_once(house: PrivateDaemon) -> None:
    done = house.run("add", "bad name", "--", "x")
    assert done.returncode == 2
    assert done.stderr.count("bad name") == 1
    assert "may hold only" in done.stderr


@behaviour("config:edited")
def test_a_server_is_taken_out_of_the_file_that_it_is_written_in(house: PrivateDaemon) -> None:
    own = written(house, '{ "include": ["more.json"] } // mine\n')
    more = written(house, '{"mcpServers": {"a": {"command": "x"}}}', ".config/carpool/more.json")
    assert house.run("remove", "a").stdout == f"a removed from {more}\n"
    assert own.read_text() == '{ "include": ["more.json"] } // mine\n'
    assert json.loads(more.read_text()) == {"mcpServers": {}}


@behaviour("config:edited")
def test_a_file_keeps_the_ends_of_its_lines(house: PrivateDaemon) -> None:
    file = house.base / FILE
    file.parent.mkdir(parents=True)
    before = b'{\r\n  "mcpServers": {\r\n    "a": { "command": "x" }\r\n  }\r\n}\r\n'
    file.write_bytes(before)
    assert house.run("disable", "a", "--save").returncode == 0
    assert file.read_bytes() == before.replace(b'"x" }', b'"x", "disabled": true }')
    assert house.run("enable", "a", "--save").returncode == 0
    assert file.read_bytes() == before


def test_a_file_that_is_a_link_stays_one(house: PrivateDaemon) -> None:
    kept = written(house, "{}", "dotfiles/carpool.json")
    file = house.base / FILE
    file.parent.mkdir(parents=True)
    file.symlink_to(kept)
    assert house.run("add", "a", "--", "x").returncode == 0
    assert file.is_symlink()
    assert json.loads(kept.read_text()) == {"mcpServers": {"a": {"command": "x"}}}


@pytest.mark.parametrize("words", [("add", "b", "--", "x"), ("remove", "a"), ("disable", "a", "--save")])
def test_a_file_that_is_read_only_is_not_replaced(house: PrivateDaemon, words: tuple[str, ...]) -> None:
    file = written(house, '{"mcpServers": {"a": {"command": "x"}}}')
    file.chmod(0o444)
    before = file.stat().st_ino
    done = house.run(*words)
    assert (done.returncode, done.stderr) == (1, f"carpool: {file} is for you to edit: it is read-only\n")
    assert (file.stat().st_ino, file.stat().st_mode & 0o777) == (before, 0o444)


@pytest.mark.parametrize(
    ("text", "words", "code", "why"),
    [
        ('{"mcpServers": {"a": {"command": "x"}}}', ["add", "a", "--", "y"], 1, "already in"),
        ("{", ["add", "a", "--", "y"], 2, "is not closed"),
        ("{}", ["add", "a__b", "--", "y"], 2, "a__b"),
        ("{}", ["add", "a", "--env", "secret", "--", "y"], 2, "--env is NAME=VALUE"),
        ("{}", ["add", "a", "--", "${x"], 2, "nothing is changed"),
        ("{}", ["add", "a"], 2, "say one of them"),
        ('{"mcpServers": {"b": {"command": "x"}}}', ["add", "a", "--url", "nonsense"], 2, "must be a URL"),
        ("{}", ["add", "a", "--python", "tools/notes.py"], 2, "as package.module, not a file"),
        ("{}", ["add", "gh", "npx", "-y", "pkg"], 2, "put -- before the command: `carpool add gh -- COMMAND"),
        ('{"mcpServers": {"git": {"command": "x"}}}', ["remove", "gti"], 1, "did you mean 'git'?"),
    ],
)
def test_what_cannot_be_done_is_said_and_leaves_the_file_alone(
    house: PrivateDaemon, text: str, words: list[str], code: int, why: str
) -> None:
    file = written(house, text)
    done = house.run(*words)
    assert (done.returncode, why in done.stderr, file.read_text()) == (code, True, text), done.stderr
    assert "secret" not in done.stderr
