"""The pump: feeds events to a core, records them, and has the effects performed.

Owns the order of a core's events, the timer for its next deadline, and the reaction to a bug in it: the pump
writes the journal to a file and lets the exception end the process, which is then replaced. A core that broke
an invariant must not decide anything more. SIGUSR2 also writes the journal and changes nothing else.

Rules: an event fed while effects are performed waits its turn (order, no recursion). A shell calls `settle`
at the end of each burst, usually from the `settle` of the link and of the ready set. Only there the timer
reads the core's next deadline, so single events do not pay for it.

Knows nothing of: the meaning of events and effects.
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
"""Number of outputs of a burst that are flushed together, before the burst ends.

The next process begins with them while this one goes on. Otherwise a burst of 64 calls would pass through all
processes as one lump, one after the other. Measured at 1 agent x 64 in flight: 32 gives a third more calls
per second than whole bursts, for a fifth more CPU per call; 16 and 8 cost more and give less.
"""

CHECK_VARIABLE: Final = "CARPOOL_CHECK"
"""The value `1` of this environment variable turns on checks of invariants (`machine.FULL_CHECK_EVERY`)."""

JOURNAL_VARIABLE: Final = "CARPOOL_JOURNAL"
"""Environment variable with the size of the journal in entries, in place of `JOURNAL_ENTRIES`. For tests that
replay a whole run.
"""

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
        """Handle one event, record it and perform its effects; then handle, in order, the events that
        `perform` fed.
        """
        if self._busy:
            self._waiting.append(event)
            return
        self._drain((event,), self._machine.handle)

    def feed_all(self, events: Iterable[E]) -> None:
        """Handle each event as `feed` does, all with one reading of the clock."""
        if self._busy:
            self._waiting.extend(events)
            return
        self._drain(events, self._machine.handle)

    def story(self, subject: int | str, kind: type[int | str]) -> list[dict[str, Any]]:
        """Journal entries that name this call, session or instance, oldest first.

        `kind`: the type of the id (`ids.CallId`, ...). Each entry is `{at, event, effects}`, `at` in seconds
        since 1970.
        """
        offset = unix_s() - self._clock()
        return [
            {"at": entry.now + offset, "event": entry.event, "effects": entry.effects}
            for entry in self._journal.story(subject, kind)
        ]

    def settle(self) -> None:
        """End a burst: wake the timer no later than at the core's next deadline."""
        if self._sleep is not None:
            deadline = self._machine.next_deadline()
            if deadline is not None and deadline < self._wake_at:
                self._wake_at = deadline
                self._sleep.deadline = self._trio_time(deadline)

    async def run_timers(self, settle: Callable[[], None]) -> None:
        """Tick the machine at its deadlines, until cancelled.

        Each tick is a burst of its own, and the shell's `settle` flushes it; otherwise a ping to an idle
        server would wait for other traffic.
        """
        while True:
            deadline = self._machine.next_deadline()
            if deadline is not None and deadline <= self._clock():
                self._tick()
                settle()
                await trio.lowlevel.checkpoint()  # a machine that is always due must not starve other tasks
                continue
            self._wake_at = math.inf if deadline is None else deadline
            with trio.CancelScope(deadline=self._trio_time(self._wake_at)) as self._sleep:
                await trio.sleep_forever()
            self._sleep = None

    async def run_dumps(self) -> None:
        """Write the journal file, whole or not at all, at each SIGUSR2, until cancelled.

        It is a task and no signal handler, so that it runs between two bursts. Only in the main thread.
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
        """Handle these events with `handle`; after each, in order, the events that were fed meanwhile."""
        # One loop without a call per event: every event of every call passes here.
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
            # Any exception of a core or of performing is a bug in carpool: `faults.Bug`, or worse.
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
