"""The tests that a changed file affects: the nearest are found first, and none of the product has none."""

import pytest

from tests.kit import affected_tests
from tests.kit.affected_tests import THROUGH_PRODUCT
from tests.test_import_cycles import modules
from tests.test_layout import ROOT
from tests.world import planted_bugs

SPAWNER = "supervisor/carpool_supervisor/spawn/spawner_process.py"


def test_a_module_is_tested_first_by_the_file_at_its_place_and_then_by_those_that_import_it() -> None:
    changed = "supervisor/carpool_supervisor/spawn/spawner_client.py"
    found = affected_tests.tests_of([changed])
    assert found[0] == "tests/supervisor/spawn/test_spawner_client.py"
    assert "tests/supervisor/test_process.py" in found  # through `tests/kit` alone
    assert "tests/contract/test_link.py" not in found


def test_a_module_without_a_test_of_its_name_is_tested_by_the_file_of_its_row() -> None:
    found = affected_tests.tests_of(["supervisor/carpool_supervisor/marks.py"])
    assert found[0] == "tests/supervisor/spawn/test_spawner_client.py"


def test_each_module_of_the_product_has_a_test() -> None:
    files = [path.relative_to(ROOT).as_posix() for path in modules().values()]
    assert [file for file in files if not affected_tests.tests_of([file])] == []


def test_a_test_a_program_of_the_tests_and_a_file_of_data_affect_those_that_use_them() -> None:
    assert "tests/test_layout.py" in affected_tests.tests_of(["tests/test_layout.py"])
    assert "tests/supervisor/spawn/test_spawner_client.py" in affected_tests.tests_of(
        ["tests/kit/servers/breeder.py"]
    )
    bug = f"tests/world/planted/{planted_bugs.names()[0]}.toml"
    assert "tests/world/test_planted_bugs.py" in affected_tests.tests_of([bug])
    assert "tests/test_states_page.py" in affected_tests.tests_of(["docs/states.md"])


def test_a_conftest_affects_every_test_below_it() -> None:
    below = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests/live").glob("test_*.py")}
    assert below <= set(affected_tests.tests_of(["tests/live/conftest.py"]))


def test_a_file_that_is_gone_affects_nothing() -> None:
    assert affected_tests.tests_of(["broker/carpool_broker/no_such_module.py"]) == []


def test_a_test_is_the_farther_the_more_modules_of_the_product_stand_between() -> None:
    graph = {
        "broker/carpool_broker/a.py": {"broker/carpool_broker/b.py", "tests/kit/rig.py"},
        "broker/carpool_broker/b.py": {"tests/test_far.py", "broker/carpool_broker/a.py"},
        "tests/kit/rig.py": {"tests/test_near.py"},
    }
    found = affected_tests.nearest_distances("broker/carpool_broker/a.py", graph)
    assert found == {"tests/test_near.py": 2, "tests/test_far.py": 1 + THROUGH_PRODUCT}


def test_more_modules_between_give_more_tests_and_the_near_ones_stay_first() -> None:
    near, more = affected_tests.tests_of([SPAWNER]), affected_tests.tests_of([SPAWNER], through=1)
    assert set(near) < set(more)
    assert more[: len(near)] == near
    assert set(more) <= set(affected_tests.distances_of(SPAWNER))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("import a.b", {"a.b"}),
        ("    import a, b.c as d", {"a", "b.c"}),
        ("from a import b  # words\n", {"a", "a.b"}),
        ("from a import (\n    b,  # c\n    d as e,\n)", {"a", "a.b", "a.d"}),
        ('code = "import sys; from a.b import c"', {"a.b", "a.b.c"}),
        ('verbs = {"top": "a.b.top:top"}', {"a.b.top"}),
    ],
)
def test_an_import_of_any_form_is_found(text: str, wanted: set[str]) -> None:
    assert wanted <= set(affected_tests.imported_names(text))


def test_a_file_has_the_name_by_which_others_import_it() -> None:
    assert affected_tests.module_name(SPAWNER) == "carpool_supervisor.spawn.spawner_process"
    assert affected_tests.module_name("client/carpool/api/__init__.py") == "carpool.api"
    assert affected_tests.module_name("tests/kit/waits.py") == "tests.kit.waits"
