"""The runs of hooks: the record of each, the queue of each hook, and the counts of its results.

Owns how many runs a hook has at once, and the counts and the median that `status` shows. Refuses to know:
calls, which hook gets which call, time limits.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from carpool_broker.core.model.effects import BeginHook
from carpool_broker.core.model.events import HookRule, HookVerdict, RunId
from carpool_protocol.hooks.lines import MAX_RUNNING

MAX_OUTCOMES: Final = 1024
MAX_OUTCOME_BYTES: Final = 16 * 1024 * 1024
"""While this many runs of a hook wait, or hold this many bytes, it is told of no more ends of calls."""
QUEUE_TIMEOUT_S: Final = 30.0
"""The longest time that a call waits for a run to start."""
MAX_DURATION_SAMPLES: Final = 128
"""The number of durations of which the median is taken."""


class BrokerHookRun:
    """One run of one hook."""

    __slots__ = ("began", "id", "rule", "size_bytes", "what")

    def __init__(self, rule: HookRule, what: BeginHook) -> None:
        self.id: RunId = what.run
        self.rule = rule
        """The hook's rule when the run was requested."""
        self.what = what
        """What the hook gets. Once the run has started, the arguments or the answer are left out."""
        self.began: float | None = None
        """The time at which it started; None while it waits in its hook's queue."""
        self.size_bytes = len(what.arguments) + len(what.body)


class HookRunQueue:
    """The runs of one hook."""

    def __init__(self) -> None:
        self.running = 0
        self.waiting: deque[BrokerHookRun] = deque()
        self.waiting_bytes = 0

    def add(self, run: BrokerHookRun) -> None:
        """Queue a run."""
        self.waiting.append(run)
        self.waiting_bytes += run.size_bytes

    def remove(self, run: BrokerHookRun) -> BrokerHookRun:
        """Remove a run from the queue."""
        self.waiting.remove(run)
        self.waiting_bytes -= run.size_bytes
        return run

    def has_room(self, what: BeginHook) -> bool:
        """True if a run about whose end no call waits may be queued."""
        more = len(what.arguments) + len(what.body)
        return len(self.waiting) < MAX_OUTCOMES and self.waiting_bytes + more <= MAX_OUTCOME_BYTES

    @property
    def is_full(self) -> bool:
        """True if one more run must wait."""
        return self.running >= MAX_RUNNING

    @property
    def is_empty(self) -> bool:
        """True if there are no runs."""
        return not self.running and not self.waiting

    def check(self, runs: Sequence[BrokerHookRun]) -> None:
        """Assert that these are its runs."""
        assert {run.id for run in self.waiting} == {run.id for run in runs if run.began is None}
        assert self.running == sum(1 for run in runs if run.began is not None) <= MAX_RUNNING
        assert self.waiting_bytes == sum(run.size_bytes for run in self.waiting)
        assert not self.waiting or self.is_full, "a run waits though it could begin"


class HookCounts:
    """The counts of one hook since this broker began."""

    def __init__(self) -> None:
        self.verdicts: dict[HookVerdict, int] = {"allow": 0, "deny": 0, "rewrite": 0, "failed": 0}
        self.timeouts = 0
        """The number of failed runs that exceeded their time limit."""
        self.untold = 0
        """The number of ends of calls that it was not told of, because too many runs waited."""
        self.last_error = ""
        self.is_failing = False
        """True if its last run failed."""
        self.denied_in_a_row = 0
        """The number of its last verdicts that were denials, without any other between them."""
        self._durations_s: deque[float] = deque(maxlen=MAX_DURATION_SAMPLES)

    def count_run(self, verdict: HookVerdict, duration_s: float, reason: str = "") -> bool | None:
        """Count a run. Returns True if the hook begins to fail, False if it works again, None if neither has
        changed.
        """
        self.verdicts[verdict] += 1
        self.denied_in_a_row = self.denied_in_a_row + 1 if verdict == "deny" else 0
        if verdict == "failed":
            self.last_error = reason
        else:
            self._durations_s.append(duration_s)
        was, self.is_failing = self.is_failing, verdict == "failed"
        return None if was == self.is_failing else self.is_failing

    @property
    def median_s(self) -> float | None:
        """Return the median duration of the last runs that did not fail."""
        ordered = sorted(self._durations_s)
        return ordered[len(ordered) // 2] if ordered else None
