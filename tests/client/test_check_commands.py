"""What `carpool check` says of servers whose program is not installed."""

import json
from pathlib import Path
from typing import Any

import pytest

from carpool.check_commands import command_warnings
from carpool_protocol.config.expand import Missing, expand
from carpool_protocol.config.model import ServerConfig
from carpool_protocol.config.shape import read_config
from tests.kit.house import House

SAID = "mcpServers.a.command: no-such-program is not in PATH here: a cannot start before it is installed"


def warned(tmp_path: Path, **server: Any) -> list[str]:
    known = {"PATH": "/usr/bin:/bin", "BIN": str(tmp_path)}

    def expanded(_: ServerConfig, text: str) -> str | None:
        value = expand(text, known, {})
        return None if isinstance(value, Missing) else value

    loaded = read_config(json.dumps({"mcpServers": {"a": server}}), "c.json")
    assert loaded.config is not None, loaded.problems
    return command_warnings(loaded.config, expanded, known)


@pytest.mark.parametrize("env", [{}, {"PATH": "${BIN}"}])
def test_a_program_that_is_nowhere_in_the_servers_path_is_said_with_its_place(
    tmp_path: Path, env: dict[str, str]
) -> None:
    assert warned(tmp_path, command="no-such-program", env=env) == [f"c.json:1: {SAID}"]


@pytest.mark.parametrize(
    "server",
    [
        {"command": "sh"},
        {"command": "mine", "env": {"PATH": "${BIN}"}},
        {"command": "no-such-program", "env": {"PATH": "${NOT_SET}"}},
        {"command": "no-such-program", "disabled": True},
        {"command": "bin/later"},
        {"command": "${LATER}"},
        {"url": "http://far.example/mcp"},
    ],
)
def test_one_that_is_there_or_cannot_be_judged_is_not_mentioned(
    tmp_path: Path, server: dict[str, Any]
) -> None:
    (tmp_path / "mine").write_text("#!/bin/sh\n")
    (tmp_path / "mine").chmod(0o700)
    assert warned(tmp_path, **server) == []


def test_check_warns_of_it_and_goes_on(house: House) -> None:
    file = house.base / "c.json"
    file.write_text('{"mcpServers": {"a": {"command": "no-such-program"}}}')
    done = house.run("check", "--config", str(file))
    assert (done.returncode, done.stderr) == (0, f"warning: {file}:1: {SAID}\n")
