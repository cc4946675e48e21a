"""Carpools of one user in several runtime directories find each other by their configuration file."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from carpool import launcher_lock
from carpool.launcher.other_carpools import NAME_FILE, name_directory, other_carpools
from carpool.launcher.runtime_place import RuntimePlace
from tests.behaviours import behaviour


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "run").mkdir(mode=0o700)
    return {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")}


@pytest.fixture
def second(tmp_path: Path, environ: dict[str, str]) -> Iterator[RuntimePlace]:
    """A carpool in a runtime directory of its own, with the configuration `/c.json`."""
    place = RuntimePlace({**environ, "CARPOOL_RUNTIME_DIR": str(tmp_path / "second")})
    os.makedirs(place.logs, mode=0o700)
    name_directory(place)
    held = launcher_lock.take_lock(place.directory, "/c.json")
    assert held is not None
    yield place
    launcher_lock.release_lock(held)


@behaviour("config:second-carpool")
def test_a_carpool_elsewhere_counts_while_it_runs_with_the_same_file(
    environ: dict[str, str], second: RuntimePlace
) -> None:
    usual = RuntimePlace(environ).directory
    (found,) = other_carpools(environ, usual, "/c.json")
    assert found == (second.directory, os.getpid())
    assert other_carpools(environ, usual, "/other.json") == []
    assert other_carpools(environ, second.directory, "/c.json") == []


@pytest.mark.parametrize("text", ["", "relative", "/nowhere", "/\0", "x" * 10_000])
def test_a_file_that_names_no_directory_of_a_carpool_is_passed_over(
    environ: dict[str, str], second: RuntimePlace, text: str
) -> None:
    Path(os.path.dirname(second.logs), NAME_FILE).write_text(text)
    assert other_carpools(environ, RuntimePlace(environ).directory, "/c.json") == []
