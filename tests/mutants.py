"""Changes the product in one small place at a time and tells which changes no near test sees: `make mutants`.

    FILES='client/carpool/errors.py' SECONDS=300 python -m tests.mutants
    python -m tests.mutants                       modules that `./check --fast` sees as changed
    BASE=v1.2 SEED=3 python -m tests.mutants      modules that differ from a revision of git

Owns the choice (files, mutations, tests), the copies of the checkout in which a mutated module stands, and
the report. No file of the checkout is changed. A copy and not the import hook of the planted bugs, because
half of the product runs in processes that tests start, and those import from files.

The tests of a module are those nearest to it (`tests.kit.affected_tests`) whose runs without a mutation are
green and end within `TESTS_S` together, at least one. A run that takes several times as long as without a
mutation hangs, and counts as killed. Knows nothing of: how a text is mutated (`tests.kit.mutations`), what
tests test.
"""

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain, zip_longest
from pathlib import Path
from queue import Queue

from msgspec import Struct

from tests.kit import fast_selection
from tests.kit.affected_tests import tests_of
from tests.kit.contained_run import TIMED_OUT
from tests.kit.mutations import Mutation, mutations_of
from tests.test_layout import SOURCES

ROOT = Path(__file__).parents[1]
TESTS_S = 20.0
"""The near tests of one file that are run for each mutation take at most so long together, and so does the
search for them.
"""
FIRST_MAY_TAKE = 4.0
"""So many times as long may the nearest."""
HANGS_AFTER = 4.0
HANGS_AFTER_S = 20.0
"""A run that takes so many times as long as without a mutation, and so many seconds more, hangs."""
_LEFT_OUT = (
    ".git",
    ".venv",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".hypothesis",
    "dist",
    "node_modules",
)


class PytestRun(Struct, frozen=True):
    """One run of tests: `code` as of pytest."""

    code: int
    took_s: float


class NearTests(Struct, frozen=True):
    """The tests that judge the mutations of one file."""

    tests: Sequence[str]
    took_s: float
    left_out: Mapping[str, str]
    """Other near tests, and why they do not run."""


class MutationVerdict(Struct, frozen=True):
    """What came of one mutation."""

    file: str
    mutation: Mutation
    tests: Sequence[str]
    is_killed: bool
    is_hung: bool = False


class MutantRun:
    """One choice of mutations, tried until the time is over. `folder` is a checkout with its tests."""

    def __init__(
        self, folder: Path, *, seconds: float, seed: int, jobs: int, tests_s: float = TESTS_S
    ) -> None:
        self._folder = folder
        self._end_at = time.monotonic() + seconds
        self._random = random.Random(seed)
        self._jobs = jobs
        self._tests_s = tests_s
        self._copies: Queue[Path] = Queue()
        self._unmutated: dict[str, PytestRun] = {}
        """How tests ran without a mutation."""
        self.suites: dict[str, NearTests] = {}
        self.count = 0
        """Mutations that there are, tried or not."""

    def verdicts(self, tests_by_file: Mapping[str, Sequence[str]]) -> Iterator[MutationVerdict]:
        """Try mutations of these files in random order, each file in turn; yield what came of each."""
        with _copies(self._folder, self._jobs) as copies, ThreadPoolExecutor(self._jobs) as threads:
            for copy in copies:
                self._copies.put(copy)
            self.suites = dict(
                zip(tests_by_file, threads.map(self._suite, tests_by_file.values()), strict=True)
            )
            columns = [self._shuffled(file) for file in tests_by_file if self.suites[file].tests]
            self.count = sum(map(len, columns))
            in_turn = [each for each in chain.from_iterable(zip_longest(*columns)) if each is not None]
            for verdict in threads.map(lambda each: self._try(*each), in_turn):
                if verdict is not None:
                    yield verdict

    def _shuffled(self, file: str) -> list[tuple[str, Mutation]]:
        found = [(file, each) for each in mutations_of((self._folder / file).read_text(encoding="utf-8"))]
        self._random.shuffle(found)
        return found

    def _suite(self, tests: Sequence[str]) -> NearTests:
        """The nearest of these tests that are green and quick enough together."""
        chosen: list[str] = []
        left_out: dict[str, str] = {}
        took_s = spent_s = 0.0
        copy = self._copies.get()
        try:
            for test in tests:
                limit_s = self._tests_s - spent_s if chosen else self._tests_s * FIRST_MAY_TAKE
                limit_s = min(limit_s, self._end_at - time.monotonic())
                if limit_s <= 0 or "too slow" in left_out.values():
                    left_out[test] = "no time"
                    continue
                run = self._unmutated.get(test) or run_tests(copy, [test], limit_s)
                spent_s += run.took_s
                if run.code == TIMED_OUT:
                    left_out[test] = "too slow"
                    continue
                self._unmutated[test] = run
                if run.code:
                    left_out[test] = "red or empty without a mutation"
                else:
                    chosen.append(test)
                    took_s += run.took_s
        finally:
            self._copies.put(copy)
        return NearTests(chosen, took_s, left_out)

    def _try(self, file: str, mutation: Mutation) -> MutationVerdict | None:
        """None: there is no time left for it."""
        suite = self.suites[file]
        limit_s = suite.took_s * HANGS_AFTER + HANGS_AFTER_S
        if time.monotonic() + suite.took_s >= self._end_at:
            return None
        copy = self._copies.get()
        path, text = copy / file, (self._folder / file).read_text(encoding="utf-8")
        try:
            _write(path, mutation.applied(text))
            run = run_tests(copy, suite.tests, limit_s)
        finally:
            _write(path, text)
            self._copies.put(copy)
        return MutationVerdict(file, mutation, suite.tests, run.code != 0, run.code == TIMED_OUT)


