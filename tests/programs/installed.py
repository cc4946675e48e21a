"""The programs that `tests/programs/install` has put into `.venv/programs`, and the reason for one that is
not there.
"""

from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
DIRECTORY: Final = ROOT / ".venv" / "programs"
NODE: Final = DIRECTORY / "node" / "bin" / "node"
_SMALL: Final = ("mcporter", "inspector", "mcp-remote")
_CI: Final = ("codex", "claude-code")


def installer(name: str) -> str:
    """The command that installs this program."""
    if name in _SMALL:
        return "make programs-small"
    return "make programs-ci" if name in _CI else f"make programs PROGRAMS={name}"


def missing(name: str) -> str:
    """Why this program is not there; empty where it is."""
    if (DIRECTORY / name / "installed-pins").exists():
        return ""
    said = DIRECTORY / f"{name}.missing"
    return said.read_text().strip() if said.exists() else f"{name} is not installed: run {installer(name)}"


def require(name: str) -> None:
    """Skip the test where this program could not be installed."""
    if why := missing(name):
        pytest.skip(why)


def node_program(name: str, script: str) -> list[str]:
    """The command of a program that node runs; `script` is below its packages."""
    return [str(NODE), str(DIRECTORY / name / "node_modules" / script)]
