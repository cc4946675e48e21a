"""The command that is written into other programs' files: a bare name only where the next shell finds it."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from carpool.launcher import own_command
from carpool_protocol.runtime import login_path as module
from carpool_protocol.runtime.login_path import login_path


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory `env` with this carpool in its `bin`, and `local` with a link to it."""
    program = tmp_path / "env" / "bin" / "carpool"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "local").mkdir()
    monkeypatch.setattr(own_command, "login_path", lambda _: None)
    (tmp_path / "local" / "carpool").symlink_to(program)
    monkeypatch.setattr(sys, "executable", str(program.with_name("python")))
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("active", "path", "bare"),
    [
        (("", ""), "env/bin", True),
        (("", "VIRTUAL_ENV"), "env/bin", False),
        (("", "CONDA_PREFIX"), "env/bin", False),
        (("pyvenv.cfg", ""), "env/bin", False),
        (("conda-meta", ""), "env/bin", False),
        (("pyvenv.cfg", "VIRTUAL_ENV"), "local", True),
        (("pyvenv.cfg", "VIRTUAL_ENV"), "env/bin:local", True),
        (("", ""), "relative", False),
        (("", ""), "", False),
    ],
)
def test_the_bare_name_counts_only_where_the_next_shell_finds_this_carpool(
    installed: Path, monkeypatch: pytest.MonkeyPatch, active: tuple[str, str], path: str, bare: bool
) -> None:
    """The bare name was written as soon as a virtual environment was active: the next terminal had none."""
    mark, variable = active
    if mark:
        (installed / "env" / mark).touch()
    if variable:
        monkeypatch.setenv(variable, str(installed / "env"))
    monkeypatch.chdir(installed / "env" / "bin")
    entries = ["." if each == "relative" else str(installed / each) for each in path.split(":") if each]
    monkeypatch.setenv("PATH", os.pathsep.join(entries))
    assert own_command.is_in_path() is bare


@pytest.mark.parametrize(("login", "bare"), [("local", True), ("", False), ("elsewhere:local", True)])
def test_a_directory_that_the_login_shell_has_not_does_not_count(
    installed: Path, monkeypatch: pytest.MonkeyPatch, login: str, bare: bool
) -> None:
    monkeypatch.setenv("PATH", str(installed / "local"))
    said = ":".join(str(installed / each) for each in login.split(":")) if login else "/nowhere"
    monkeypatch.setattr(own_command, "login_path", lambda _: said)
    assert own_command.is_in_path() is bare


def test_another_carpool_in_the_login_shell_is_not_this_one(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (installed / "other").mkdir()
    (installed / "other" / "carpool").write_text("#!/bin/sh\n")
    (installed / "other" / "carpool").chmod(0o755)
    monkeypatch.setenv("PATH", str(installed / "local"))
    monkeypatch.setattr(own_command, "login_path", lambda _: f"{installed}/other:{installed}/local")
    assert not own_command.is_in_path()


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """The environment of a user with files of a login shell."""
    return {"HOME": str(tmp_path), "SHELL": "/bin/sh", "PATH": "/activated/bin", "SECRET": "x"}


def test_the_path_of_the_login_shell_is_found_among_what_its_files_print(home: dict[str, str]) -> None:
    (Path(home["HOME"]) / ".profile").write_text(
        'echo hello; PATH="$HOME/bin:$PATH:${SECRET:-}"; pwd > "$HOME/at"; cat > "$HOME/read"; sleep 600 &\n'
    )
    said = login_path(home)
    assert said is not None
    assert said.startswith(f"{home['HOME']}/bin:")
    assert "activated" not in said
    assert not said.endswith("x"), "it is given nothing but who the user is"
    assert (Path(home["HOME"]) / "at").read_text().strip() == os.path.realpath(home["HOME"])
    assert (Path(home["HOME"]) / "read").read_text() == ""


def test_a_login_shell_that_does_not_answer_is_ended(
    home: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LIMIT_S", 0.5)
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def popen(*arguments: Any, **more: Any) -> subprocess.Popen[bytes]:
        started.append(start(*arguments, **more))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    (Path(home["HOME"]) / ".profile").write_text("exec sleep 600\n")
    assert login_path(home) is None
    assert [each.returncode for each in started] == [-signal.SIGKILL]


@pytest.mark.parametrize("shell", ["/bin/tcsh", "sh", "/nowhere/bash", "/usr/bin/env"])
def test_a_shell_that_cannot_be_asked_is_none(home: dict[str, str], shell: str) -> None:
    assert login_path({**home, "SHELL": shell}) is None
