"""The drain: carpool restarts, and calls that are at their servers run on to their answers.

Owns when the drain is over: as soon as no call is under way, or after `DRAIN_S`, when the rest is ended.
From its beginning no call is sent to a server (`Admission.draining`). A call whose carrier can bring it to
the next broker waits without an answer; any other call is refused at once.

Invariant: a request that such a carrier has no answer to at the end was never sent, so the next broker can
take it as new. Under way are also calls that have come back from an earlier broker and are not decided
about, and those whose session has not come back yet, because they end with the supervisor.

Refuses to know: how carriers are told, how other calls are ended.
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
"""The only key of its timer."""


class Drain:
    """The drain of one broker."""

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
        """Begin: no call is sent from now on."""
        if not self._call_table.admission.draining:
            self._call_table.admission.draining = True
            self._timers.arm("drain", BOUND, now, DRAIN_S)
            self._requests.refuse_queued()

    def recheck(self) -> None:
        """Check whether any call is still under way."""
        if self._is_ended:  # a session that came back after the end: what it has running is not unsent
            self._requests.end_all(again=True)
        elif not self._awaits_calls() and not any(
            open_call.stage in UNFINISHED for open_call in self._call_table.calls.values()
        ):
            self.end()

    def end(self) -> None:
        """End the drain: what is still under way is ended."""
        if not self._is_ended:
            self._is_ended = True
            self._call_table.admission.draining = True
            self._timers.disarm("drain", BOUND)
            self._requests.end_all(again=True)
            self._emit(EndBroker())
