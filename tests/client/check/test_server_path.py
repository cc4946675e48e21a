"""The PATH of servers as verbs describe it, in homes of every usual shape."""

import os
import shutil
from pathlib import Path

import pytest

from carpool.check.server_path import comparison, is_found, path_from_here
from tests.behaviours import behaviour
from tests.programs.homes import COMMAND, PLAIN_PATH, TOOLS, make_home, repository


@behaviour("path:clones")
@pytest.mark.parametrize("shape", TOOLS)
def test_a_carpool_that_a_desktop_program_starts_finds_the_programs_of_a_home(
    tmp_path: Path, shape: str
) -> None:
    home = make_home(tmp_path, shape, {})
    directories = path_from_here({**home.environ, "PATH": PLAIN_PATH}, login_shell=True)
    assert shutil.which(COMMAND, path=os.pathsep.join(directories))
    assert comparison(COMMAND, directories, home.environ).startswith(f"{COMMAND} is there now")


@behaviour("path:clones")
def test_a_program_that_only_the_login_shell_finds_is_not_told_as_missing(tmp_path: Path) -> None:
    home = make_home(tmp_path, "nvm", {})
    environ = {**home.environ, "PATH": PLAIN_PATH}
    assert shutil.which(COMMAND, path=PLAIN_PATH) is None
    assert is_found(COMMAND, environ, login_shell=True)
    assert not is_found(COMMAND, environ, login_shell=False), "the user has switched the login shell off"
    assert is_found("sh", environ, login_shell=True)
    assert not is_found("no-such-program", environ, login_shell=True)


@behaviour("path:clones")
@behaviour("path:told")
def test_a_program_of_a_project_is_told_with_the_ways_to_it(tmp_path: Path) -> None:
    home = make_home(tmp_path, "nvm", {})
    directories = path_from_here(home.environ, login_shell=False)
    assert directories == PLAIN_PATH.split(os.pathsep)
    place = home.path / ".nvm" / "versions" / "node" / "v20.20.2" / "bin"
    said = comparison(COMMAND, directories, home.environ)
    assert "only from the PATH of your login shell" in said
    assert f"`carpool trust --place {place}`" in said


@behaviour("path:clones")
def test_a_project_directory_that_only_the_terminal_names_does_not_count(tmp_path: Path) -> None:
    home = make_home(tmp_path, "nvm", {})
    repository(tmp_path / "hostile")
    path = f"{tmp_path}/hostile/bin:{home.environ['PATH']}"
    directories = path_from_here({**home.environ, "PATH": path}, login_shell=True)
    assert str(home.path) in directories[0]
    assert f"{tmp_path}/hostile/bin" not in directories
