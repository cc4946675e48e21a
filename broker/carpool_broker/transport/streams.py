"""One session on a multiplexed connection.

Owns the exchange of each line to its agent, and the lines while its HTTP door is dead. Knows nothing of: the
other streams and how one begins (`multiplexed`), the meaning of its messages.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from carpool_broker.core.model import events
from carpool_broker.core.model.effects import NO_CALL
from carpool_broker.era.exchange_ids import Exchanges, OneAgentExchanges, SharedExchanges
from carpool_broker.transport.detached_sessions import DetachedOutput
from carpool_broker.transport.resume import SessionResume
from carpool_protocol.carrier.attach_line import WorkspaceChanged
from carpool_protocol.carrier.streams import (
    ExchangeEnded,
    OpenStream,
    ServersStateful,
    SupervisorAssigned,
    control_line,
    frame_ends,
    frame_line,
)
from carpool_protocol.ids import CallId, Epoch, RawJson, SessionId

LARGE_LINE_BYTES: Final = 256 * 1024
"""Longer lines are written without a copy, with what stands before and after them in their frame."""


class WriteFrame(Protocol):
    """Takes a frame for the door, or its pieces in order."""

    def __call__(self, frame: bytes | memoryview, call: CallId = NO_CALL, /) -> bool:
        """Write a frame. Returns True if it waits, because the door does not read now.

        `call`: the call that it answers. An empty frame only marks the point: everything for the call was
        written before.
        """


class DoorOutput(Protocol):
    """The output of the connection to an HTTP door."""

    @property
    def write(self) -> WriteFrame:
        """See `WriteFrame`."""

    def line_waits(self, session: SessionId, size_bytes: int) -> None:
        """The last piece of a line of this size for this session was written, and waits."""


class SessionStream:
    """One session on a multiplexed connection."""

    __slots__ = (
        "_output", "_silent", "epoch", "exchanges", "held", "id", "number", "returning", "word",
    )  # fmt: skip

    def __init__(
        self, session: SessionId, number: int, opening: OpenStream, output: DoorOutput, epoch: Epoch
    ) -> None:
        self.id = session
        self.number = number
        self.word = opening
        """The message that opened it."""
        self.exchanges: Exchanges = SharedExchanges() if opening.kind == "shared" else OneAgentExchanges()
        self.epoch = epoch
        """Epoch of the supervisor that serves it."""
        self.returning: SessionResume | None = None
        """Set while the session resumes and messages that its door kept are still to come."""
        self.held: DetachedOutput | None = None
        """Set while its door is dead."""
        self._output = output
        self._silent: set[RawJson] = set()
        """Replayed requests: the first line about one is not sent to the agent."""

    def write(self, line: bytes, about: RawJson, *, last: bool, call: CallId) -> None:
        """Write a line to the agent. `about`: the request it belongs to; `last`: it is the answer, of
        `call`.
        """
        if self._silent and about in self._silent:
            self._silent.discard(about)
            # Exception: a listen that can no longer be granted. Its agent does not know that yet.
            if not (last and self.exchanges.shared):
                self.exchanges.exchange_of(about, last=last)
                return
        exchange = self.exchanges.exchange_of(about, last=last) if about else 0
        if self.held is not None:
            self.held.write(line, call, answers=last)
        elif len(line) < LARGE_LINE_BYTES:
            if self._output.write(frame_line(self.number, line, exchange), call):
                self._output.line_waits(self.id, len(line))
        else:
            head, tail = frame_ends(self.number, exchange)
            self._output.write(head)
            self._output.write(memoryview(line)[: len(line) - line.endswith(b"\n")])
            if self._output.write(tail, call):
                self._output.line_waits(self.id, len(line))

    def write_to_exchange(self, line: bytes, exchange: int) -> None:
        """Write a line to exactly this exchange."""
        self._output.write(frame_line(self.number, line, exchange))

    def request_cancelled(self, request: RawJson) -> None:
        """The agent has cancelled its own request: no answer comes."""
        exchange = self.exchanges.request_cancelled(request)
        if exchange:
            self._output.write(control_line(self.number, ExchangeEnded(exchange)))

    def request_replayed(self, meaning: events.BrokerEvent) -> None:
        """A message of the agent is replayed that an earlier broker has answered."""
        if isinstance(meaning, events.RequestCancelled | events.ListenResumed):
            return
        request = getattr(meaning, "id", None)
        if request is not None:
            self._silent.add(request)

    def forget_recorded_call(self, call: CallId) -> None:
        """Let the record forget this call when the door has everything written so far."""
        if self.held is not None:
            self.held.write(b"", call, answers=True)
        else:
            self._output.write(b"", call)

    def set_supervisor_epoch(self, epoch: Epoch) -> None:
        """All open and later requests go to this supervisor."""
        if epoch != self.epoch:
            self.epoch = epoch
            if self.held is None:
                self._output.write(control_line(self.number, SupervisorAssigned(epoch)))

    def announce_workspace(self, change: WorkspaceChanged) -> None:
        """Tell the door the session's new workspace."""
        if self.held is None:
            self._output.write(control_line(self.number, change))

    def set_stateful_servers(self, servers: Sequence[str]) -> None:
        """Tell the door the servers at which the session may have state.

        Only while the door lives: a door that claims the session cannot resume it at a later broker.
        """
        if self.held is None:
            self._output.write(control_line(self.number, ServersStateful([*servers])))

    def take_over(self, number: int, output: DoorOutput) -> list[bytes]:
        """Attach the session to another door. Returns the lines that were kept meanwhile."""
        held, self.held = self.held, None
        self.number, self._output = number, output
        return [] if held is None else held.lines
