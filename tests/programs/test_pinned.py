"""Every program has its version from its pins."""

import json
import re
from pathlib import Path

import pytest

from tests.programs.agents.catalog import PROGRAMS
from tests.programs.bridges import BRIDGE_PROGRAMS
from tests.programs.pinned import PINS, pinned


@pytest.mark.parametrize("program", [*PROGRAMS.values(), *BRIDGE_PROGRAMS], ids=lambda it: it.name)
def test_a_program_has_the_version_that_is_pinned(program: object) -> None:
    assert re.fullmatch(r"\d+(\.\d+)+", program.version)  # type: ignore[attr-defined]


@pytest.mark.parametrize("file", sorted(PINS.glob("npm/*/package.json")), ids=lambda it: it.parent.name)
def test_a_lock_has_the_version_that_its_package_file_names(file: Path) -> None:
    [(package, version)] = json.loads(file.read_text(encoding="utf-8"))["dependencies"].items()
    assert pinned(file.parent.name, f"npm {package}") == version


def test_a_package_that_is_not_pinned_has_no_version() -> None:
    with pytest.raises(KeyError):
        pinned("codex", "npm none")
    with pytest.raises(ValueError, match="not enough values"):
        pinned("strands", "PyPI strands")
