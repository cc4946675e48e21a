"""What an era adapter is: the supervisor's side of one instance's conversation, without I/O.

Bytes in, neutral events out; neutral commands in, lines out. One adapter per instance, made anew
with each incarnation. A wire id of the core is the JSON-RPC id of a call; an adapter's own requests
use string ids, so that the two can never meet.
"""

from collections.abc import Sequence
from typing import Protocol

from carpool_protocol.ids import RawJson, WireId
from carpool_protocol.lines import OverlongLine
from carpool_protocol.messages import Call
from carpool_supervisor.core.events import OwnEvent


class Taken:
    """What a burst of lines comes to. The parts of an adapter share one and append."""

    __slots__ = ("events", "lines")

    def __init__(self) -> None:
        self.events: list[OwnEvent] = []
        self.lines: list[bytes] = []
        """To be written at once."""


class Adapter(Protocol):
    """One instance's conversation."""

    def greet(self) -> bytes:
        """The line that opens the conversation."""

    def take(self, lines: Sequence[bytes | OverlongLine]) -> tuple[list[OwnEvent], list[bytes]]:
        """What these lines mean, and the lines to send back at once."""

    def call(self, wire: WireId, call: Call) -> bytes:
        """The line of a call."""

    def cancel(self, wire: WireId, reason: str) -> bytes:
        """The line that cancels a call."""

    def answer_ask(self, ask: RawJson, *, is_error: bool, body: RawJson) -> bytes:
        """The line that answers the server's own request of this id; `body` is the result or the error."""

    def ask_progress(self, token: RawJson, params: RawJson) -> bytes:
        """The line that tells how far a request of the server's is."""

    def level(self, level: str) -> bytes:
        """The line that sets the log level."""

    def watch(self, uri: str, *, on: bool) -> bytes:
        """The line that begins or ends a subscription."""

    def probe(self) -> bytes:
        """The line that a living server answers."""
