"""A commit that allows a higher price changes price lists only, and its body says which promise costs it."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.price.price_list import FOLDER, FunctionPrice, PriceList, list_path, parse_list, write_list
from tests.test_fast_selection import git

ROOT: Final = Path(__file__).parents[2]
LISTS: Final = FOLDER.relative_to(ROOT).as_posix()
ROUNDING: Final = 0.01
"""Of what a list allows."""


def said_by_git(root: Path, *words: str) -> str:
    """What git prints; empty where it fails."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def list_at(root: Path, commit: str, path: str) -> PriceList | None:
    """The list as a commit left it; None if there was none."""
    text = said_by_git(root, "show", f"{commit}:{path}")
    return parse_list(text) if text else None


def prices_raised(root: Path, commit: str, path: str) -> Iterator[str]:
    """Yield what this commit allows more of than the one before it did."""
    before, after = list_at(root, f"{commit}^", path), list_at(root, commit, path)
    if before is None or after is None:
        return
    for kind, processes in after.allowed.items():
        for process, most in processes.items():
            if most > before.allowed.get(kind, {}).get(process, most) + ROUNDING:
                yield f"{path}: {kind} {process}"


def faults_of(root: Path) -> list[str]:
    """What is wrong with the commits that have raised a price."""
    found: list[str] = []
    for commit in said_by_git(root, "log", "--no-merges", "--format=%h", "--", LISTS).split():
        files = said_by_git(root, "show", "--name-only", "--format=", commit).splitlines()
        lists = [path for path in files if path.startswith(f"{LISTS}/")]
        raised = [what for path in lists for what in prices_raised(root, commit, path)]
        if raised and lists != files:
            found.append(f"{commit} raises a price and changes other files: {raised[0]}")
        if raised and not said_by_git(root, "show", "--no-patch", "--format=%b", commit).strip():
            found.append(f"{commit} raises a price and names no promise in its body: {raised[0]}")
    return found


def test_a_price_is_raised_in_a_commit_of_its_own_that_says_for_which_promise() -> None:
    if not said_by_git(ROOT, "log", "-1", "--format=%h", "--", LISTS):
        pytest.skip("there is no history of git here")
    assert faults_of(ROOT) == []


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose list allows 100 bytecodes."""
    (tmp_path / LISTS).mkdir(parents=True)
    (tmp_path / "module").write_text("first")
    git(tmp_path, "init")
    commit_price(tmp_path, 100, "Record the first list")
    return tmp_path


def commit_price(root: Path, bytecodes: float, *paragraphs: str) -> None:
    """Commit a list that allows so much, and whatever else has changed."""
    prices = PriceList.of({}, {"s1": {"broker": {"f": FunctionPrice(1, bytecodes)}}})
    write_list(root / LISTS / list_path("3.11").name, prices)
    git(root, "add", ".")
    git(root, "commit", *(word for each in paragraphs for word in ("-m", each)))


def test_a_price_that_falls_may_change_in_any_commit(repository: Path) -> None:
    (repository / "module").write_text("second")
    commit_price(repository, 90, "Lower it")
    assert faults_of(repository) == []


@pytest.mark.parametrize(
    ("paragraphs", "text_of_a_module", "fault"),
    [
        (["Raise it", "Calls are counted."], "first", None),
        (["Raise it"], "first", "names no promise in its body"),
        (["Raise it", "Calls are counted."], "second", "changes other files"),
    ],
    ids=["alone and with its promise", "without its promise", "with other files"],
)
def test_a_price_that_rises_is_raised_alone_and_with_its_promise(
    repository: Path, paragraphs: list[str], text_of_a_module: str, fault: str | None
) -> None:
    (repository / "module").write_text(text_of_a_module)
    commit_price(repository, 101, *paragraphs)
    found = faults_of(repository)
    assert [fault in each for each in found if fault] == ([True] if fault else [])
    assert len(found) == (fault is not None)
