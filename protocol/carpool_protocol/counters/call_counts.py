"""The counts of one group of calls: how many came, how each ended, how long it took.

Owns the fields and what each means (docs/counters.md), sums and differences. It is the live record of the
broker and the value in a snapshot. Invariant: `calls` is `ended` and the calls that are still open. Refuses
to know: which calls make a group.
"""

from typing import Any, Final

from msgspec import Struct, field

from carpool_protocol.counters.histogram import DurationHistogram

UNKNOWN: Final = "(unknown)"
"""The server or tool of a call that no server was found for."""
OTHER: Final = "(other)"
"""Stands for all that a bound leaves no room for."""
MAX_CODES: Final = 32
"""The number of different codes in one group; all others count as `OTHER`."""


class CallCounts(Struct, kw_only=True):
    """The counts of one group of calls."""

    calls: int = 0
    """Calls that are at the supervisor, or have ended."""
    resumed: int = 0
    """Calls that an earlier broker had sent, and that go on at this one. Their times are not known."""
    answers: int = 0
    """Calls that ended with a result. A tool's failure is such a result."""
    tool_errors: int = 0
    """Those of `answers` in which the tool says that it failed (`isError`)."""
    errors: dict[str, int] = field(default_factory=dict)
    """Calls that ended with an error after they were sent, by code."""
    refusals: dict[str, int] = field(default_factory=dict)
    """Calls that ended with an error of carpool and were not delivered, by code."""
    cancelled: int = 0
    """Calls that their agent cancelled or left behind."""
    bytes_in: int = 0
    """Bytes of the params of calls that have ended, without the name."""
    bytes_out: int = 0
    """Bytes of the results and errors in which calls ended."""
    waiting: DurationHistogram = field(default_factory=DurationHistogram)
    """From the request to its way to the supervisor, of calls that were sent and have ended."""
    server: DurationHistogram = field(default_factory=DurationHistogram)
    """From there to the answer of the server."""
    total: DurationHistogram = field(default_factory=DurationHistogram)
    """From the request to the end, of calls that ended with an answer or an error."""

    @property
    def ended(self) -> int:
        """The number of calls that have ended."""
        return self.answers + sum(self.errors.values()) + sum(self.refusals.values()) + self.cancelled

    @property
    def in_flight(self) -> int:
        """The number of calls that were sent and are still open."""
        return self.calls - self.ended

    def merge(self, other: "CallCounts") -> None:
        """Add the counts of another group to this one."""
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for code, count in other.errors.items():
            add_code(self.errors, code, count)
        for code, count in other.refusals.items():
            add_code(self.refusals, code, count)
        for name in HISTOGRAMS:
            getattr(self, name).merge(getattr(other, name))

    def minus(self, earlier: "CallCounts") -> "CallCounts":
        """Return what was counted after an earlier state of this group."""
        numbers: dict[str, Any] = {name: getattr(self, name) - getattr(earlier, name) for name in _NUMBERS}
        times = {name: getattr(self, name).minus(getattr(earlier, name)) for name in HISTOGRAMS}
        return CallCounts(
            **numbers,
            **times,
            errors=_difference(self.errors, earlier.errors),
            refusals=_difference(self.refusals, earlier.refusals),
        )


_NUMBERS: Final = ("calls", "resumed", "answers", "tool_errors", "cancelled", "bytes_in", "bytes_out")
HISTOGRAMS: Final = ("waiting", "server", "total")
"""The names of the three histograms."""


def add_code(counts: dict[str, int], code: str, count: int = 1) -> None:
    """Count an end with this code, within the bound of different codes."""
    if code not in counts and len(counts) >= MAX_CODES:
        code = OTHER
    counts[code] = counts.get(code, 0) + count


def _difference(later: dict[str, int], earlier: dict[str, int]) -> dict[str, int]:
    changed = {code: count - earlier.get(code, 0) for code, count in later.items()}
    return {code: count for code, count in changed.items() if count}
