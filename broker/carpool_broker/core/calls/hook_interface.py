"""What the ledger calls out where hooks may have a say.

Owns a shape that lies between `call_table` (which says it) and `hook_points` (which acts on it).
Knows nothing of: which hooks there are, what is done about it.
"""

from typing import Protocol

from carpool_broker.core.model.session import Owed
from carpool_protocol.link.messages import Answered


class HookPoints(Protocol):
    """What hooks do in the course of a call."""

    def holds(self, owed: Owed, now: float) -> bool:
        """It is about to leave. True: hooks look at it first, and it is said again when they have let it pass
        (`Admission.proceed`).
        """

    def takes(self, owed: Owed, answer: Answered, now: float) -> bool:
        """Its server has answered. True: hooks look at that first, and it is said again when they have."""

    def matches(self, owed: Owed) -> bool:
        """Whether any hook is to look at it, or at its answer."""

    def sees_answer(self, owed: Owed) -> bool:
        """Whether any hook is to look at its answer."""

    def ended(self, owed: Owed, slug: str) -> None:
        """It ends with an error of ours. Its agent hears that whatever hooks say."""

    def closed(self, owed: Owed) -> None:
        """It is in the books no more."""
