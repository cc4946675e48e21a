"""The test of the simulated world itself: bugs planted into carpool, each found by a storm.

`tests/world/planted` holds the bugs, `planted_bugs.py` plants them; nothing of the source is changed.
"""

from functools import cache

import pytest

from tests.world import planted_bugs
from tests.world.sim.storms import EVERY


@cache
def passes(kind: str, seed: int) -> bool:
    """Whether the world comes through this storm when nothing is planted: it raises what is wrong."""
    EVERY[kind](seed)
    return True


@pytest.mark.parametrize("name", planted_bugs.names())
def test_a_planted_bug_is_found_by_a_storm_that_passes_without_it(name: str) -> None:
    plant = planted_bugs.load(name)
    found = planted_bugs.look_for(name, plant.seeds)
    if found is None:  # what happens in a storm has changed: others find it now
        found = planted_bugs.look_for(name, range(planted_bugs.MOST_SEEDS))
    assert found is not None, f"{name}: {planted_bugs.MOST_SEEDS} storms do not find it: {plant.what}"
    print(f"{name}: seed {found.seed} after {found.after_s:.2f} s: {found.said}")
    assert passes(plant.storm, found.seed)


def test_at_least_ten_bugs_are_planted() -> None:
    assert len(planted_bugs.names()) >= 10


def test_a_bug_whose_place_has_changed_is_no_bug_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = planted_bugs.Plant(
        what="",
        file="broker/carpool_broker/core/calls/call_table.py",
        old="no such line\n",
        new="",
        seeds=[0],
    )
    monkeypatch.setattr(planted_bugs, "load", lambda _: gone)
    with pytest.raises(
        planted_bugs.Misfit, match=r"0 times in broker/carpool_broker/core/calls/call_table\.py"
    ):
        planted_bugs.source_of("anything")
