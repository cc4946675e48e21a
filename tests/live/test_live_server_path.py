"""carpool is started with a short PATH, as programs on a desktop are, and the login shell knows more."""

import os
import sys
from pathlib import Path

from tests.behaviours import behaviour
from tests.kit.live import SERVERS, Daemon, Make


def program(file: Path, text: str) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}")
    file.chmod(0o755)


def with_shell(one: Daemon, text: str) -> None:
    """A login shell of the test's own, and a short PATH."""
    program(one.base / "shells" / "bash", text)
    tool = f'exec {sys.executable} -S -E {SERVERS / "echo.py"} "$@"\n'
    program(one.base / "tools" / "own-server", tool)
    one.environ |= {"SHELL": str(one.base / "shells" / "bash"), "PATH": "/usr/bin:/bin"}


SERVER = {"own": {"command": "own-server"}, "gone": {"command": "own-other"}}


@behaviour("path:login")
@behaviour("path:told")
async def test_an_agent_with_a_short_path_starts_carpool_and_servers_are_found(daemon: Make) -> None:
    one = daemon(SERVER, up=False)
    with_shell(one, 'PATH="$HOME/tools:/usr/bin:/bin"\nexec /bin/sh -c "$4"\n')
    code, said, trouble = await one.carpool("tools")  # brings carpool up, as an agent does
    assert code == 0, trouble
    assert "own__" in said
    code, said, _ = await one.carpool("check")
    assert f"PATH of servers: {one.base}/tools:/usr/bin:/bin" in said + _
    assert "own-other is not in the PATH of servers" in said + _
    assert "own-server is not in" not in said + _
    code, said, _ = await one.carpool("status")
    assert f": {one.base}/tools:/usr/bin:/bin" in said
    await one.carpool("down")


@behaviour("path:told")
async def test_a_program_that_only_the_terminal_finds_is_told_with_what_to_do(daemon: Make) -> None:
    one = daemon({"own": SERVER["own"]}, up=False)
    with_shell(one, "exec /bin/sleep 0\n")
    one.up()
    one.environ["PATH"] = os.pathsep.join([str(one.base / "tools"), "/usr/bin:/bin"])
    code, _, trouble = await one.carpool("start", "own")
    assert code == 1
    assert "PATH of servers: /usr/bin:/bin\n" in trouble
    assert "own-server is in the PATH of this terminal" in trouble
    _, said, _ = await one.carpool("status")
    assert "carpool restart --all" in said
    assert "bash ended without saying its PATH" in said
    _, said, trouble = await one.carpool("check")
    assert "not all right: own cannot start here" in said
    assert "own-server is in the PATH of this terminal" in trouble
    code, _, trouble = await one.carpool("restart", "--all")
    assert code == 0, trouble
    code, said, trouble = await one.carpool("start", "own")
    assert code == 0, trouble
    await one.carpool("down")


@behaviour("path:login")
async def test_the_setting_leaves_the_login_shell_alone(daemon: Make) -> None:
    one = daemon({"own": SERVER["own"]}, up=False, login_shell=False)
    with_shell(one, f": > {one.base}/ran\n")
    one.up()
    _, said, _ = await one.carpool("status")
    assert "`login_shell` is off" in said
    assert not (one.base / "ran").exists()
    await one.carpool("down")
