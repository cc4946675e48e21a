"""What `./check --fast` runs: the tests near a change, and of the slow ones few."""

import subprocess
from pathlib import Path

import pytest

from tests.kit import fast_selection
from tests.kit.fast_selection import MOST, MOST_SLOW, SLOW, select


def git(directory: Path, *words: str) -> None:
    settings = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *settings, *words], cwd=directory, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One commit on `main`."""
    git(tmp_path, "init")
    commit(tmp_path, "first")
    return tmp_path


def commit(directory: Path, name: str) -> None:
    (directory / name).write_text("text")
    git(directory, "add", name)
    git(directory, "commit", "-m", name)


def test_a_branch_has_changed_what_is_not_in_main_committed_or_not(repository: Path) -> None:
    git(repository, "checkout", "-b", "other")
    commit(repository, "second")
    (repository / "first").write_text("another text")
    (repository / "third").write_text("unknown to git")
    git(repository, "checkout", "main")
    commit(repository, "later on main")
    git(repository, "checkout", "other")
    assert fast_selection.changed_files(repository) == ["first", "second", "third"]


def test_main_has_changed_what_is_not_pushed_or_not_committed_where_nothing_is_pushed(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (repository / "first").write_text("another text")
    assert fast_selection.changed_files(repository) == ["first"]
    pushed = tmp_path_factory.mktemp("pushed")
    git(pushed, "clone", str(repository), ".")
    commit(pushed, "second")
    assert fast_selection.changed_files(pushed) == ["second"]


def test_a_module_runs_its_test_and_no_slow_one_that_is_far_from_it() -> None:
    found = select(["broker/carpool_broker/core/broker.py"])
    assert "tests/broker/core/test_broker.py" in found.chosen
    assert [test for test in found.left_out if not test.startswith(SLOW)] == []
    assert len([test for test in found.chosen if test.startswith(SLOW)]) <= MOST_SLOW
    assert found.left_out


def test_of_a_module_that_nearly_everything_imports_the_nearest_tests_run() -> None:
    found = select(["protocol/carpool_protocol/bootstrap/paths.py"])
    assert len(found.chosen) == MOST
    assert found.chosen[0] == "tests/protocol/bootstrap/test_paths.py"
    assert [test for test in found.left_out if not test.startswith(SLOW)]


def test_the_equally_near_tests_of_a_module_are_of_every_folder() -> None:
    chosen = select(["protocol/carpool_protocol/ids.py"]).chosen
    assert {test.split("/")[1] for test in chosen} >= {"broker", "client", "protocol", "supervisor"}


def test_a_slow_test_that_is_changed_itself_runs() -> None:
    assert "tests/live/test_live_stop.py" in select(["tests/live/test_live_stop.py"]).chosen
