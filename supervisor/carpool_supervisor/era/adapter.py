"""What an era adapter is: the supervisor's side of one instance's conversation, without I/O.

Bytes in, neutral events out; neutral commands in, lines out. One adapter per instance, made anew
with each incarnation. A wire id of the core is the JSON-RPC id of a call; an adapter's own requests
use string ids, so that the two can never meet. A command may have nothing to write (`b""`), or several
lines at once, and it may end a call that the server knows nothing of any more (`take_events`).
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from carpool_protocol.ids import RawJson, WireId
from carpool_protocol.link.messages import Call
from carpool_protocol.wire.lines import OverlongLine
from carpool_supervisor.core.model.events import OwnEvent


class Decoded:
    """What a burst of lines comes to. The parts of an adapter share one and append."""

    __slots__ = ("events", "lines")

    def __init__(self) -> None:
        self.events: list[OwnEvent] = []
        self.lines: list[bytes] = []
        """To be written at once."""

    def add_line(self, line: bytes) -> None:
        """Another line; empty for none."""
        if line:
            self.lines.append(line)


class EraAdapter(Protocol):
    """One instance's conversation."""

    @property
    def has_greeted(self) -> bool:
        """The server has answered the greeting as one of this era does; its lists may still be read."""

    def greeting_line(self) -> bytes:
        """The line that opens the conversation."""

    def feed(self, lines: Sequence[bytes | OverlongLine]) -> tuple[list[OwnEvent], list[bytes]]:
        """What these lines mean, and the lines to send back at once."""

    def call_line(self, wire_id: WireId, call: Call) -> bytes:
        """The line of a call."""

    def cancel_line(self, wire_id: WireId, reason: str) -> bytes:
        """The line that cancels a call."""

    def ask_answer_line(self, ask: RawJson, *, is_error: bool, body: RawJson) -> bytes:
        """The line that answers what the server asked under this id; `body` is the result or the error."""

    def retry_line(self, wire_id: WireId) -> bytes:
        """The line that says a call again, where all that the server wanted first is there."""

    def ask_progress_line(self, token: RawJson, params: RawJson) -> bytes:
        """The line that tells how far a request of the server's is."""

    def level_line(self, level: str) -> bytes:
        """The line that sets the log level."""

    def subscriptions_line(self, add: Iterable[str], drop: Iterable[str]) -> bytes:
        """The lines that begin and end subscriptions."""

    def task_subscriptions_line(self, tasks: Sequence[str]) -> bytes:
        """The lines after which it tells how far these tasks are, and of no others."""

    def cancel_task_line(self, task: str) -> bytes:
        """The line that cancels a task which nobody comes back for."""

    def probe_line(self) -> bytes:
        """The line that a living server answers."""

    @property
    def open_list_request(self) -> tuple[RawJson, str]:
        """The id and the method of the list request that is out; both empty for none."""

    @property
    def is_reading(self) -> bool:
        """An answer with a list is longer than what is read in one turn: `read_on` in the next one."""

    def read_on(self) -> tuple[list[OwnEvent], list[bytes]]:
        """The next slice of that answer. As `take`."""

    def list_timed_out(self, after_s: float) -> Sequence[OwnEvent]:
        """That request is given up after so long. What follows from that; nothing is written."""

    def relist_line(self) -> bytes:
        """The line that begins to read its lists again."""

    def take_events(self) -> Sequence[OwnEvent]:
        """What commands since the last time have ended without the server's word."""

    def close(self) -> None:
        """The conversation is over: nothing is asked of the adapter any more. Its parts let go of each other,
        because what stands in no circle is freed at once, and all else only when the collector comes.
        """
