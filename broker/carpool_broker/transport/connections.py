"""The table of all connections of agents, and the output to them.

Owns the open connections, the connection of each session, and the bursts in which lines are written. A line
for a session goes to the session's own connection, or to its stream on a multiplexed connection. Owns also
the time at which carriers that keep lines hear which lines are settled (docs/decisions/0019), and the end
of a connection from the broker's side.

Knows nothing of: input, how a connection was accepted, what a line means.
"""

import logging
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

import trio

from carpool_broker.core.model.effects import NO_CALL
from carpool_broker.transport.delivery_log import DeliveryLog
from carpool_broker.transport.detached_sessions import DetachedSessions
from carpool_broker.transport.multiplexed import MultiplexedConnection
from carpool_broker.transport.resume import SessionResume
from carpool_broker.transport.socket_io import AgentIo
from carpool_broker.transport.streams import SessionStream
from carpool_protocol.carrier.attach_line import (
    Attach,
    WorkspaceChanged,
    ended_line,
    moved_line,
    settled_line,
    wanted_line,
)
from carpool_protocol.ids import ABSENT, AskId, CallId, Epoch, RawJson, SessionId
from carpool_protocol.runtime.poller import ReadySet
from carpool_protocol.runtime.pump import OUTPUTS_PER_FLUSH
from carpool_protocol.wire.lines import OverlongLine

log = logging.getLogger("carpool.broker")

DROPPED: Final = "carpool has dropped this agent: "
"""The start of the reason that a carrier is told."""
NO_ASK: Final = AskId("")
SENT_CHECK_S: Final = 0.01


class ConnectionListener(Protocol):
    """Receives the input of all connections (`agent_server.AgentServer`)."""

    def lines_received(self, agent: "AgentConnection", lines: list[bytes | OverlongLine]) -> None:
        """Lines arrived on this connection."""

    def connection_closed(self, agent: "AgentConnection") -> None:
        """The socket is closed, and no input is being handled."""

    def input_ended(self, agent: "AgentConnection") -> None:
        """The agent sends nothing more, and may still read."""

    def unfinished_line_changed(self, agent: "AgentConnection") -> None:
        """The unfinished line has grown or is complete."""

    def unread_changed(self, agent: "AgentConnection", unread_bytes: int) -> None:
        """This many bytes wait for the agent to read them."""


class AgentConnection:
    """A connection of a carrier or of a plain agent, with its state."""

    __slots__ = (
        "answered", "asked_at", "attach", "began_at", "carrier", "deaf", "delivery_log", "dropped",
        "early_lines", "environment_requests", "id", "io", "is_late", "is_scanning", "questions", "refusal",
        "returning", "seen_at", "seen_progress", "welcomed",
    )  # fmt: skip

    def __init__(
        self,
        session: SessionId,
        sock: socket.socket,
        ready: ReadySet,
        listener: ConnectionListener,
        *,
        written: list[CallId],
        now: float,
    ) -> None:
        """`written` takes the calls whose answers the socket has."""
        self.id = session
        self.attach: Attach | None = None
        self.carrier: MultiplexedConnection | None = None
        """Set on a multiplexed connection, which is not a session itself."""
        self.delivery_log: DeliveryLog | None = None
        """Set if the carrier keeps lines until they are settled."""
        self.returning: SessionResume | None = None
        """Set while the session resumes and lines that the carrier kept are still to come."""
        self.environment_requests: list[str] = []
        """Environment variables that the carrier was asked for and has not sent yet."""
        self.is_scanning = False
        """True while the workspace of the session is scanned."""
        self.is_late: list[str] = []
        """Variables that were still missing when the session was opened."""
        self.questions = 0
        """Requests for variables since the session opened, and an unanswered one from before."""
        self.answered = 0
        """How many of these the carrier has answered."""
        self.asked_at = now
        """Time of the last request for variables; infinite if the answer is no longer awaited."""
        self.early_lines: list[bytes | OverlongLine] = []
        """Lines that arrived before the environment."""
        self.began_at = now
        self.welcomed = False
        self.deaf = False
        """True once its input is ignored."""
        self.dropped = False
        """True if the broker ended the connection."""
        self.refusal = ""
        """The reason for which its agent is refused once its first line is read; empty: it is not."""
        self.seen_progress = 0
        self.seen_at = now
        """The last time at which the agent read, or had nothing to read."""
        self.io = AgentIo(
            sock,
            ready,
            on_lines=partial(listener.lines_received, self),
            on_closed=partial(listener.connection_closed, self),
            on_input_ended=partial(listener.input_ended, self),
            on_unfinished=partial(listener.unfinished_line_changed, self),
            on_unread=partial(listener.unread_changed, self),
            written=written,
        )

    def unread_s(self, now: float) -> float:
        """Seconds for which the agent has not read waiting output, as of the last checks."""
        if not self.io.is_blocked or self.io.progress != self.seen_progress:
            self.seen_progress = self.io.progress
            self.seen_at = now
        return now - self.seen_at


