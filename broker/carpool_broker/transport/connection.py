"""One connection of the door, as far as the door itself must know it.

Owns the facts only; what becomes of them is `agent_server`'s and `receive_budget`'s.
"""

from carpool_broker.transport.delivery_log import Passage
from carpool_broker.transport.multiplexed import Carrier
from carpool_broker.transport.resume import Returning
from carpool_broker.transport.socket_io import AgentIo
from carpool_protocol.carrier.attach import Attach
from carpool_protocol.ids import SessionId
from carpool_protocol.wire.lines import OverlongLine


class Agent:
    """One connection."""

    __slots__ = (
        "answered", "asked", "asked_at", "attach", "began_at", "carrier", "dropped", "id", "io", "kept",
        "late", "line_at", "line_bytes", "looking", "passage", "questions", "returning", "seen_at",
        "seen_progress", "welcomed",
    )  # fmt: skip

    def __init__(self, session: SessionId, now: float) -> None:
        self.id = session
        self.io: AgentIo
        self.attach: Attach | None = None
        self.carrier: Carrier | None = None
        """Where it carries many sessions; then it is none itself."""
        self.passage: Passage | None = None
        """Where its carrier keeps what passes."""
        self.returning: Returning | None = None
        """It was here at an earlier broker, and not all that its carrier has kept has come."""
        self.asked: list[str] = []
        """Variables that the carrier has been asked for and has not said yet."""
        self.looking = False
        """It waits until it is known what is where its session wants to be."""
        self.late: list[str] = []
        """Variables that its carrier had not said when it was welcomed all the same."""
        self.questions = 0
        """So often its carrier was asked for variables since it was welcomed, or before that in vain."""
        self.answered = 0
        """So many of these it has answered."""
        self.asked_at = now
        """The last time; never, once nobody waits for that any more."""
        self.kept: list[bytes | OverlongLine] = []
        """Lines that came before the environment."""
        self.began_at = now
        self.welcomed = False
        self.dropped = False
        """It ended by our will, not by its own."""
        self.seen_progress = 0
        self.seen_at = now
        """When the agent was last seen to read, or had nothing to read."""
        self.line_bytes = 0
        """Length of its unfinished line at the last look."""
        self.line_at = now
        """When that was last seen to grow."""

    def unread_s(self, now: float) -> float:
        """For how long it has not read what waits for it, seen from look to look."""
        if not self.io.blocked or self.io.progress != self.seen_progress:
            self.seen_progress = self.io.progress
            self.seen_at = now
        return now - self.seen_at
