"""Messages of the program name only what an installed carpool has: verbs, and pages that the wheel holds.

Owns the scan of every text in the four packages that is no comment and no docstring. Docstrings of verbs
count as texts, since `--help` shows them.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from carpool.cli.main import VERBS
from carpool_protocol.config.pages import json_schema
from tests.behaviours import behaviour

ROOT: Final = Path(__file__).parents[1]
SOURCES: Final = (
    "broker/carpool_broker",
    "supervisor/carpool_supervisor",
    "protocol/carpool_protocol",
    "client/carpool",
)
PAGES_ARE_MADE_BY: Final = {"errors_page.py", "settings_page.py", "formats_page.py", "states_page.py"}
"""Their texts are pages, in which a link to another page is right."""
PAGE_LINK: Final = re.compile(r"\[[a-z-]+\.md\]\([a-z-]+\.md(#[a-z-]+)?\)")
"""Descriptions of settings have them; the schema shows commands in their place."""
URL: Final = re.compile(r"https?://\S+")
FILE_OF_A_CHECKOUT: Final = re.compile(r"\bdocs/\w|\b[\w-]+\.md\b|\bREADME\b")


def texts(tree: ast.Module) -> Iterator[str]:
    """Yield every text of a module but docstrings; those of verbs are texts."""
    docstrings = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and not is_verb(node):
            docstrings |= {id(each.value) for each in body if isinstance(each, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def is_verb(node: ast.AST) -> bool:
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    return any("command" in ast.unparse(each) or "group" in ast.unparse(each) for each in decorators)


@cache
def all_texts() -> list[tuple[str, str]]:
    return [
        (str(file.relative_to(ROOT)), URL.sub("", PAGE_LINK.sub("", text)))
        for source in SOURCES
        for file in sorted((ROOT / source).rglob("*.py"))
        if file.name not in PAGES_ARE_MADE_BY
        for text in texts(ast.parse(file.read_text()))
    ]


def installed_pages() -> set[str]:
    """The pages that the wheel holds; `tests/test_wheel.py` looks into a wheel for them."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    excluded = build["targets"]["wheel"]["exclude"]
    return {page.stem for page in (ROOT / "docs").glob("*.md") if f"docs/{page.name}" not in excluded}


@behaviour("start:messages")
def test_no_message_names_a_file_that_only_a_checkout_has() -> None:
    assert [(file, text) for file, text in all_texts() if FILE_OF_A_CHECKOUT.search(text)] == []


@behaviour("start:messages")
def test_each_page_that_a_message_names_is_installed() -> None:
    named = {
        (file, page) for file, text in all_texts() for page in re.findall(r"carpool docs ([a-z-]+)", text)
    }
    assert named
    assert [each for each in named if each[1] not in installed_pages()] == []


@behaviour("start:messages")
def test_each_verb_that_a_message_names_is_one() -> None:
    named = {(file, verb) for file, text in all_texts() for verb in re.findall(r"`carpool ([a-z]+)\b", text)}
    assert len(named) > 50
    assert [each for each in named if each[1] not in VERBS] == []


@behaviour("start:messages")
def test_no_message_says_how_to_install_but_by_the_way_that_was_used() -> None:
    """carpool is on no index: `pip install 'carpool[…]'` would bring a stranger's package."""
    told = [
        (file, text)
        for file, text in all_texts()
        if re.search(r"(pip|pipx|tool) install\b.*\bcarpool\b|pip install$|carpool\[", text)
    ]
    assert told == []


@behaviour("start:messages")
def test_the_schema_names_commands_where_the_settings_page_has_links() -> None:
    text = json_schema.text()
    assert "`carpool docs remote`" in text
    assert not FILE_OF_A_CHECKOUT.search(text)


@pytest.mark.parametrize(
    "source", ['x = f"see docs/{y}"\n', "@click.command()\ndef a():\n    '''See docs/settings.md.'''\n"]
)
def test_the_scan_sees_a_text(source: str) -> None:
    tree = ast.parse(source.replace("docs/{y}", "docs/settings{y}"))
    assert [each for each in texts(tree) if FILE_OF_A_CHECKOUT.search(each)]


def test_the_scan_passes_a_docstring() -> None:
    assert (
        list(texts(ast.parse("'''docs/settings.md'''\nclass A:\n    b = 1\n    '''docs/names.md'''\n"))) == []
    )
