"""No file of the product imports itself over others, not even for types."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("broker", "supervisor", "protocol", "client")


def modules() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for source in SOURCES:
        for path in (ROOT / source).glob("carpool*/**/*.py"):
            parts = path.relative_to(ROOT / source).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(text: str, known: set[str]) -> Iterator[str]:
    """Modules of ours that this text imports: anywhere, also for types only."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if whole in known:
                    yield whole
                elif node.module in known:
                    yield node.module


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """One of its cycles; empty: there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as found:
        return list(found.args[1])
    return []


def test_no_file_imports_itself_over_others() -> None:
    paths = modules()
    known = set(paths)
    assert len(known) > 400
    graph = {name: {*imported(path.read_text(), known)} - {name} for name, path in paths.items()}
    assert cycle(graph) == []


@pytest.mark.parametrize(
    "text", ["import a.b", "from a import b", "from a.b import C", "if TYPE_CHECKING:\n    from a.b import C"]
)
def test_an_import_of_any_form_counts(text: str) -> None:
    assert {*imported(text, {"a", "a.b"})} >= {"a.b"}
    assert cycle({"x": {"a.b"}, "a.b": {"x"}})
