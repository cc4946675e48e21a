"""Single runs of hooks: the record of each, the line of each hook, and what it has come to so far.

Owns how many runs of a hook there are at once, and the counts and the median that `status` shows.
Knows nothing of: calls, which hook looks at what, time limits.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from carpool_broker.core.model.effects import BeginHook
from carpool_broker.core.model.events import HookRule, HookVerdict, RunId
from carpool_protocol.hooks.lines import MAX_RUNNING

MAX_OUTCOMES: Final = 1024
MAX_OUTCOME_BYTES: Final = 16 * 1024 * 1024
"""While so many runs of a hook wait, or hold so much, it hears of no more ends of calls."""
QUEUE_TIMEOUT_S: Final = 30.0
"""The longest that a call waits for a run to begin."""
MAX_DURATION_SAMPLES: Final = 128
"""Durations that the median is of."""


class BrokerHookRun:
    """One run of one hook."""

    __slots__ = ("began", "id", "rule", "size_bytes", "what")

    def __init__(self, rule: HookRule, what: BeginHook) -> None:
        self.id: RunId = what.run
        self.rule = rule
        """As it was when the run was wanted."""
        self.what = what
        """Once it has begun without what it was given to look at."""
        self.began: float | None = None
        """None: it waits in its hook's line."""
        self.size_bytes = len(what.arguments) + len(what.body)


class HookRunQueue:
    """The runs of one hook."""

    def __init__(self) -> None:
        self.running = 0
        self.waiting: deque[BrokerHookRun] = deque()
        self.waiting_bytes = 0

    def add(self, run: BrokerHookRun) -> None:
        """It waits."""
        self.waiting.append(run)
        self.waiting_bytes += run.size_bytes

    def remove(self, run: BrokerHookRun) -> BrokerHookRun:
        """It waits no more."""
        self.waiting.remove(run)
        self.waiting_bytes -= run.size_bytes
        return run

    def has_room(self, what: BeginHook) -> bool:
        """Whether this may wait although nobody waits for it."""
        more = len(what.arguments) + len(what.body)
        return len(self.waiting) < MAX_OUTCOMES and self.waiting_bytes + more <= MAX_OUTCOME_BYTES

    @property
    def is_full(self) -> bool:
        """Whether one more has to wait."""
        return self.running >= MAX_RUNNING

    @property
    def is_empty(self) -> bool:
        """Whether there are none."""
        return not self.running and not self.waiting

    def check(self, runs: Sequence[BrokerHookRun]) -> None:
        """Assert that these are its runs."""
        assert {run.id for run in self.waiting} == {run.id for run in runs if run.began is None}
        assert self.running == sum(1 for run in runs if run.began is not None) <= MAX_RUNNING
        assert self.waiting_bytes == sum(run.size_bytes for run in self.waiting)
        assert not self.waiting or self.is_full, "a run waits though it could begin"


class HookCounts:
    """What one hook has come to since this broker began."""

    def __init__(self) -> None:
        self.verdicts: dict[HookVerdict, int] = {"allow": 0, "deny": 0, "rewrite": 0, "failed": 0}
        self.timeouts = 0
        """Of those that failed: so many had not answered in time."""
        self.untold = 0
        """Ends of calls that it did not hear of, because it had too much to do."""
        self.last_error = ""
        self.is_failing = False
        """Its last run failed."""
        self._durations_s: deque[float] = deque(maxlen=MAX_DURATION_SAMPLES)

    def count_run(self, verdict: HookVerdict, duration_s: float, reason: str = "") -> bool | None:
        """A run is over. True: it has begun to fail; False: it works again; None: as before."""
        self.verdicts[verdict] += 1
        if verdict == "failed":
            self.last_error = reason
        else:
            self._durations_s.append(duration_s)
        was, self.is_failing = self.is_failing, verdict == "failed"
        return None if was == self.is_failing else self.is_failing

    @property
    def median_s(self) -> float | None:
        """Of the last runs that did not fail."""
        ordered = sorted(self._durations_s)
        return ordered[len(ordered) // 2] if ordered else None
