"""One session on a carrier with many.

Owns on which exchange each line to its agent travels, and what is said while its door is dead.
Knows nothing of: which streams there are and how one begins (`multiplexed`), what its messages mean.
"""

from collections.abc import Sequence
from typing import Protocol

from carpool_broker.core.model import events
from carpool_broker.core.model.effects import NO_CALL
from carpool_broker.era.exchange_ids import Exchanges, OneAgentExchanges, SharedExchanges
from carpool_broker.transport.detached_sessions import DetachedOutput
from carpool_broker.transport.resume import SessionResume
from carpool_protocol.carrier.attach import WorkspaceChanged
from carpool_protocol.carrier.streams import (
    ExchangeEnded,
    OpenStream,
    ServersStateful,
    SupervisorAssigned,
    control_line,
    frame_line,
)
from carpool_protocol.ids import CallId, Epoch, RawJson, SessionId


class WriteFrame(Protocol):
    """Takes a frame for the door."""

    def __call__(self, frame: bytes, call: CallId = NO_CALL, /) -> None:
        """`call`: the frame is the answer to it; an empty one is none, and what went before was all."""


class SessionStream:
    """One session on a carrier."""

    __slots__ = (
        "_silent", "_write", "epoch", "exchanges", "held", "id", "number", "returning", "word",
    )  # fmt: skip

    def __init__(
        self, session: SessionId, number: int, opening: OpenStream, write: WriteFrame, epoch: Epoch
    ) -> None:
        self.id = session
        self.number = number
        self.word = opening
        """How it was opened."""
        self.exchanges: Exchanges = SharedExchanges() if opening.kind == "shared" else OneAgentExchanges()
        self.epoch = epoch
        """Of the supervisor that serves it."""
        self.returning: SessionResume | None = None
        """It was here at an earlier broker, and not all that its door has kept has come."""
        self.held: DetachedOutput | None = None
        """Its door has died."""
        self._write = write
        self._silent: set[RawJson] = set()
        """Requests that are replayed: the first line about one is not for the agent."""

    def write(self, line: bytes, about: RawJson, *, last: bool, call: CallId) -> None:
        """A line to the agent. `about`: the request it belongs to; `last`: it is the answer, of `call`."""
        if self._silent and about in self._silent:
            self._silent.discard(about)
            # A listen that cannot be had any more: its agent does not know that.
            if not (last and self.exchanges.shared):
                self.exchanges.exchange_of(about, last=last)
                return
        exchange = self.exchanges.exchange_of(about, last=last) if about else 0
        if self.held is not None:
            self.held.write(line, call, answers=last)
        elif call:
            self._write(frame_line(self.number, line, exchange), call)
        else:
            self._write(frame_line(self.number, line, exchange))

    def write_to_exchange(self, line: bytes, exchange: int) -> None:
        """A line for this very exchange."""
        self._write(frame_line(self.number, line, exchange))

    def request_cancelled(self, request: RawJson) -> None:
        """The agent has cancelled this request of its own: no answer comes."""
        exchange = self.exchanges.request_cancelled(request)
        if exchange:
            self._write(control_line(self.number, ExchangeEnded(exchange)))

    def request_replayed(self, meaning: events.BrokerEvent) -> None:
        """Something that its agent said at an earlier broker is said again, and was answered there."""
        if isinstance(meaning, events.RequestCancelled | events.ListenResumed):
            return
        request = getattr(meaning, "id", None)
        if request is not None:
            self._silent.add(request)

    def forget_recorded_call(self, call: CallId) -> None:
        """The record may forget this call when all that was said so far is with the door."""
        if self.held is not None:
            self.held.write(b"", call, answers=True)
        else:
            self._write(b"", call)

    def set_supervisor_epoch(self, epoch: Epoch) -> None:
        """All that is open, and all that comes, goes to this supervisor."""
        if epoch != self.epoch:
            self.epoch = epoch
            if self.held is None:
                self._write(control_line(self.number, SupervisorAssigned(epoch)))

    def announce_workspace(self, change: WorkspaceChanged) -> None:
        """Its session is in another workspace."""
        if self.held is None:
            self._write(control_line(self.number, change))

    def set_stateful_servers(self, servers: Sequence[str]) -> None:
        """Its session may have state there. (To a door that takes it over it is said no more: that does not
        bring it back to a later broker.)
        """
        if self.held is None:
            self._write(control_line(self.number, ServersStateful([*servers])))

    def take_over(self, number: int, write: WriteFrame) -> list[bytes]:
        """Another door has it now. What was said meanwhile."""
        held, self.held = self.held, None
        self.number, self._write = number, write
        return [] if held is None else held.lines
