"""Directories from which carpool's own processes import."""

import os
import sys
from pathlib import Path

import pytest

from carpool import import_path
from tests.behaviours import behaviour
from tests.kit.private_daemon import ROOTS


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    return tmp_path / "repo"


@behaviour("trust:directory")
def test_what_is_relative_or_in_a_project_does_not_count_and_our_own_tree_does(
    tmp_path: Path, repository: Path
) -> None:
    plain = str(tmp_path / "plain")
    given = ["", ".", "lib", str(repository), f"{repository}/deep", plain, *ROOTS]
    assert import_path.trusted_entries(os.pathsep.join(given)) == [plain, *ROOTS]


@behaviour("trust:directory")
def test_a_child_gets_what_counts_and_all_other_variables(repository: Path) -> None:
    environ = {"A": "b", "PYTHONPATH": os.pathsep.join(["", str(repository), "/plain"])}
    assert import_path.for_children(environ) == {"A": "b", "PYTHONPATH": "/plain"}
    assert import_path.for_children({"A": "b", "PYTHONPATH": ""}) == {"A": "b"}
    assert import_path.for_children({"A": "b"}) == {"A": "b"}


@behaviour("trust:directory")
def test_the_path_of_this_process_is_cleaned_and_nothing_else_leaves_it(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["lib", "", str(repository), "/plain"]))
    given = [f"{tmp_path}/lib", str(tmp_path), str(repository), "/plain"]
    monkeypatch.setattr("sys.path", [*given, *ROOTS, "/installed"])
    import_path.clean()
    assert sys.path == ["/plain", *ROOTS, "/installed"]
