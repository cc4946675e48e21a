"""Homes that the tests write have the shape that they are named after, and a server in the PATH of their
shell.
"""

import subprocess
from pathlib import Path

import pytest

from tests.programs.homes import COMMAND, SHAPES, TOOLS, make_home

CLONES = {"nvm": ".nvm", "pyenv": ".pyenv", "rbenv": ".rbenv", "asdf": ".asdf", "Homebrew": "homebrew"}


@pytest.mark.parametrize("shape", TOOLS)
@pytest.mark.parametrize("shell", ["program", "login shell"])
def test_the_server_of_a_home_starts_by_its_name(tmp_path: Path, shape: str, shell: str) -> None:
    home = make_home(tmp_path, shape, {})
    start = [COMMAND] if shell == "program" else ["bash", "-i", "-l", "-c", COMMAND]
    environ = dict(home.environ) if shell == "program" else {"HOME": str(home.path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        ["env", *start],
        env=environ,
        input='{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n',
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == '{"jsonrpc": "2.0", "id": 1, "result": {}}\n', done.stderr


@pytest.mark.parametrize("shape", list(SHAPES))
def test_only_tools_that_are_cloned_and_the_project_have_a_repository(tmp_path: Path, shape: str) -> None:
    home = make_home(tmp_path, shape, {})
    found = {str(each.parent.relative_to(home.path)) for each in home.path.rglob(".git")}
    assert found == {"work/project", *([CLONES[shape]] if shape in CLONES else [])}


def test_a_home_sets_what_its_name_says(tmp_path: Path) -> None:
    homes = {shape: make_home(tmp_path / shape, shape, {"MORE": "1"}).environ for shape in SHAPES}
    assert homes["german"]["LANG"] == "de_DE.UTF-8"
    assert homes["xdg"]["XDG_CONFIG_HOME"] == str(tmp_path / "xdg" / "home" / "xdg" / "config")
    assert homes["few variables"].keys() == {"HOME", "PATH", "MORE"}
    assert homes["nvm"]["PATH"].startswith(str(tmp_path / "nvm" / "home" / ".nvm" / "versions"))
