"""What connections need of the process that they are in.

An interface and no more: `inbound` implements it, and tests have their own. It is a file of its own because
both `attach` and `agent_server` need it, and one imports the other.
"""

from typing import Protocol

from carpool_broker.transport.delivery_log import Passage
from carpool_broker.transport.multiplexed import StreamHost
from carpool_broker.transport.resume import Returning
from carpool_protocol.carrier.attach import Attach
from carpool_protocol.ids import SessionId
from carpool_protocol.wire.lines import OverlongLine


class Host(StreamHost, Protocol):
    """What the door needs."""

    def wanted_variables(self, attach: Attach) -> list[str]:
        """Names of the environment variables the carrier is asked for."""

    def take(
        self, session: SessionId, lines: list[bytes | OverlongLine], passage: Passage | None = None
    ) -> None:
        """Lines of the agent. Where its carrier keeps, `passage` hears of each what it means."""

    def may_return(self) -> bool:
        """Whether sessions of earlier brokers may still come back."""

    def take_back(
        self,
        session: SessionId,
        lines: list[bytes | OverlongLine],
        passage: Passage,
        returning: Returning,
    ) -> list[bytes | OverlongLine]:
        """Lines that a carrier has kept, until `returning` is over; those behind them."""

    def resumed(self, session: SessionId, returning: Returning, passage: Passage | None = None) -> None:
        """All that the carrier has kept is there."""

    def awaits_environment(self, session: SessionId, names: list[str]) -> None:
        """The carrier of an agent that is welcome was asked for these variables before that, and is late. Its
        answer counts as that to question 1.
        """

    def environment_came(self, session: SessionId, question: int, environment: dict[str, str]) -> None:
        """More variables of an agent that is welcome, asked for by this question."""

    def unread(self, session: SessionId, unread_bytes: int) -> None:
        """So much waits for the agent to read; 0: nothing does any more."""
