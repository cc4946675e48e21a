"""How much is fuzzed, and where a finding comes from.

Two ways to the same play: plain seeds, which are quick, and Hypothesis, which draws a `Random` that it can
shrink. Both are the same ones each time; `CARPOOL_FUZZ=20` makes twenty times as many, and new ones. What is
found fails with its seed: give that to the play, and make it an explicit case.

Knows nothing of: what is fuzzed.
"""

import os
import secrets
from collections.abc import Callable
from random import Random
from typing import Final

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

TIMES: Final = int(os.environ.get("CARPOOL_FUZZ", "0"))
"""0: the ones that are the same each time."""

Play = Callable[[Random], None]


def fuzz(play: Play, *, examples: int, seeds: int) -> None:
    """Play it with so many examples of Hypothesis' and so many seeds."""
    first = secrets.randbelow(1 << 40) if TIMES else 0
    for seed in range(first, first + seeds * max(1, TIMES)):
        try:
            play(Random(seed))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    shrinkable = settings(
        max_examples=examples * max(1, TIMES),
        derandomize=not TIMES,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    shrinkable(given(st.randoms(use_true_random=False))(play))()
