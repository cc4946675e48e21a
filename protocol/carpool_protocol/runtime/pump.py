"""The pump: feeds a core its events, records them, and has its effects performed.

Owns the order of events of one core, the timer for its next deadline, and what happens when the core is
wrong: the journal goes to a file and the exception goes on, so that the process ends and is replaced (a
core that broke an invariant must not decide anything more). SIGUSR2 has the journal written and changes
nothing.

Rules: an event fed while effects are being performed waits its turn (order, no recursion). A shell calls
`settle` at the end of each burst (it is made to be called from the `settle` of the link and of the ready
set): only there the timer looks at the core's next deadline, so no event pays for it.

Knows nothing of: what events and effects mean.
Decision: docs/decisions/0007.
"""

import logging
import math
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import trio

from carpool_protocol.files import private_files
from carpool_protocol.machine.journal import JOURNAL_ENTRIES, Journal
from carpool_protocol.machine.machine import FULL_CHECK_EVERY, Machine, Ticked
from carpool_protocol.runtime.wallclock import unix_s

E = TypeVar("E")
F = TypeVar("F")

OUTPUTS_PER_FLUSH: Final = 32
"""So many outputs of a burst leave together, not only at its end, so that the next process begins with them
while this one goes on: a burst of 64 calls would otherwise pass through all processes as one lump, one after
the other. Measured at 1 agent x 64 in flight: 32 gives a third more calls per second than whole bursts, for a
fifth more CPU per call; 16 and 8 cost more and give less.
"""

CHECK_VARIABLE: Final = "CARPOOL_CHECK"
"""With `1` in this environment variable invariants are checked: see `machine.FULL_CHECK_EVERY`."""

JOURNAL_VARIABLE: Final = "CARPOOL_JOURNAL"
"""The journal keeps so many entries instead of `JOURNAL_ENTRIES`. For tests that replay a whole life."""

DUMP_SIGNAL: Final = signal.SIGUSR2

_TICK: Final = Ticked()

log = logging.getLogger("carpool.pump")


class CorePump(Generic[E, F]):
    """Drives one machine. All methods are called in one thread."""

    def __init__(
        self,
        machine: Machine[E, F],
        perform: Callable[[list[F]], None],
        journal: Journal | None = None,
        clock: Callable[[], float] = trio.current_time,
        *,
        dump_to: Path | None = None,
        check: bool | None = None,
    ) -> None:
        self._machine = machine
        self._perform = perform
        size = int(os.environ.get(JOURNAL_VARIABLE) or JOURNAL_ENTRIES)
        self._journal = Journal(size) if journal is None else journal
        self._clock = clock
        self._dump_to = dump_to
        self._check = os.environ.get(CHECK_VARIABLE) == "1" if check is None else check
        self._until_full_check = 0
        self._waiting: deque[E] = deque()
        self._busy = False
        self._sleep: trio.CancelScope | None = None
        self._wake_at = math.inf

    def feed(self, event: E) -> None:
        """Handle one event, record it, perform its effects; then, in order, what `perform` fed meanwhile."""
        if self._busy:
            self._waiting.append(event)
            return
        self._drain((event,), self._machine.handle)

    def feed_all(self, events: Iterable[E]) -> None:
        """The same as `feed` for each, on one reading of the clock."""
        if self._busy:
            self._waiting.extend(events)
            return
        self._drain(events, self._machine.handle)

    def story(self, subject: int | str, kind: type[int | str]) -> list[dict[str, Any]]:
        """What the journal holds of this call, session or instance (`ids.CallId`, ...), oldest first:
        `{at, event, effects}`, `at` in seconds since 1970.
        """
        offset = unix_s() - self._clock()
        return [
            {"at": entry.now + offset, "event": entry.event, "effects": entry.effects}
            for entry in self._journal.story(subject, kind)
        ]

    def settle(self) -> None:
        """The burst is over: have the timer sleep no longer than to the next deadline."""
        if self._sleep is not None:
            deadline = self._machine.next_deadline()
            if deadline is not None and deadline < self._wake_at:
                self._wake_at = deadline
                self._sleep.deadline = self._trio_time(deadline)

    async def run_timers(self, settle: Callable[[], None]) -> None:
        """Tick the machine at its deadlines, until cancelled. What a tick decides is a burst of its own:
        `settle`, the shell's, lets it out; else a ping to an idle server would wait for other traffic.
        """
        while True:
            deadline = self._machine.next_deadline()
            if deadline is not None and deadline <= self._clock():
                self._tick()
                settle()
                await trio.lowlevel.checkpoint()  # a machine that is always due must not starve the rest
                continue
            self._wake_at = math.inf if deadline is None else deadline
            with trio.CancelScope(deadline=self._trio_time(self._wake_at)) as self._sleep:
                await trio.sleep_forever()
            self._sleep = None

    async def run_dumps(self) -> None:
        """Write the journal with each SIGUSR2, whole or not at all, until cancelled.

        A task, not a signal handler, so that it happens between two bursts. In the main thread only.
        """
        with trio.open_signal_receiver(DUMP_SIGNAL) as signals:
            async for _ in signals:
                if self._dump_to is not None:
                    try:
                        private_files.replace(str(self._dump_to), self._journal.dump())
                    except OSError as failure:
                        log.error("the journal could not be written: %s", failure.strerror)  # noqa: TRY400
                    else:
                        log.info("the journal is in %s", self._dump_to)

    def _trio_time(self, deadline: float) -> float:
        return trio.current_time() + max(0.0, deadline - self._clock())

    def _tick(self) -> None:
        self._drain((_TICK,), self._ticked)

    def _ticked(self, _: E | Ticked, now: float) -> list[F]:
        return self._machine.tick(now)

    def _drain(self, events: Iterable[E | Ticked], handle: Callable[[Any, float], list[F]]) -> None:
        """Handle these events with `handle`, and behind each, in order, what was fed meanwhile."""
        # One loop and no call per event: every event of every call comes through here.
        record, perform, waiting = self._journal.record, self._perform, self._waiting
        event: E | Ticked = _TICK
        recorded = True
        self._busy = True
        now = self._clock()
        try:
            for event in events:
                while True:
                    recorded = False
                    effects = handle(event, now)
                    record(now, event, effects)
                    recorded = True
                    if self._check:
                        self._check_invariants(event, effects)
                    if effects:
                        perform(effects)
                    if not waiting:
                        break
                    event, handle = waiting.popleft(), self._machine.handle  # noqa: PLW2901 - fed meanwhile
        except Exception as exc:
            # Whatever comes out of a core or of performing is a bug of ours: `faults.Bug`, or worse.
            if not recorded:
                record(now, event, ())
            self._dump(exc)
            raise
        finally:
            self._busy = False

    def _check_invariants(self, event: E | Ticked, effects: list[F]) -> None:
        self._machine.check_touched(event, effects)
        self._until_full_check += 1
        if self._until_full_check % FULL_CHECK_EVERY == 0:
            self._machine.check()

    def _dump(self, exc: Exception) -> None:
        self._waiting.clear()
        if self._dump_to is None:
            return
        try:
            # Blocking on purpose: nothing else may run before the process ends.
            private_files.replace(str(self._dump_to), self._journal.dump())
        except OSError as failure:
            exc.add_note(f"the journal could not be written to {self._dump_to}: {failure.strerror}")
        else:
            exc.add_note(f"the journal is in {self._dump_to}")
