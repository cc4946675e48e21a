"""The reason for a program that is not there names a command that installs it."""

import re

import pytest

from tests.programs.installed import ROOT, installer

PINS = ROOT / "tests" / "programs" / "pins"
PROGRAMS = sorted(
    [each.name for each in (PINS / "npm").iterdir()] + [each.stem for each in (PINS / "pypi").iterdir()]
)
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_is_not_there_is_installed_by_a_target_of_the_makefile(name: str) -> None:
    make, target, *words = installer(name).split()
    recipe = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert make == "make"
    assert recipe is not None
    installed = re.search(r"\$\(INSTALL_PROGRAMS\) (.*) \|\|", recipe[1])
    assert installed is not None
    assert words == [f"PROGRAMS={name}"] if installed[1] == "$(PROGRAMS)" else name in installed[1].split()
