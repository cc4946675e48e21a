"""How a call ended, and what the ledger calls out while one of the stateless era is open.

Owns two shapes, which lie between `call_table` (which says them) and `input_required` (which acts on them).
Knows nothing of: what is done about it.
"""

from typing import Protocol

from msgspec import Struct

from carpool_broker.core.model.session import OpenCall
from carpool_protocol.ids import RawJson
from carpool_protocol.link.messages import CallAnswered


class CallResult(Struct, frozen=True, gc=False):
    """How a call ended."""

    is_error: bool
    body: RawJson
    ttl_ms: int = -1
    public: bool = False
    task: str = ""
    """It goes on as this task, by our id."""


class StatelessCallListener(Protocol):
    """What else follows from the course of a call of the stateless era."""

    def call_leaving(self, open_call: OpenCall) -> None:
        """It is about to be sent; or its retry came, with another log level perhaps."""

    def call_closed(self, open_call: OpenCall) -> None:
        """It is in the books no more."""

    def parked_call_ended(self, open_call: OpenCall, outcome: CallResult) -> None:
        """So it ended while it was parked: nobody can be answered now."""

    def urls_required(self, open_call: OpenCall, urls: tuple[RawJson, ...], now: float) -> bool:
        """The server wants its user to see these pages first. False: nobody can be asked to."""

    def task_created(self, open_call: OpenCall, answer: CallAnswered, now: float) -> CallResult | None:
        """Its server has begun a task. None: not for an agent that knows of such."""

    def task_lost(self, open_call: OpenCall) -> None:
        """The task that it is about is not there any more."""
