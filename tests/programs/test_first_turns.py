"""The verdict on pairs of first turns names every pair that had less through carpool."""

import pytest

from tests.programs.features import Verdict
from tests.programs.first_turns import judge_pairs
from tests.programs.script import Json


def pairs(direct: list[int | None], through: list[int | None]) -> list[Json]:
    return [{"direct": one, "carpool": two} for one, two in zip(direct, through, strict=True)]


@pytest.mark.parametrize(
    ("direct", "through", "verdict"),
    [
        ([23] * 5, [23] * 5, Verdict("23 tools in 5 of 5 pairs", "23 tools in 5 of 5 pairs")),
        (
            [23] * 5,
            [0] * 5,
            Verdict(
                "23 tools in 5 of 5 pairs",
                "0 tools in 5 of 5 pairs",
                "through carpool 0 tools in 5 of 5 pairs, directly 23 tools",
            ),
        ),
        (
            [22, 22, 22],
            [22, 0, None],
            Verdict(
                "22 tools in 3 of 3 pairs",
                "no request in 1 of 3 pairs, 0 tools in 1 of 3 pairs, 22 tools in 1 of 3 pairs",
                "through carpool no request in 1 of 3 pairs, 0 tools in 1 of 3 pairs, directly 22 tools",
            ),
        ),
        (
            [None, 19],
            [22, 22],
            Verdict("no request in 1 of 2 pairs, 19 tools in 1 of 2 pairs", "22 tools in 2 of 2 pairs"),
        ),
    ],
)
def test_a_pair_with_less_through_carpool_is_a_fault(
    direct: list[int | None], through: list[int | None], verdict: Verdict
) -> None:
    assert judge_pairs(pairs(direct, through)) == verdict
