"""The list of promises against the tests that hold them (`tests/behaviours.py`), without running any."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.behaviours import BEHAVIOURS

TESTS = Path(__file__).parent


def marks(node: ast.expr) -> list[str]:
    """The ids of a `behaviour(...)` call; none for any other expression."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "behaviour"):
        return []
    return [str(each.value) if isinstance(each, ast.Constant) else ast.unparse(each) for each in node.args]


def marked(tree: ast.AST) -> Iterator[tuple[str, list[str]]]:
    """What is marked, by name: decorated functions and classes, and `TestX = behaviour(...)(...)`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, [each for line in node.decorator_list for each in marks(line)]
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            for target in node.targets:
                yield ast.unparse(target), marks(node.value.func)


@cache
def holders() -> dict[str, list[str]]:
    """Which tests hold which promise."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        for name, ids in marked(ast.parse(path.read_text())):
            for each in ids:
                found[each].append(f"{path.relative_to(TESTS)}::{name}")
    return dict(found)


def test_every_promise_has_a_test() -> None:
    assert sorted(BEHAVIOURS.keys() - holders().keys()) == []


def test_every_mark_names_a_promise() -> None:
    held = holders()
    assert {each: held[each] for each in sorted(held.keys() - BEHAVIOURS.keys())} == {}


def test_each_promise_that_a_table_of_the_docs_names_is_one() -> None:
    cells = [
        line.rstrip(" |").rpartition("|")[2]
        for line in (TESTS.parent / "docs" / "security.md").read_text().splitlines()
        if line.startswith("|")
    ]
    named = {each for cell in cells for each in re.findall(r"`([^`]*:[^`]*)`", cell)}
    assert len(named) > 20
    assert sorted(named - BEHAVIOURS.keys()) == []


def test_only_what_pytest_collects_is_marked() -> None:
    names = {name.split("::")[1] for names in holders().values() for name in names}
    assert {name for name in names if not name.startswith(("test_", "Test"))} == set()


def test_a_mark_is_found_on_every_kind_of_test() -> None:
    source = """
@behaviour("a", "b")
@given(x=1)
def test_one(): ...
@behaviour("c")
async def test_two(): ...
TestThree = behaviour("d")(Machine.TestCase)
"""
    found = {name: ids for name, ids in marked(ast.parse(source)) if ids}
    assert found == {"test_one": ["a", "b"], "test_two": ["c"], "TestThree": ["d"]}
