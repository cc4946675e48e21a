"""Storms over workspaces: files that change, trust, switches and moves, with the real configuration.

`CARPOOL_WORLD_WORKSPACES_SEEDS=N` runs N of them instead of the fixed few.
"""

import os

import pytest

from tests.behaviours import behaviour
from tests.world.sim.workspace_faults import workspace_storm
from tests.world.soak import AGAIN

SEEDS = range(7, 7 + int(os.environ.get("CARPOOL_WORLD_WORKSPACES_SEEDS", "3")))


@behaviour(
    "workspaces:one-instance",
    "workspaces:moved",
    "trust:asked",
    "trust:asked-again",
    "switch:live",
    "calls:one-answer",
)
@pytest.mark.parametrize("seed", SEEDS)
def test_everybody_is_served_as_its_files_say_wherever_it_goes_and_nothing_runs_untrusted(seed: int) -> None:
    try:
        world = workspace_storm(seed)
    except Exception as wrong:
        wrong.add_note(f"seed {seed}: {AGAIN} workspaces:{seed}")
        raise
    assert world.checked > 10
    assert world.moved > 3
    assert len(world.launches) > 10
