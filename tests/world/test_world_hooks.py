"""Storms with hooks: they deny, rewrite, fail and hang, and every promise about answers holds."""

import os

import pytest

from tests.behaviours import behaviour
from tests.world.sim.hooks import HookedWorld
from tests.world.sim.storms import STORMS
from tests.world.soak import AGAIN

SEEDS = range(4, 4 + int(os.environ.get("CARPOOL_WORLD_HOOKS_SEEDS", "4")))


@behaviour("hooks:once", "calls:one-answer", "calls:honest-delivery")
@pytest.mark.parametrize("seed", SEEDS)
def test_no_call_is_lost_or_doubled_whatever_hooks_say_and_whoever_dies(seed: int) -> None:
    try:
        world = STORMS["hooks"](seed)
    except Exception as wrong:
        wrong.add_note(f"seed {seed}: {AGAIN} hooks:{seed}")
        raise
    assert isinstance(world, HookedWorld)
    assert world.verdicts.keys() >= {"allow", "deny", "rewrite", "failed"}, "no hook had anything to say"
    assert world.book.outcomes.get("denied_by_hook"), world.book.outcomes
