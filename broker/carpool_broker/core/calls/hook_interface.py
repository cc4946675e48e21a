"""What the ledger calls out where hooks may have a say.

Owns a shape that lies between `call_table` (which says it) and `hook_points` (which acts on it).
Knows nothing of: which hooks there are, what is done about it.
"""

from typing import Protocol

from carpool_broker.core.model.session import OpenCall
from carpool_protocol.link.messages import CallAnswered


class HookPoints(Protocol):
    """What hooks do in the course of a call."""

    def hold_call(self, open_call: OpenCall, now: float) -> bool:
        """It is about to leave. True: hooks look at it first, and it is said again when they have let it pass
        (`Admission.proceed`).
        """

    def hold_answer(self, open_call: OpenCall, answer: CallAnswered, now: float) -> bool:
        """Its server has answered. True: hooks look at that first, and it is said again when they have."""

    def concerns(self, open_call: OpenCall) -> bool:
        """Whether any hook is to look at it, or at its answer."""

    def concerns_answer(self, open_call: OpenCall) -> bool:
        """Whether any hook is to look at its answer."""

    def call_failed(self, open_call: OpenCall, slug: str) -> None:
        """It ends with an error of ours. Its agent hears that whatever hooks say."""

    def call_closed(self, open_call: OpenCall) -> None:
        """It is in the books no more."""
