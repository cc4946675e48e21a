"""The versions of programs, read from `pins`, which `tests/programs/install` installs.

Knows nothing of: what is installed (`tests.programs.installed`), single programs.
"""

import json
import re
from pathlib import Path
from typing import Final

PINS: Final = Path(__file__).with_name("pins")


def pinned(name: str, package: str) -> str:
    """The version of a package in the pins of this program; it is named "npm PACKAGE" or "PyPI PACKAGE"."""
    registry, _, wanted = package.partition(" ")
    if registry == "npm":
        lock = json.loads((PINS / "npm" / name / "package-lock.json").read_text(encoding="utf-8"))
        version: str = lock["packages"][f"node_modules/{wanted}"]["version"]
        return version
    lines = (PINS / "pypi" / f"{name}.txt").read_text(encoding="utf-8")
    [found] = re.findall(rf"^{re.escape(wanted)}(?:\[[^\]]*\])?==(\S+)", lines, re.MULTILINE)
    return str(found)
