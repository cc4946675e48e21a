"""The tests that `./check --fast` runs: `python -m tests.kit.fast_selection` prints their files.

Owns which files count as changed (for `make mutants` too), and which of the tests that they affect
(`affected_tests`) are quick enough. Tests of the whole source (`tests/test_*.py`) always run. Knows nothing
of: imports, how tests are run.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from tests.kit.affected_tests import distances_of, tests_of

ROOT = Path(__file__).parents[2]
MAIN = "main"
SLOW = (
    "tests/live/",
    "tests/chaos/",
    "tests/programs/",
    "tests/world/test_planted_bugs.py",
)
"""A slow test runs if it, its module, or a file that it imports or names itself is changed."""

BY_HAND = "tests/browser/"
"""Neither `./check` runs it: `make browser` does."""

MOST_SLOW = 6
"""So many files of slow tests at most: `./check --fast` takes three minutes at most."""
MOST = 100
"""So many files of tests at most, for the same reason. A module that nearly everything imports has more."""


class Selection(Struct, frozen=True):
    """The affected files of tests, the nearest to the change first."""

    chosen: list[str]
    left_out: list[str]
    """Slow ones, and those that are farther from the change than `MOST` others. `./check` runs them."""


def select(changed: Sequence[str]) -> Selection:
    """Return which of the affected tests run."""
    distances: dict[str, int] = {}
    for file in changed:
        for test, distance in distances_of(file).items():
            distances[test] = min(distance, distances.get(test, distance))
    affected = [test for test in tests_of(changed) if not test.startswith(BY_HAND)]
    slow = [test for test in affected if test.startswith(SLOW)]
    wanted = [test for test in slow if distances[test] <= 1][:MOST_SLOW]
    chosen = _nearest([test for test in affected if test not in slow or test in wanted], distances)
    return Selection(chosen, left_out=[test for test in affected if test not in chosen])


def _nearest(tests: list[str], distances: Mapping[str, int]) -> list[str]:
    """The nearest `MOST` of these, which are sorted by distance. Of those that are equally far each
    so-and-so-many-th: they stand in the order of their folders.
    """
    if len(tests) <= MOST:
        return tests
    last = distances[tests[MOST]]
    nearer = [test for test in tests if distances[test] < last]
    tied = [test for test in tests if distances[test] == last]
    room = MOST - len(nearer)
    return nearer + [tied[at * len(tied) // room] for at in range(room)]


def changed_files(root: Path = ROOT, revision: str = "") -> list[str]:
    """Return the files that differ from where this branch left a revision, or else `main`, committed or not,
    and those that git does not know yet. On `main` itself: from what has been pushed. Without either: from
    the last commit. Raises `ValueError` with the words of git.
    """
    since = _git(root, "merge-base", revision, "HEAD").strip() if revision else base(root)
    known = _git(root, "diff", "--name-only", since).splitlines()
    return sorted({*known, *_git(root, "ls-files", "--others", "--exclude-standard").splitlines()})


def base(root: Path = ROOT) -> str:
    """Return the commit that changes are counted from."""
    on_main = _git(root, "rev-parse", "--abbrev-ref", "HEAD").strip() == MAIN
    for other in [f"{MAIN}@{{upstream}}"] if on_main else [MAIN, f"origin/{MAIN}"]:
        done = _run(root, "merge-base", "HEAD", other)
        if done.returncode == 0:
            return done.stdout.strip()
    return "HEAD"


def main() -> None:
    """See the module."""
    try:
        changed = changed_files()
    except ValueError as error:
        raise SystemExit(f"{error}; ./check --fast --all needs no git") from None
    selection = select(changed)
    readers = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").glob("test_*.py"))
    said = f"{len(changed)} files have changed since {base()[:8]}: {len(selection.chosen)} files of tests run"
    if selection.left_out:
        said += f", {len(selection.left_out)} slow or farther ones do not (./check runs them)"
    print(said, file=sys.stderr)
    print("\n".join([*readers, *(test for test in selection.chosen if test not in readers)]))


def _git(root: Path, *words: str) -> str:
    done = _run(root, *words)
    if done.returncode:
        raise ValueError(f"git says no changes here: {done.stderr.strip()}")
    return done.stdout


def _run(root: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    main()
