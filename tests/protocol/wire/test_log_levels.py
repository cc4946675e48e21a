"""The order of log levels."""

from carpool_protocol.wire.log_levels import LEVELS, rank


def test_a_level_that_matters_more_ranks_higher_and_an_unknown_one_highest() -> None:
    assert [rank(level) for level in LEVELS] == sorted(rank(level) for level in LEVELS)
    assert rank("debug") < rank("info") < rank("emergency") < rank("loud")
