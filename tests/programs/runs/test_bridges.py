"""Bridges before, around and behind carpool: each feature is judged on runs directly and through carpool."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.behaviours import behaviour
from tests.kit.sdks import require_peers
from tests.programs.bridge_places import PLACES, BridgePlace, Verdicts
from tests.programs.installed import require
from tests.programs.known_differences import reason
from tests.programs.loopback import Loopback
from tests.programs.runs.cases import DifferenceError, marks_of, run_once

Runs = Callable[[str, int], Verdicts]


def _rows() -> list[Any]:
    """One case for each place and feature."""
    found = []
    for place in PLACES.values():
        for feature in place.features:
            marks = marks_of(reason(place.name, feature))
            found.append(pytest.param(place, feature, marks=marks, id=f"{place.name}: {feature}"))
    return found


@pytest.fixture(scope="session")
def runs(loopback: Loopback) -> Runs:
    """The verdicts of a scenario, made once; a run that failed fails each of its features."""

    @run_once
    def made(place: str, at: int) -> Verdicts:
        return PLACES[place].scenarios[at].run(loopback)

    return made


@behaviour("programs:bridges")
@pytest.mark.parametrize(("place", "feature"), _rows())
def test_a_bridge_passes_on_with_carpool_what_it_does_without(
    place: BridgePlace, feature: str, runs: Runs
) -> None:
    require_peers()
    for program in place.needs:
        require(program)
    verdict = runs(place.name, place.scenario_of(feature))[feature]
    if verdict.fault:
        raise DifferenceError(
            f"{verdict.fault}\ndirectly: {verdict.direct}\nthrough carpool: {verdict.through}"
        )
