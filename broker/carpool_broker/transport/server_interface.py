"""What connections need of the process that they are in.

An interface and no more: `inbound` implements it, and tests have their own. It is a file of its own because
both `attach` and `agent_server` need it, and one imports the other.
"""

from typing import Protocol

from carpool_broker.transport.delivery_log import DeliveryLog
from carpool_broker.transport.multiplexed import StreamHost
from carpool_broker.transport.resume import SessionResume
from carpool_protocol.carrier.attach import Attach
from carpool_protocol.ids import SessionId
from carpool_protocol.wire.lines import OverlongLine


class AgentServerHost(StreamHost, Protocol):
    """What the door needs."""

    def wanted_variables(self, attach: Attach) -> list[str]:
        """Names of the environment variables the carrier is asked for."""

    def lines_received(
        self, session: SessionId, lines: list[bytes | OverlongLine], delivery_log: DeliveryLog | None = None
    ) -> None:
        """Lines of the agent. Where its carrier keeps, `delivery_log` hears of each what it means."""

    def may_resume(self) -> bool:
        """Whether sessions of earlier brokers may still come back."""

    def resume_lines(
        self,
        session: SessionId,
        lines: list[bytes | OverlongLine],
        delivery_log: DeliveryLog,
        resume: SessionResume,
    ) -> list[bytes | OverlongLine]:
        """Lines that a carrier has kept, until `resume` is over; those behind them."""

    def session_resumed(
        self, session: SessionId, resume: SessionResume, delivery_log: DeliveryLog | None = None
    ) -> None:
        """All that the carrier has kept is there."""

    def environment_requested(self, session: SessionId, names: list[str]) -> None:
        """The carrier of an agent that is welcome was asked for these variables before that, and is late. Its
        answer counts as that to question 1.
        """

    def environment_received(self, session: SessionId, question: int, environment: dict[str, str]) -> None:
        """More variables of an agent that is welcome, asked for by this question."""

    def unread_changed(self, session: SessionId, unread_bytes: int) -> None:
        """So much waits for the agent to read; 0: nothing does any more."""
