"""The interface between connections and the broker process.

It has no logic: `inbound` implements it, and tests have their own. A file of its own, because both
`attach_dialogue` and `agent_server` need it, and one imports the other.
"""

from typing import Protocol

from carpool_broker.transport.delivery_log import DeliveryLog
from carpool_broker.transport.multiplexed import StreamHost
from carpool_broker.transport.resume import SessionResume
from carpool_protocol.carrier.attach_line import Attach
from carpool_protocol.ids import SessionId
from carpool_protocol.wire.lines import OverlongLine


class AgentServerHost(StreamHost, Protocol):
    """The part of the process that the agent server needs."""

    def wanted_variables(self, attach: Attach) -> list[str]:
        """Names of the environment variables that the carrier is asked for."""

    def attach_note(self, attach: Attach) -> str:
        """A sentence for the carrier, such as that carpool runs with another configuration; empty: none."""

    def lines_received(
        self, session: SessionId, lines: list[bytes | OverlongLine], delivery_log: DeliveryLog | None = None
    ) -> None:
        """Handle lines of an agent. `delivery_log`: records the meaning of each, if the carrier keeps
        lines.
        """

    def input_ended(self, session: SessionId) -> None:
        """The agent sends nothing more, and may still read answers."""

    def owes_answers(self, session: SessionId) -> bool:
        """True while a request of this session has no answer yet."""

    def may_resume(self) -> bool:
        """True while sessions of earlier brokers may resume."""

    def resume_lines(
        self,
        session: SessionId,
        lines: list[bytes | OverlongLine],
        delivery_log: DeliveryLog,
        resume: SessionResume,
    ) -> list[bytes | OverlongLine]:
        """Handle repeated lines of a carrier until `resume` is complete. Returns the lines behind them."""

    def session_resumed(
        self, session: SessionId, resume: SessionResume, delivery_log: DeliveryLog | None = None
    ) -> None:
        """All lines that the carrier kept have come."""

    def environment_requested(self, session: SessionId, names: list[str]) -> None:
        """The session was opened before its carrier answered a request for these variables.

        The late answer counts as the one to request 1.
        """

    def environment_received(self, session: SessionId, question: int, environment: dict[str, str]) -> None:
        """More variables of an open session, requested by the request with this number."""
