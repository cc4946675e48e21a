"""The method `carpool/recent_calls`: the calls that have ended lately, for those who watch.

A request turns the watching on (`core/calls/recent_calls`), so the first one is answered with no calls. Owns
the rows as JSON; `ended_at` is in seconds since 1970. Knows nothing of: which calls are kept, how rows are
shown.
"""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from carpool_broker.admin.methods import Methods
from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.calls.recent_calls import RecentCall
from carpool_broker.core.model.events import RecentCallsWatched
from carpool_protocol.runtime.wallclock import unix_s

DIGITS = 6
"""Times of parts are rounded to microseconds."""


class RecentCallsParams(Struct):
    """Params of `carpool/recent_calls`. `after`: the `newest` of an earlier answer."""

    after: int = 0


class RecentCallReport:
    """Reports the calls of one broker that have ended lately. `clock`: the time of the core."""

    def __init__(
        self,
        core: BrokerCore,
        clock: Callable[[], float],
        follow: Callable[[Sequence[RecentCallsWatched]], None],
    ) -> None:
        self._core = core
        self._clock = clock
        self._apply = follow

    def register(self, methods: Methods) -> None:
        """Add the method to the table."""
        methods.add("carpool/recent_calls", RecentCallsParams, lambda _, params: self.report(params))

    def report(self, params: RecentCallsParams) -> dict[str, Any]:
        """`{"calls": [row], "newest", "left_out"}`, oldest first. `left_out`: how many were not kept."""
        self._apply([RecentCallsWatched()])
        recent = self._core.call_table.recent
        assert recent is not None
        began_s = unix_s() - self._clock()
        rows = [_shown(each, began_s) for each in recent.rows_after(params.after)]
        return {"calls": rows, "newest": recent.newest, "left_out": recent.left_out}


def _shown(call: RecentCall, began_s: float) -> dict[str, Any]:
    """Return the row. `began_s`: the time, since 1970, at which the clock of the core was 0."""
    times = {
        name: value if value is None else round(value, DIGITS)
        for name, value in asdict(call).items()
        if name.endswith("_s")
    }
    found = {**asdict(call), **times, "ended_at": round(began_s + call.ended_at, 3)}
    del found["number"]
    return found
