"""The command that is written into other programs' files: a bare name only where the next shell finds it."""

import os
import sys
from pathlib import Path

import pytest

from carpool import own_command


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory `env` with this carpool in its `bin`, and `local` with a link to it."""
    program = tmp_path / "env" / "bin" / "carpool"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "local").mkdir()
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
