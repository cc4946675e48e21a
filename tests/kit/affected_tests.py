"""The tests that a changed file affects, found in the imports of the source without running it.

Owns the graph of imports of product, tests and benches, and the distance of a test file from a changed file:

- 0: it is the changed file, stands at the module's place, or covers it by a row of `tests/test_layout.py`;
- below `THROUGH_PRODUCT`: it imports the changed file, or a file of the tests or the benches that does;
- once more `THROUGH_PRODUCT`: as many modules of the product stand between.

A file that nothing imports (a program of `tests/kit/servers`, a page, a planted bug) affects the tests whose
text names it. Knows nothing of: git, pytest, how long a test runs.
"""

import heapq
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from tests.test_layout import ELSEWHERE, SOURCES

ROOT = Path(__file__).parents[2]
THROUGH_PRODUCT = 100
"""What one module of the product between the test and the changed file adds to the distance."""
OWN_FOLDERS = ("tests", "bench")

_FROM = re.compile(r"\bfrom ([\w.]+) import (?:\(([^)]*)\)|([^\n(]+))")
_IMPORT = re.compile(r"(?m)^\s*import ([\w., ]+)")
_COMMENT = re.compile(r"#.*")
_NAME = re.compile(r"\w+")
_DOTTED = re.compile(r"[\w.]+")
_QUOTED = re.compile(r"[\"'`]([a-z_]+(?:\.\w+)+)")


def tests_of(changed_files: Iterable[str], *, through: int = 0) -> list[str]:  # noqa: PT028  # no test
    """Return the test files that these changed files affect, the nearest first. All paths begin at the root.

    At most `through` modules of the product stand between a test and a changed file, or as many as the
    nearest test needs. Files that are no longer there are passed over.
    """
    found: dict[str, int] = {}
    for changed in changed_files:
        distances = distances_of(changed)
        nearest = min(distances.values(), default=0) // THROUGH_PRODUCT
        for test, distance in distances.items():
            if distance < (max(through, nearest) + 1) * THROUGH_PRODUCT:
                found[test] = min(distance, found.get(test, distance))
    return sorted(found, key=lambda test: (found[test], test))


def distances_of(changed_file: str) -> dict[str, int]:
    """Return every test file that this file reaches, with its distance."""
    return nearest_distances(changed_file, importers()) if (ROOT / changed_file).is_file() else {}


def nearest_distances(changed_file: str, graph: Mapping[str, set[str]]) -> dict[str, int]:
    """As `distances_of`, over this graph: a file and those that import it."""
    found: dict[str, int] = {}
    waiting = [(0, changed_file), *((0, test) for test in _own_tests(changed_file))]
    if changed_file not in graph:
        waiting += [(1 if is_test(other) else THROUGH_PRODUCT, other) for other in _naming(changed_file)]
    heapq.heapify(waiting)
    while waiting:
        distance, file = heapq.heappop(waiting)
        if file in found:
            continue
        found[file] = distance
        step = 1 if distance == 0 or file.startswith(OWN_FOLDERS) else THROUGH_PRODUCT
        for other in (*graph.get(file, ()), *_below(file)):
            heapq.heappush(waiting, (distance + step, other))
    return {file: distance for file, distance in found.items() if is_test(file)}


def is_test(file: str) -> bool:
    """Whether pytest collects this file."""
    return file.startswith("tests/") and Path(file).name.startswith("test_") and file.endswith(".py")


def module_name(file: str) -> str:
    """The name by which others import this file of Python."""
    first, _, rest = file.partition("/")
    dotted = (rest if first in SOURCES else file).removesuffix(".py").replace("/", ".")
    return dotted.removesuffix(".__init__")


@cache
def importers() -> Mapping[str, set[str]]:
    """Each file of Python that some other imports, and those that import it."""
    files = {module_name(each): each for each in _texts()}
    graph: dict[str, set[str]] = {}
    for file, text in _texts().items():
        for name in imported_names(text):
            target = files.get(name)
            if target is not None and target != file:
                graph.setdefault(target, set()).add(file)
    return graph


def imported_names(text: str) -> Iterator[str]:
    """The names that this text may import, anywhere in it: `from a import b` may mean `a` or `a.b`.

    Read without a parser, which needs seconds for all files. A program in a string counts, and so does the
    name of a module in quotes (`"carpool.cli.top:top"`), in those of a docstring too: a test names there what
    it runs in another process. What is no module is no file either.
    """
    for module, many, few in _FROM.findall(text):
        yield module
        yield from (f"{module}.{name}" for name in _NAME.findall(_COMMENT.sub("", many or few)))
    for names in _IMPORT.findall(text):
        yield from _DOTTED.findall(names)
    for name in _QUOTED.findall(text):
        yield name
        yield name.rpartition(".")[0]


@cache
def _texts() -> Mapping[str, str]:
    """Every file of Python of ours, from the root, with its text."""
    folders = (*SOURCES.values(), *OWN_FOLDERS)
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


@cache
def _rows() -> Mapping[str, str]:
    """Modules that a test file of another name covers (`tests/test_layout.py`)."""
    return {module: f"tests/{test}" for rows in ELSEWHERE.values() for module, test in rows.items()}


def _own_tests(file: str) -> list[str]:
    """The test file at the module's place, and the one that covers it."""
    for package, source in SOURCES.items():
        if file.startswith(f"{source}/") and file.endswith(".py"):
            module = f"{package}/{file.removeprefix(f'{source}/')}"
            folder, _, name = module.rpartition("/")
            places = [f"tests/{folder}/test_{name}", *filter(None, [_rows().get(module)])]
            return [each for each in places if each in _texts()]
    return []


def _below(file: str) -> list[str]:
    """The tests that a `conftest.py` is for."""
    folder, _, name = file.rpartition("/")
    if name != "conftest.py":
        return []
    return [each for each in _texts() if each.startswith(f"{folder}/") and is_test(each)]


def _naming(file: str) -> list[str]:
    """The files of the tests whose text names this file: its whole name, or in quotes its name alone. Else
    those that name its folder of the tests.
    """
    path = Path(file)
    if not file.startswith("tests/"):
        return _with_words(file, path.name)
    named = _with_words(file, path.name, f'"{path.stem}"', f"'{path.stem}'")
    return named or _with_words(file, path.parent.as_posix())


def _with_words(file: str, *words: str) -> list[str]:
    """The other files of the tests whose text has one of these words."""
    others = ((each, text) for each, text in _texts().items() if each.startswith("tests/") and each != file)
    return [each for each, text in others if any(word in text for word in words)]
