"""Servers start by their name in homes of users of version managers, whoever has started carpool."""

import os
from pathlib import Path

import pytest

from tests.behaviours import behaviour
from tests.kit.live import Daemon, Make
from tests.programs.homes import COMMAND, PLAIN_PATH, TOOLS, make_home, program, repository

SERVER = {"odd": {"command": COMMAND, "args": ["--brief"]}}


def live_in(one: Daemon, shape: str) -> Path:
    """Give the daemon a home of this shape, and the PATH of a terminal in a hostile project."""
    home = make_home(one.base, shape, {})
    program(home.path / "work" / "project" / "bin" / COMMAND, "#!/bin/sh\nexit 66\n")
    project = home.path / "work" / "project"
    repository(project)
    path = os.pathsep.join([str(project / "bin"), PLAIN_PATH])
    one.environ |= {"HOME": str(home.path), "SHELL": home.environ["SHELL"], "PATH": path}
    return home.path


@behaviour("path:clones")
@pytest.mark.parametrize("shape", TOOLS)
async def test_a_server_of_a_version_manager_starts_by_its_name(daemon: Make, shape: str) -> None:
    one = daemon(SERVER, up=False)
    home = live_in(one, shape)
    one.up()
    code, said, trouble = await one.carpool("start", "odd")
    assert code == 0, said + trouble
    directories = one.carpool_json("status")["path"]["directories"]
    assert directories[0].startswith(str(home))
    assert not [each for each in directories if "work/project" in each]
    await one.carpool("down")
