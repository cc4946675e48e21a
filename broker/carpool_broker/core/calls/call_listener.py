"""How a call ended, and what the ledger calls out while one of the stateless era is open.

Owns two shapes, which lie between `call_table` (which says them) and `input_required` (which acts on them).
Knows nothing of: what is done about it.
"""

from typing import Protocol

from msgspec import Struct

from carpool_broker.core.model.session import Owed
from carpool_protocol.ids import RawJson
from carpool_protocol.link.messages import Answered


class Outcome(Struct, frozen=True, gc=False):
    """How a call ended."""

    is_error: bool
    body: RawJson
    ttl_ms: int = -1
    public: bool = False
    task: str = ""
    """It goes on as this task, by our id."""


class Aftermath(Protocol):
    """What else follows from the course of a call of the stateless era."""

    def leaves(self, owed: Owed) -> None:
        """It is about to be sent; or its retry came, with another log level perhaps."""

    def closed(self, owed: Owed) -> None:
        """It is in the books no more."""

    def ended(self, owed: Owed, outcome: Outcome) -> None:
        """So it ended while it was parked: nobody can be answered now."""

    def sent_to_urls(self, owed: Owed, urls: tuple[RawJson, ...], now: float) -> bool:
        """The server wants its user to see these pages first. False: nobody can be asked to."""

    def task_began(self, owed: Owed, answer: Answered, now: float) -> Outcome | None:
        """Its server has begun a task. None: not for an agent that knows of such."""

    def task_lost(self, owed: Owed) -> None:
        """The task that it is about is not there any more."""
