"""docs/vocabulary.md: each term stands there once, in order, with a meaning."""

import ast
import re
from itertools import pairwise
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "vocabulary.md"


def rows(text: str) -> list[tuple[str, list[str]]]:
    """All rows of tables on the page, without their heads, each with the heading above it."""
    found: list[tuple[str, list[str]]] = []
    heading = ""
    for before, line in pairwise(["", *text.splitlines()]):
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("| ") and before.startswith("|"):
            found.append((heading, [cell.strip() for cell in line.strip("|").split(" | ")]))
    return found


def key(term: str) -> str:
    return term.replace("`", "").casefold()


ROWS = rows(PAGE.read_text(encoding="utf-8"))
TERMS = [cells for heading, cells in ROWS if heading == "Terms"]


def test_no_term_stands_there_twice() -> None:
    terms = [key(cells[0]) for cells in TERMS]
    assert {term for term in terms if terms.count(term) > 1} == set()
    assert len(terms) > 50


def test_terms_are_sorted() -> None:
    terms = [key(cells[0]) for cells in TERMS]
    assert terms == sorted(terms)


def test_every_term_has_one_plain_sentence() -> None:
    assert [cells for cells in TERMS if len(cells) != 3 or not cells[1].endswith(".")] == []
    assert [cells for cells in TERMS if re.search(r"\. [A-Z]", cells[1])] == []


def class_names() -> list[str]:
    """The name of each class at the top level of a module, once per class."""
    root = PAGE.parent.parent
    return [
        node.name
        for source in ("broker/carpool_broker", "supervisor", "protocol", "client", "check", "bench", "tests")
        for path in sorted((root / source).rglob("*.py"))
        for node in ast.parse(path.read_bytes()).body
        if isinstance(node, ast.ClassDef)
    ]


def test_each_class_name_stands_for_one_thing() -> None:
    names = class_names()
    assert len(names) > 500
    twice = {name for name in names if names.count(name) > 1 and not name.startswith("_")}
    allowed = {
        cells[0].strip("`") for heading, cells in ROWS if heading == "Class names that stand for two things"
    }
    assert twice == allowed


def test_rows_are_read_with_the_heading_above_them() -> None:
    text = "## One\n\n| a | b |\n|---|---|\n| x | y |\n| z | `w` |\n\n## Two\n\n| a |\n|---|\n| q |\n"
    assert rows(text) == [("One", ["x", "y"]), ("One", ["z", "`w`"]), ("Two", ["q"])]
