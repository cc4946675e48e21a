"""The page of states is current, and what its tables name exists in the code.

Knows nothing of: whether a call really passes the collections that the tables name.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from carpool_supervisor.core.model.lifecycle import InstanceState, LifecycleEvent
from carpool_supervisor.states_page import BROKER_CALLS, SESSIONS, SUPERVISOR_CALLS, LifeRow, page

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "states.md"
ROWS = [*BROKER_CALLS, *SUPERVISOR_CALLS, *SESSIONS]
SOURCES = ("broker", "supervisor", "protocol", "client")

_QUALIFIED = re.compile(r"`([A-Z]\w+)\.(\w+)`")


def test_the_page_of_states_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "write it again: python -m carpool_supervisor.states_page > docs/states.md"
    )


def test_the_page_names_every_state_and_every_event() -> None:
    for word in (*InstanceState, *LifecycleEvent):
        assert f"| {word} |" in page()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.state.partition(":")[0])
def test_each_collection_of_the_tables_exists_in_the_code(row: LifeRow) -> None:
    assert has_attribute(row.held_in)


@pytest.mark.parametrize(
    "made_up",
    [
        "carpool_broker.core.nowhere.Session.waiting",
        "carpool_broker.core.model.session.NoClass.waiting",
        "carpool_broker.core.model.session.Session.nowhere",
        "carpool_broker.core.model.session.Session.server_use",
    ],
)
def test_a_collection_that_does_not_exist_is_found(made_up: str) -> None:
    assert not has_attribute(made_up)


def test_each_method_that_the_page_names_exists_in_the_code() -> None:
    named = _QUALIFIED.findall(page())
    assert len(named) > 20
    assert [f"{owner}.{name}" for owner, name in named if name not in members().get(owner, set())] == []


def has_attribute(dotted: str) -> bool:
    """True if `package.module.Class.attribute` is set on an instance of that class by its own code."""
    module, owner, attribute = dotted.rsplit(".", 2)
    paths = [ROOT / each / Path(*module.split(".")).with_suffix(".py") for each in SOURCES]
    for path in (each for each in paths if each.is_file()):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and node.name == owner:
                return attribute in _attributes(node)
    return False


def _attributes(owner: ast.ClassDef) -> set[str]:
    """Attributes that a class declares in its body or sets on `self`."""
    found = {
        each.target.id
        for each in owner.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    return found | {
        each.attr
        for each in ast.walk(owner)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }


@cache
def members() -> dict[str, set[str]]:
    """Attributes and methods of every class of the product, by its name."""
    found: dict[str, set[str]] = {}
    for path in (each for folder in SOURCES for each in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
                found.setdefault(node.name, set()).update(methods | _attributes(node))
    return found
