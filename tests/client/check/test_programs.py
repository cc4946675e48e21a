"""What `carpool check` says of servers whose program is not installed."""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from carpool.check.programs import MissingProgram, ProgramLookup, command_warnings
from carpool_protocol.bootstrap.extras import REQUIREMENTS, install_command
from carpool_protocol.config.reading.parse import read_config
from carpool_protocol.config.schema.expand import MissingValue, expand
from carpool_protocol.config.schema.model import ServerConfig
from tests.kit.private_daemon import PrivateDaemon

SAID = "mcpServers.a.command: no-such-program is not in the PATH of {}: a cannot start before it is installed"


def missing(tmp_path: Path, *, path: str = "/usr/bin:/bin", **server: Any) -> list[MissingProgram]:
    """What is missing for a server. `path`: the PATH of the caller."""
    known = {"PATH": "/usr/bin:/bin", "BIN": str(tmp_path)}

    def expanded(_: ServerConfig, text: str) -> str | None:
        value = expand(text, known, {})
        return None if isinstance(value, MissingValue) else value

    loaded = read_config(json.dumps({"mcpServers": {"a": server}}), "c.json")
    assert loaded.config is not None, loaded.problems
    lookup = ProgramLookup(known["PATH"], {**known, "PATH": path})
    found = command_warnings(loaded.config, expanded, lookup, str(tmp_path), "")
    return list(found.values())


def warned(tmp_path: Path, **server: Any) -> list[str]:
    return [each.text for each in missing(tmp_path, **server)]


@pytest.mark.parametrize("env", [{}, {"PATH": "${BIN}"}])
def test_a_program_that_is_nowhere_in_the_servers_path_is_said_with_its_place(
    tmp_path: Path, env: dict[str, str]
) -> None:
    assert warned(tmp_path, command="no-such-program", env=env) == [
        f"c.json:1: {SAID.format('its `env`' if env else 'servers')}"
    ]


@pytest.mark.parametrize(
    "server",
    [
        {"command": "sh"},
        {"command": "mine", "env": {"PATH": "${BIN}"}},
        {"command": "no-such-program", "env": {"PATH": "${NOT_SET}"}},
        {"command": "no-such-program", "disabled": True},
        {"command": "./mine"},
        {"command": "${BIN}/mine"},
        {"command": "~/mine"},
        {"command": "${LATER}"},
        {"command": "./mine", "cwd": "${LATER}"},
        {"url": "http://far.example/mcp"},
        {"python": "notes"},
    ],
)
def test_one_that_is_there_or_cannot_be_judged_is_not_mentioned(
    tmp_path: Path, server: dict[str, Any]
) -> None:
    (tmp_path / "mine").write_text("#!/bin/sh\n")
    (tmp_path / "mine").chmod(0o700)
    assert warned(tmp_path, **server) == []


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("/no/such/server", "the program /no/such/server does not exist"),
        ("./later", "the program ./later does not exist (looked for in HERE/.)"),
        ("./plain", "./plain is not an executable file: name the program that runs it"),
        ("./script", "./script is not an executable file: `chmod +x` it, or name the program that runs it"),
        (
            "uvx x",
            "a cannot start: `command` names one program: leave `uvx` there, and put what follows it into "
            "`args`",
        ),
    ],
)
def test_a_path_that_cannot_be_run_is_said(tmp_path: Path, command: str, said: str) -> None:
    (tmp_path / "plain").write_text("x")
    (tmp_path / "script").write_text("#!/bin/sh\n")
    expected = f"c.json:1: mcpServers.a.command: {said}".replace("HERE/.", str(tmp_path))
    assert [each.replace("/.)", ")") for each in warned(tmp_path, command=command)] == [expected]


@pytest.mark.parametrize("server", [{"url": "http://far.example/mcp"}, {"python": "notes"}])
def test_a_server_whose_packages_are_not_installed_is_said_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: dict[str, Any]
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    (found,) = missing(tmp_path, **server)
    assert found.text.endswith("a needs more than is installed: " + install_command("remote"))
    assert found.repair == f"Run `{install_command('remote')}`"


def test_the_requirements_of_the_extras_are_those_of_the_package() -> None:
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    written = tomllib.loads(text)["project"]["optional-dependencies"]
    for extra, requirements in REQUIREMENTS.items():
        assert tuple(each.partition(";")[0].strip() for each in written[extra]) == requirements


def test_check_warns_of_it_and_fails(house: PrivateDaemon) -> None:
    file = house.base / "c.json"
    file.write_text('{"mcpServers": {"a": {"command": "no-such-program"}}}')
    path = house.environ["PATH"] = "/usr/bin:/bin"
    done = house.run("check", "--config", str(file))
    assert (done.returncode, done.stderr) == (
        1,
        f"warning: {file}:1: {SAID.format('servers')}\nPATH of servers: {path}\n",
    )
    assert done.stdout.endswith(f"{file}: not all right: a cannot start here\n")


@pytest.mark.parametrize(
    ("command", "repair"),
    [
        ("uvx", "Install uv (https://docs.astral.sh/"),
        ("npx", "Install Node.js (https://nodejs.org/"),
        ("bunx", "Install Bun (https://bun.sh/"),
        ("docker", "Install docker (https://docs.docker.com/"),
        ("no-such-program", "Install no-such-program, or write the absolute path"),
        ("uvx x", "Mend the entry: `command` names one program: leave `uvx` there"),
        ("/no/such/server", "Correct the path in `command`"),
        ("./later", "Correct the path in `command`; a relative path starts at the server's `cwd`"),
        ("./plain", "Name the program that runs it in `command`, it in `args`"),
        ("./script", "Run `chmod +x ./script`, or name the program"),
    ],
)
def test_each_missing_program_has_a_repair_of_its_own(tmp_path: Path, command: str, repair: str) -> None:
    (tmp_path / "plain").write_text("x")
    (tmp_path / "script").write_text("#!/bin/sh\n")
    (found,) = missing(tmp_path, command=command, env={"PATH": str(tmp_path)})
    assert found.repair.startswith(repair)


def test_a_program_of_this_terminal_alone_is_repaired_by_a_restart_from_here(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("#!/bin/sh\n")
    (tmp_path / "mine").chmod(0o700)
    (found,) = missing(tmp_path, command="mine", path=str(tmp_path))
    assert "mine is in the PATH of this terminal" in found.text
    assert "`carpool restart --all`" in found.repair
