"""A histogram of durations with fixed buckets, and the percentiles that can be read from it.

Owns the bounds of the buckets (docs/counters.md), which all histograms share, so that any two can be added
or subtracted. Refuses to know: which durations are counted.
"""

from bisect import bisect_left
from itertools import accumulate
from operator import add, sub
from typing import Final

from msgspec import Struct, field

BUCKETS_S: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0,
)  # fmt: skip
"""The upper bounds of the buckets in seconds, each inclusive. One more bucket is above the last."""

_NONE: Final = [0] * (len(BUCKETS_S) + 1)


class DurationHistogram(Struct, gc=False):
    """Counts of durations by bucket, their sum, and the longest one."""

    counts: list[int] = field(default_factory=_NONE.copy)
    """One number for each bucket, not cumulative, and the last for durations above all bounds."""
    sum_s: float = 0.0
    longest_s: float = 0.0
    """No duration is longer than this; 0.0: an older broker counted, which does not know it."""

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds
        self.longest_s = max(self.longest_s, seconds)

    def merge(self, other: "DurationHistogram") -> None:
        """Add the counts of another histogram to this one."""
        self.counts = list(map(add, self.counts, other.counts))
        self.sum_s += other.sum_s
        self.longest_s = max(self.longest_s, other.longest_s)

    def minus(self, earlier: "DurationHistogram") -> "DurationHistogram":
        """Return what was counted after an earlier state of this histogram. Its longest is that of both."""
        counts = list(map(sub, self.counts, earlier.counts))
        longest_s = self.longest_s if any(counts) else 0.0
        return DurationHistogram(counts, max(self.sum_s - earlier.sum_s, 0.0), longest_s)

    @property
    def count(self) -> int:
        """The number of durations."""
        return sum(self.counts)

    def percentile(self, fraction: float) -> float | None:
        """Return the duration that this fraction of all stays below; None if there are none.

        Within a bucket durations count as evenly spread; no duration is longer than the longest, or than the
        sum of all. Above the last bound that bound is returned.
        """
        reached = list(accumulate(self.counts))
        rank = fraction * reached[-1]
        if rank <= 0:
            return None
        number = bisect_left(reached, rank)
        if number == len(BUCKETS_S):
            return BUCKETS_S[-1]
        lower = BUCKETS_S[number - 1] if number else 0.0
        within = self.counts[number]
        spread = lower + (BUCKETS_S[number] - lower) * (rank - (reached[number] - within)) / within
        return min(spread, self.sum_s, self.longest_s or spread)
