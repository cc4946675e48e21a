"""The page of the architecture names every folder, and only files, classes and functions that exist.

Knows nothing of: whether a step of a walk says what the code does.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "architecture.md"
PACKAGES = (
    "broker/carpool_broker",
    "supervisor/carpool_supervisor",
    "protocol/carpool_protocol",
    "client/carpool",
)
WALKS = ("A call", "An answer", "A server's question to the agent", "A broker's death")
TABLE = "To change X, start at Y"

_LINK = re.compile(r"\]\(\.\./([\w/]+\.py)\)((?:,? `[\w.]+`)*)")
_NAME = re.compile(r"`([\w.]+)`")


def section(title: str) -> str:
    return PAGE.read_text(encoding="utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]


def folders_named(tree: str) -> Iterator[str]:
    """The folders of the tree: a package at the start of a line, and its folders below it, indented."""
    package = ""
    for line in tree.splitlines():
        folder = line.split()[0].rstrip("/") if line.strip() else ""
        if "/" in folder and not line.startswith(" "):
            package = folder
            yield package
        elif folder and package and line.startswith(" "):
            yield f"{package}/{folder}"


def folders() -> list[str]:
    return [
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in [ROOT / package, *(ROOT / package).rglob("*")]
        if path.is_dir() and any(path.glob("*.py"))
    ]


@cache
def names_in(path: str) -> frozenset[str]:
    """Functions, classes, `Class.method` and assigned names of a module."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            methods = [
                each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
            found |= {node.name, *(f"{node.name}.{each}" for each in methods)}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {each.id for each in targets if isinstance(each, ast.Name)}
    return frozenset(found)


def missing(text: str) -> list[str]:
    """Files and names after a link to a file that do not exist."""
    wrong: list[str] = []
    for path, names in _LINK.findall(text):
        if not (ROOT / path).is_file():
            wrong.append(path)
        else:
            wrong += [f"{path} {name}" for name in _NAME.findall(names) if name not in names_in(path)]
    return wrong


def test_each_folder_of_the_packages_is_named_and_each_named_folder_exists() -> None:
    named = list(folders_named(section("Folders").split("```")[1]))
    assert sorted(named) == sorted(folders())


def test_each_file_and_each_name_on_the_page_exists() -> None:
    assert missing(PAGE.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("walk", WALKS)
def test_each_step_of_a_walk_leads_to_a_function(walk: str) -> None:
    steps = re.findall(r"^\d+\. .*$", section(walk), re.MULTILINE)
    assert len(steps) >= 10
    assert [
        each for each in steps if not all(names for _, names in _LINK.findall(each)) or "](" not in each
    ] == []


def test_the_table_of_places_to_start_at_has_a_file_in_each_row() -> None:
    rows = [each for each in section(TABLE).splitlines() if each.startswith("| ")][1:]
    assert len(rows) >= 30
    assert [each for each in rows if not _LINK.search(each)] == []


@pytest.mark.parametrize(
    "text",
    [
        "[x](../broker/carpool_broker/core/nowhere.py)",
        "[x](../broker/carpool_broker/core/broker.py) `NoClass`",
        "[x](../broker/carpool_broker/core/broker.py) `BrokerCore`, `BrokerCore.nowhere`",
    ],
)
def test_a_file_or_a_name_that_does_not_exist_is_found(text: str) -> None:
    assert missing(text)


def test_a_folder_that_is_not_named_is_found() -> None:
    assert list(folders_named("broker/carpool_broker/  All\n  core/  Decides\n")) == [
        "broker/carpool_broker",
        "broker/carpool_broker/core",
    ]
