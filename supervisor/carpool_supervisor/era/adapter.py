"""The interface of an era adapter: the supervisor's side of one instance's conversation, without I/O.

Bytes in, neutral events out; neutral commands in, lines out. Each incarnation of an instance gets a new
adapter. The core's wire id is the JSON-RPC id of a call. An adapter's own requests use string ids, so the two
never collide. A command may write nothing (`b""`) or several lines, and it may end a call that the server no
longer knows (`take_events`).
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from carpool_protocol.ids import RawJson, WireId
from carpool_protocol.link.messages import Call
from carpool_protocol.wire.lines import OverlongLine
from carpool_supervisor.core.model.events import OwnEvent


class Decoded:
    """The events and lines that result from one burst of input. All parts of an adapter append to the same
    one.
    """

    __slots__ = ("events", "lines")

    def __init__(self) -> None:
        self.events: list[OwnEvent] = []
        self.lines: list[bytes] = []
        """Lines to write at once."""

    def add_line(self, line: bytes) -> None:
        """Add a line to write; an empty line adds nothing."""
        if line:
            self.lines.append(line)


class EraAdapter(Protocol):
    """One instance's conversation."""

    @property
    def has_greeted(self) -> bool:
        """True once the server has answered the greeting of this era; its lists may still be unread."""

    def greeting_line(self) -> bytes:
        """The line that opens the conversation."""

    def feed(self, lines: Sequence[bytes | OverlongLine]) -> tuple[list[OwnEvent], list[bytes]]:
        """Read lines of the server: returns the events they mean and the lines to send back at once."""

    def call_line(self, wire_id: WireId, call: Call) -> bytes:
        """The line of a call."""

    def cancel_line(self, wire_id: WireId, reason: str) -> bytes:
        """The line that cancels a call."""

    def ask_answer_line(self, ask: RawJson, *, is_error: bool, body: RawJson) -> bytes:
        """The line that answers the ask with this id; `body` is the result or the error."""

    def retry_line(self, wire_id: WireId) -> bytes:
        """The line that sends a call again, once all input that the server required is there."""

    def ask_progress_line(self, token: RawJson, params: RawJson) -> bytes:
        """The line that reports progress of an ask to the server."""

    def level_line(self, level: str) -> bytes:
        """The line that sets the log level."""

    def subscriptions_line(self, add: Iterable[str], drop: Iterable[str]) -> bytes:
        """The lines that begin and end subscriptions."""

    def task_subscriptions_line(self, tasks: Sequence[str]) -> bytes:
        """The lines that subscribe to the progress of exactly these tasks."""

    def cancel_task_line(self, task: str) -> bytes:
        """The line that cancels a task whose agent will not return for it."""

    def probe_line(self, number: int) -> bytes:
        """The line of a probe; a living server answers it, and `ProbeAnswered` has its number."""

    @property
    def open_list_request(self) -> tuple[RawJson, str]:
        """The id and the method of the open list request; both are empty if none is open."""

    @property
    def is_reading(self) -> bool:
        """True while a long list answer is only partly read; `read_on` reads its next slice."""

    def read_on(self) -> tuple[list[OwnEvent], list[bytes]]:
        """Read the next slice of that answer. Returns the same as `feed`."""

    def list_timed_out(self, after_s: float) -> tuple[list[OwnEvent], list[bytes]]:
        """Give up the open list request after this time. Returns the same as `feed`."""

    def relist_line(self, *, is_calm: bool = False) -> bytes:
        """The line that begins to read the server's lists again. `is_calm`: after it a few changes are
        followed at once.
        """

    def take_events(self) -> Sequence[OwnEvent]:
        """The events of calls that commands have ended without an answer of the server."""

    def close(self) -> None:
        """End the conversation; nothing calls the adapter afterwards. Its parts drop their references to each
        other, because only objects outside reference cycles are freed at once.
        """
