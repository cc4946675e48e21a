"""Real agent programs behind carpool: each feature is judged on runs directly and through carpool.

`CARPOOL_PROGRAMS` says which: `ci`, or names of the catalog, or `all`.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.behaviours import behaviour
from tests.programs.agents.catalog import CI, PROGRAMS
from tests.programs.features import Feature
from tests.programs.installed import require
from tests.programs.known_differences import reason
from tests.programs.loopback import Loopback
from tests.programs.program import Program
from tests.programs.record import features_of
from tests.programs.runs.cases import DifferenceError, marks_of, run_once
from tests.programs.scenarios import SCENARIOS, ArmPair

Runs = Callable[[str, str], ArmPair]


_WANTED = os.environ.get("CARPOOL_PROGRAMS", "ci")
_NAMES = {"ci": CI, "all": tuple(PROGRAMS)}.get(_WANTED) or tuple(_WANTED.split())
_ONE_HOME = {f"home: {shape}" for shape in ("fresh", "pyenv", "rbenv", "asdf", "mise", "volta", "Homebrew")}
"""The continuous runs try these homes with the first program alone: what carpool makes of them is the
same.
"""


_LONG = {"long call"}
"""Scenarios of minutes, which the continuous runs leave out."""


def _wanted(program: Program) -> Iterator[Feature]:
    for each in features_of(program):
        if _WANTED == "ci" and each.scenario in _LONG:
            continue
        if _WANTED != "ci" or program.name == CI[0] or each.name not in _ONE_HOME:
            yield each


def _rows(kinds: Callable[[Feature], bool]) -> list[Any]:
    """One case for each program and feature."""
    found = []
    for name in _NAMES:
        for feature in filter(kinds, _wanted(PROGRAMS[name])):
            marks = marks_of(reason(name, feature.name))
            found.append(pytest.param(PROGRAMS[name], feature, marks=marks, id=f"{name}: {feature.name}"))
    return found


@pytest.fixture(scope="session")
def runs(loopback: Loopback) -> Runs:
    """The runs of a scenario, made once; a run that failed fails each of its features."""

    @run_once
    def made(program: str, scenario: str) -> ArmPair:
        return SCENARIOS[scenario](PROGRAMS[program], loopback)

    return made


def _judge(program: Program, feature: Feature, runs: Runs) -> None:
    require(program.name)
    verdict = feature.judge(program, runs(program.name, feature.scenario))
    if verdict.fault:
        raise DifferenceError(
            f"{verdict.fault}\ndirectly: {verdict.direct}\nthrough carpool: {verdict.through}"
        )


def _of(*scenarios: str) -> Callable[[Feature], bool]:
    return lambda feature: feature.scenario in scenarios


@behaviour("programs:agents")
@pytest.mark.parametrize(
    ("program", "feature"),
    _rows(_of("tour", "refused call", "first session", "later tools", "long call", "told call", "variables")),
)
def test_a_model_reads_through_carpool_what_it_reads_directly(
    program: Program, feature: Feature, runs: Runs
) -> None:
    _judge(program, feature, runs)


@behaviour("programs:deaths")
@pytest.mark.parametrize(
    ("program", "feature"), _rows(_of("deaths", "down in a call", "http", "same shell", "German shell"))
)
def test_a_program_goes_on_after_a_death_or_a_restart(program: Program, feature: Feature, runs: Runs) -> None:
    _judge(program, feature, runs)


@behaviour("programs:homes")
@pytest.mark.parametrize(("program", "feature"), _rows(lambda it: it.scenario.startswith(("home ", "cold "))))
def test_a_program_finds_its_servers_in_a_home(program: Program, feature: Feature, runs: Runs) -> None:
    _judge(program, feature, runs)


def test_a_program_of_a_run_sees_no_interface_but_loopback(loopback: Loopback) -> None:
    if not loopback.isolated:
        pytest.skip("this system gives no network namespace")
    assert loopback.interfaces() == ["lo"]
