"""The end that waits: carpool is started again, and calls that are at their servers run on to their answers.

Owns when that is over: as soon as nothing is under way, or after `DRAIN_S`; what is left then is cut off.
From its beginning no call leaves for a server (`Admission.draining`): one whose carrier keeps waits, without
an answer, for the next broker, which takes it as new; any other is refused at once.

Invariant: whatever a carrier that keeps has no answer to at the end was never sent, so it may all be said
anew. Calls that have come back from an earlier broker, and of which it is not known yet what became of them,
are under way.

Knows nothing of: how carriers are told, who ends the others.
"""

from collections.abc import Callable
from typing import Final

from carpool_broker.core.calls.call_table import Ledger
from carpool_broker.core.model.effects import AnyEffect, End
from carpool_broker.core.model.session import UNDER_WAY
from carpool_broker.core.model.timer_kinds import BrokerTimers
from carpool_broker.core.requests.dispatch import Requests
from carpool_protocol.machine.stop_commands import DRAIN_S

BOUND: Final = "bound"
"""The one key of its timer."""


class Draining:
    """The last seconds of one broker."""

    def __init__(
        self, ledger: Ledger, requests: Requests, out: Callable[[AnyEffect], None], timers: BrokerTimers
    ) -> None:
        self._ledger = ledger
        self._requests = requests
        self._out = out
        self._timers = timers
        self._over = False

    def begin(self, now: float) -> None:
        """No call leaves from now on."""
        if not self._ledger.admission.draining:
            self._ledger.admission.draining = True
            self._timers.arm("drain", BOUND, now, DRAIN_S)
            self._requests.refuse_waiting()

    def look(self) -> None:
        """Something has happened: perhaps nothing is under way any more."""
        if not self._over and not any(owed.stage in UNDER_WAY for owed in self._ledger.calls.values()):
            self.end()

    def end(self) -> None:
        """Over: what is under way still is cut off."""
        if not self._over:
            self._over = True
            self._timers.disarm("drain", BOUND)
            self._requests.end(again=True)
            self._out(End())
