"""The Makefile names a wrong Python in one plain line, before it makes or installs anything."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.behaviours import behaviour

ROOT = Path(__file__).parents[1]
OLD_PYTHON = f"""#!/bin/sh
[ "$1" = -c ] || {{ echo made >> made; exit 1; }}
exec {sys.executable} -c 'import sys; sys.version_info = (3, 9, 18, "final", 0); exec(sys.argv[1])' "$2"
"""
"""It says that it is 3.9, and notes whatever else it is asked for."""


def make(directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run make on a copy of the Makefile in this directory."""
    for each in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / each, directory)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(
        ["make", *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def old_python(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(OLD_PYTHON)
    path.chmod(0o755)
    return path


@behaviour("start:old-python")
@pytest.mark.parametrize("target", ["demo", "dist"])
def test_a_python_that_is_too_old_is_named_before_anything_else(tmp_path: Path, target: str) -> None:
    python = old_python(tmp_path / "python3")
    done = make(tmp_path, target, f"PYTHON={python}")
    first = (
        f"carpool needs Python 3.11 or newer: {python} is 3.9; name another one, as in: make {target} PYTHON="
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0].startswith(first)
    assert not (tmp_path / "made").exists()
    assert not (tmp_path / ".venv").exists()


@behaviour("start:old-python")
def test_a_python_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = make(tmp_path, "demo", "PYTHON=no-such-python")
    assert done.stderr.startswith("carpool needs Python 3.11 or newer: there is no no-such-python here; ")


@behaviour("start:old-python")
def test_an_environment_that_an_old_python_made_is_named(tmp_path: Path) -> None:
    old_python(tmp_path / ".venv" / "bin" / "python")
    done = make(tmp_path, "demo")
    first = done.stderr.splitlines()[0]
    assert (
        first == "carpool needs Python 3.11 or newer: .venv/bin/python is 3.9; remove .venv with: make clean"
    )
    assert not (tmp_path / "made").exists()