class Connections:
    """All connections of one broker, and the streams of multiplexed connections."""

    def __init__(
        self, before_flush: Callable[[], None] = lambda: None, clock: Callable[[], float] = trio.current_time
    ) -> None:
        """`before_flush` is called before anything leaves."""
        self._before_flush = before_flush
        self._clock = clock
        self.written: list[CallId] = []
        """Calls whose answers the sockets have taken. The code that reports them empties this list."""
        self.agents: dict[SessionId, AgentConnection] = {}
        self.streams: dict[SessionId, SessionStream] = {}
        """Sessions on multiplexed connections, also those whose carrier has died."""
        self.detached: DetachedSessions[SessionStream] = DetachedSessions(self.written.append)
        self._dirty: dict[SessionId, AgentConnection] = {}
        self._unflushed = 0

    def await_flush(self, agent: AgentConnection) -> None:
        """Flush this connection with the burst, although no line was written to it."""
        self._dirty[agent.id] = agent

    def carriers(self) -> list[int]:
        """Pids of carriers with a multiplexed connection."""
        pids = [agent.io.peer_pid() for agent in self.agents.values() if agent.carrier is not None]
        return [pid for pid in pids if pid]

    def peer_uid(self, session: SessionId) -> int | None:
        """The user of the process at the session's own socket; None on a multiplexed connection, or if the
        system does not tell.
        """
        agent = self.agents.get(session)
        return None if agent is None else agent.io.peer_uid()

    def set_supervisor_epoch(self, session: SessionId, epoch: Epoch) -> None:
        """Open and later requests of this session go to this supervisor."""
        agent = self.agents.get(session)
        if agent is not None and agent.delivery_log is not None:
            agent.delivery_log.set_supervisor_epoch(epoch)
            self._dirty[agent.id] = agent
        elif (stream := self.streams.get(session)) is not None:
            stream.set_supervisor_epoch(epoch)

    def request_environment(self, session: SessionId, names: list[str]) -> int:
        """As `workspace_moves.CarrierRequests.request_environment`."""
        agent = self.agents.get(session)
        if agent is None or agent.delivery_log is None or agent.attach is None or not agent.attach.tells:
            return 0
        if agent.io.input_ended:
            return 0
        agent.questions += 1
        agent.asked_at = self._clock()
        self.queue(agent, wanted_line(names))
        return agent.questions

    def announce_workspace(self, session: SessionId, change: WorkspaceChanged) -> None:
        """As `workspace_moves.CarrierRequests.announce_workspace`."""
        agent = self.agents.get(session)
        if agent is not None and agent.delivery_log is not None:
            self.queue(agent, moved_line(change))
        elif (stream := self.streams.get(session)) is not None:
            stream.announce_workspace(change)

    def set_stateful_servers(self, session: SessionId, servers: Sequence[str]) -> None:
        """The carrier remembers that this session may have state at these servers."""
        agent = self.agents.get(session)
        if agent is not None and agent.delivery_log is not None:
            agent.delivery_log.set_stateful_servers(servers)
            self._dirty[agent.id] = agent
        elif (stream := self.streams.get(session)) is not None:
            stream.set_stateful_servers(servers)

    def write(
        self,
        session: SessionId,
        line: bytes,
        about: RawJson = ABSENT,
        *,
        answers: bool = False,
        call: CallId = NO_CALL,
        ask: AskId = NO_ASK,
        withdrawn: AskId = NO_ASK,
    ) -> None:
        """Write a line to this agent; it leaves at `flush`. Does nothing if the agent is gone.

        `about`: the id of the agent's request that it belongs to. `answers`: it is the answer to that
        request, and to `call` if there is one, which is added to `written` once the socket has the line.
        `ask`: it is this ask. `withdrawn`: it withdraws this ask.
        """
        agent = self.agents.get(session)
        if agent is not None:
            delivery_log = agent.delivery_log
            if delivery_log is not None:
                if delivery_log.due and agent.returning is None:
                    # Before the line: the carrier must know the new part of the session before the agent
                    # does.
                    self.send_settled(agent, delivery_log)
                if not delivery_log.line_sent(line, about, answers=answers):
                    return
                if ask:
                    delivery_log.ask_sent(ask, about, line)
                elif withdrawn:
                    delivery_log.ask_withdrawn(withdrawn)
            # As `queue`, without the function call: all answers pass here.
            agent.io.write(line)
            if call:
                agent.io.mark_call(call)
            self._dirty[session] = agent
            self._unflushed += 1
            if self._unflushed >= OUTPUTS_PER_FLUSH:
                self.flush()
            return
        stream = self.streams.get(session)
        if stream is not None:
            stream.write(line, about, last=answers, call=call)

    def forget_recorded_call(self, session: SessionId, call: CallId) -> None:
        """Add this call to `written` once the socket has taken everything written to this agent so far."""
        agent = self.agents.get(session)
        if agent is not None:
            agent.io.mark_call(call)
        elif (stream := self.streams.get(session)) is not None:
            stream.forget_recorded_call(call)

    def queue(self, agent: AgentConnection, line: bytes | memoryview, call: CallId = NO_CALL) -> bool:
        """Write a line to this connection with the burst. `call`: the call that the line answers.

        True: the agent does not read now, so the line waits.
        """
        if line:
            agent.io.write(line)
        if call:
            agent.io.mark_call(call)
        self._dirty[agent.id] = agent
        self._unflushed += 1
        if self._unflushed >= OUTPUTS_PER_FLUSH:
            self.flush()
        return agent.io.is_blocked

    def flush(self) -> None:
        """Flush the burst of every connection."""
        self._unflushed = 0
        self._before_flush()
        if self._dirty:
            dirty, self._dirty = self._dirty, {}
            for agent in dirty.values():
                if agent.delivery_log is not None and agent.delivery_log.due and agent.returning is None:
                    self.send_settled(agent, agent.delivery_log)
                agent.io.flush()

    def drop(self, session: SessionId, why: str) -> None:
        """End this connection. Its sessions end once no input is being handled."""
        agent = self.agents.get(session)
        if agent is not None and not agent.io.closed:
            log.warning("%s is dropped: %s", session, why, extra={"session": session})
            agent.dropped = True
            if agent.delivery_log is not None:
                agent.io.write(ended_line(DROPPED + why))
            agent.io.flush()
            agent.io.close()

    async def wait_until_sent(self) -> None:
        """Wait until the operating system has taken all output."""
        while any(agent.io.unread_bytes for agent in self.agents.values()):  # noqa: ASYNC110 - rare, and short
            await trio.sleep(SENT_CHECK_S)

    def send_settled(self, agent: AgentConnection, delivery_log: DeliveryLog) -> None:
        """Tell the carrier which of the lines that it keeps are settled."""
        agent.io.write(settled_line(delivery_log.take_settled()))
        self._dirty[agent.id] = agent