def run_tests(folder: Path, tests: Sequence[str], limit_s: float) -> PytestRun:
    """PytestRun these tests of this checkout up to the first red one, and end all that they leave."""
    pytest = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--hypothesis-seed=0", *tests]
    contained = [sys.executable, "-m", "tests.kit.contained_run", str(limit_s), str(folder)]
    began = time.monotonic()
    done = subprocess.run(
        [*contained, sys.executable, *pytest],
        cwd=ROOT,  # the checkout's own launcher code ends what a mutated one may leave
        env={**os.environ, "CARPOOL_CHECK": "1", "PYTEST_ADDOPTS": ""},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    return PytestRun(done.returncode, time.monotonic() - began)


@contextmanager
def _copies(folder: Path, count: int) -> Iterator[list[Path]]:
    """So many copies of a checkout; each has its environment too."""
    with tempfile.TemporaryDirectory(prefix="carpool-mutants-") as place:
        made = [Path(place) / str(at) for at in range(count)]
        for copy in made:
            shutil.copytree(folder, copy, symlinks=True, ignore=shutil.ignore_patterns(*_LEFT_OUT))
            if (folder / ".venv").is_dir():
                (copy / ".venv").symlink_to(folder / ".venv")
        yield made


def _write(path: Path, text: str) -> None:
    """Replace a module. Compiled modules are told apart by whole seconds and size: the old one has to go."""
    path.write_text(text, encoding="utf-8")
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()


def changed_modules(revision: str = "", root: Path = ROOT) -> list[str]:
    """Return the modules of the product that differ from where this branch left a revision; without one,
    those that have changed for `./check --fast` (`fast_selection.base`). Raises `SystemExit`.
    """
    try:
        changed = fast_selection.changed_files(root, revision)
    except ValueError as error:
        raise SystemExit(f"{error}: name one with BASE=, or files with FILES=") from None
    sources = tuple(f"{source}/" for source in SOURCES.values())
    modules = [each for each in changed if each.startswith(sources) and each.endswith(".py")]
    return [each for each in modules if (root / each).is_file()]


def report(verdict: MutationVerdict) -> str:
    """The lines on a mutation that survived."""
    mutation = verdict.mutation
    old, new = (" ".join(each.split()) for each in (mutation.old, mutation.new))
    return (
        f"{verdict.file}:{mutation.line}: {mutation.kind}\n    - {old}\n    + {new}\n"
        f"    green all the same: {' '.join(verdict.tests)}"
    )


def main() -> None:
    """See the module."""
    settings = os.environ
    files = settings.get("FILES", "").split() or changed_modules(settings.get("BASE", ""))
    if not files:
        raise SystemExit(
            "no module of the product has changed: name some with FILES=, or a revision with BASE="
        )
    seed = int(settings.get("SEED", "0"))
    run = MutantRun(
        ROOT, seconds=float(settings.get("SECONDS", "600")), seed=seed, jobs=int(settings.get("JOBS", "2"))
    )
    tried: dict[str, list[MutationVerdict]] = {file: [] for file in files}
    for verdict in run.verdicts({file: tests_of([file], through=1) for file in files}):
        tried[verdict.file].append(verdict)
        if not verdict.is_killed:
            print(report(verdict), flush=True)
    for file, verdicts in tried.items():
        survived = sum(not each.is_killed for each in verdicts)
        hung = sum(each.is_hung for each in verdicts)
        suite = run.suites[file]
        print(
            f"{file}: {len(verdicts)} tried, {survived} survived, {hung} hung; {len(suite.tests)} test files"
        )
        for why in sorted(set(suite.left_out.values())):
            named = [test for test, reason in suite.left_out.items() if reason == why]
            more = f" and {len(named) - 5} more" if len(named) > 5 else ""
            print(f"    {why}: {' '.join(named[:5])}{more}")
    total = sum(map(len, tried.values()))
    print(f"{total} of {run.count} mutations tried with SEED={seed}")


if __name__ == "__main__":
    main()
