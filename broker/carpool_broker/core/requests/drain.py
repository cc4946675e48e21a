"""The end that waits: carpool is started again, and calls that are at their servers run on to their answers.

Owns when that is over: as soon as nothing is under way, or after `DRAIN_S`; what is left then is cut off.
From its beginning no call leaves for a server (`Admission.draining`): one whose carrier keeps waits, without
an answer, for the next broker, which takes it as new; any other is refused at once.

Invariant: whatever a carrier that keeps has no answer to at the end was never sent, so it may all be said
anew. Calls that have come back from an earlier broker, and of which it is not known yet what became of them,
are under way; so are those whose session has not come back yet, because they end with the supervisor.

Knows nothing of: how carriers are told, who ends the others.
"""

from collections.abc import Callable
from typing import Final

from carpool_broker.core.calls.call_table import CallTable
from carpool_broker.core.model.effects import AnyEffect, EndBroker
from carpool_broker.core.model.session import UNFINISHED
from carpool_broker.core.model.timer_kinds import BrokerTimers
from carpool_broker.core.requests.dispatch import RequestDispatch
from carpool_protocol.machine.stop_commands import DRAIN_S

BOUND: Final = "bound"
"""The one key of its timer."""


class Drain:
    """The last seconds of one broker."""

    def __init__(
        self,
        call_table: CallTable,
        requests: RequestDispatch,
        out: Callable[[AnyEffect], None],
        timers: BrokerTimers,
        *,
        awaits_calls: Callable[[], bool],
    ) -> None:
        """`awaits_calls`: calls of sessions that have not come back from an earlier broker may be running."""
        self._call_table = call_table
        self._requests = requests
        self._emit = out
        self._timers = timers
        self._awaits_calls = awaits_calls
        self._is_ended = False

    def begin(self, now: float) -> None:
        """No call leaves from now on."""
        if not self._call_table.admission.draining:
            self._call_table.admission.draining = True
            self._timers.arm("drain", BOUND, now, DRAIN_S)
            self._requests.refuse_queued()

    def recheck(self) -> None:
        """Something has happened: perhaps nothing is under way any more."""
        if self._is_ended:  # a session that came back after the end: what it has running is not unsent
            self._requests.end_all(again=True)
        elif not self._awaits_calls() and not any(
            open_call.stage in UNFINISHED for open_call in self._call_table.calls.values()
        ):
            self.end()

    def end(self) -> None:
        """Over: what is under way still is cut off."""
        if not self._is_ended:
            self._is_ended = True
            self._call_table.admission.draining = True
            self._timers.disarm("drain", BOUND)
            self._requests.end_all(again=True)
            self._emit(EndBroker())
