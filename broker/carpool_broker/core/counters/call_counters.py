"""The counters of one agent, server and tool, as the broker keeps them.

Owns the form that costs little: most calls are sent at once and end with an answer, so that their three times
are one, and they are counted in four numbers and one bucket. All other ends are in a `CallCounts`. `counts`
puts both together. Refuses to know: whose calls they are, which calls are open, who counts
(`core/calls/call_counting`).
"""

from typing import Final

from carpool_protocol.counters.call_counts import CallCounts
from carpool_protocol.counters.histogram import DurationHistogram

_EMPTY: Final = DurationHistogram().counts


class CallCounters:
    """The counters of the calls of one agent to one tool."""

    __slots__ = ("bytes_in", "bytes_out", "direct", "direct_longest_s", "direct_s", "rest", "tool_errors")

    def __init__(self) -> None:
        self.direct = _EMPTY.copy()
        """Calls that were sent at once and answered, by bucket of the time that this took."""
        self.direct_s = 0.0
        """The sum of these times."""
        self.direct_longest_s = 0.0
        self.tool_errors = 0
        """Those of them in which the tool says that it failed."""
        self.bytes_in = 0
        self.bytes_out = 0
        self.rest = CallCounts()
        """All other calls that have ended."""

    @property
    def ended(self) -> int:
        """The number of calls that have ended."""
        return sum(self.direct) + self.rest.ended

    def check(self) -> None:
        """Assert that each time belongs to a call that has ended."""
        rest = self.rest
        assert rest.server.count <= rest.waiting.count <= rest.ended
        assert rest.total.count <= rest.answers + sum(rest.errors.values())
        assert rest.tool_errors <= rest.answers
        assert self.tool_errors <= sum(self.direct)

    def counts(self, in_flight: int = 0, resumed: int = 0) -> CallCounts:
        """Return all counts, with so many calls that have not ended. `resumed`: so many of these came from an
        earlier broker.
        """
        answers = sum(self.direct)
        times = DurationHistogram(self.direct.copy(), self.direct_s, self.direct_longest_s)
        found = CallCounts(
            calls=self.ended + in_flight,
            resumed=resumed,
            answers=answers,
            tool_errors=self.tool_errors,
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
            server=times,
            total=DurationHistogram(self.direct.copy(), self.direct_s, self.direct_longest_s),
        )
        found.waiting.counts[0] = answers
        found.merge(self.rest)
        return found
