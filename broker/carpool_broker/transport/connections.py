"""The table of all connections, and all that is written to them.

Owns who is connected, which session is on which connection, and the bursts in which lines leave. A line for a
session goes to its own connection, or to its stream of a connection with many. Owns also when carriers that
keep are told what is settled (docs/decisions/0019), and how a connection is ended from our side.

Knows nothing of: what comes in, where a connection comes from, what a line means.
"""

import logging
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

import trio

from carpool_broker.core.model.effects import NO_CALL
from carpool_broker.transport.delivery_log import Passage
from carpool_broker.transport.detached_sessions import Lingering
from carpool_broker.transport.multiplexed import Carrier
from carpool_broker.transport.resume import Returning
from carpool_broker.transport.socket_io import AgentIo
from carpool_broker.transport.streams import Stream
from carpool_protocol.carrier.attach import Attach, Moved, ended_line, moved_line, settled_line, wanted_line
from carpool_protocol.ids import ABSENT, AskId, CallId, Epoch, RawJson, SessionId
from carpool_protocol.runtime.poller import ReadySet
from carpool_protocol.runtime.pump import PIECE
from carpool_protocol.wire.lines import OverlongLine

log = logging.getLogger("carpool.broker")

NO_ASK: Final = AskId("")
HEARD_LOOK_S: Final = 0.01
UNREAD_CAP_BYTES: Final = 256 * 1024 * 1024
"""A carrier of many that leaves more unread is dropped at once: it would take the memory of all others."""


class Listener(Protocol):
    """What is done with all that comes in on connections (`agent_server.Door`)."""

    def took(self, agent: "Agent", lines: list[bytes | OverlongLine]) -> None:
        """Lines of this connection."""

    def left(self, agent: "Agent") -> None:
        """Its socket is closed, and nothing is under way."""

    def grew(self, agent: "Agent") -> None:
        """Its unfinished line grew, or came to its end."""

    def unread(self, agent: "Agent", unread_bytes: int) -> None:
        """So much waits for its agent to read; 0: nothing does any more."""


class Agent:
    """One connection."""

    __slots__ = (
        "answered", "asked", "asked_at", "attach", "began_at", "carrier", "deaf", "dropped", "id", "io",
        "kept", "late", "line_at", "line_bytes", "looking", "passage", "questions", "returning", "seen_at",
        "seen_progress", "welcomed",
    )  # fmt: skip

    def __init__(
        self,
        session: SessionId,
        sock: socket.socket,
        ready: ReadySet,
        listener: Listener,
        *,
        written: list[CallId],
        now: float,
    ) -> None:
        """`written` takes the calls whose answers the socket has."""
        self.id = session
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
        self.deaf = False
        """Nothing that it says from now on is taken."""
        self.dropped = False
        """It ended by our will, not by its own."""
        self.seen_progress = 0
        self.seen_at = now
        """When the agent was last seen to read, or had nothing to read."""
        self.line_bytes = 0
        """Length of its unfinished line at the last look."""
        self.line_at = now
        """When that was last seen to grow."""
        self.io = AgentIo(
            sock,
            ready,
            on_lines=partial(listener.took, self),
            on_closed=partial(listener.left, self),
            on_unfinished=partial(listener.grew, self),
            on_unread=partial(listener.unread, self),
            written=written,
        )

    def unread_s(self, now: float) -> float:
        """For how long it has not read what waits for it, seen from look to look."""
        if not self.io.blocked or self.io.progress != self.seen_progress:
            self.seen_progress = self.io.progress
            self.seen_at = now
        return now - self.seen_at


class Connections:
    """All connections of one broker, and the streams of those with many sessions."""

    def __init__(
        self, before_flush: Callable[[], None] = lambda: None, clock: Callable[[], float] = trio.current_time
    ) -> None:
        """`before_flush` is called before anything leaves."""
        self._before_flush = before_flush
        self._clock = clock
        self.written: list[CallId] = []
        """Calls whose answers are with their carriers. Whoever reports them empties this."""
        self.agents: dict[SessionId, Agent] = {}
        self.streams: dict[SessionId, Stream] = {}
        """Sessions that come through a carrier with many, or did until it died."""
        self.lingering: Lingering[Stream] = Lingering(self.written.append)
        self._dirty: dict[SessionId, Agent] = {}
        self._unflushed = 0

    def await_flush(self, agent: Agent) -> None:
        """Something is to be told to this connection with the burst, though nothing is written."""
        self._dirty[agent.id] = agent

    def carriers(self) -> list[int]:
        """Pids of those that carry many sessions each."""
        pids = [agent.io.peer_pid() for agent in self.agents.values() if agent.carrier is not None]
        return [pid for pid in pids if pid]

    def served_by(self, session: SessionId, epoch: Epoch) -> None:
        """All that is open of this session, and all that comes, goes to this supervisor."""
        agent = self.agents.get(session)
        if agent is not None and agent.passage is not None:
            agent.passage.served_by(epoch)
            self._dirty[agent.id] = agent
        elif (stream := self.streams.get(session)) is not None:
            stream.served_by(epoch)

    def ask_environment(self, session: SessionId, names: list[str]) -> int:
        """See `workspace_moves.Carriers`."""
        agent = self.agents.get(session)
        if agent is None or agent.passage is None or agent.attach is None or not agent.attach.tells:
            return 0
        agent.questions += 1
        agent.asked_at = self._clock()
        self.queue(agent, wanted_line(names))
        return agent.questions

    def tell_moved(self, session: SessionId, moved: Moved) -> None:
        """See `workspace_moves.Carriers`."""
        agent = self.agents.get(session)
        if agent is not None and agent.passage is not None:
            self.queue(agent, moved_line(moved))
        elif (stream := self.streams.get(session)) is not None:
            stream.moved(moved)

    def stateful_at(self, session: SessionId, servers: Sequence[str]) -> None:
        """Its carrier is to remember that this session may have state there."""
        agent = self.agents.get(session)
        if agent is not None and agent.passage is not None:
            agent.passage.stateful_at(servers)
            self._dirty[agent.id] = agent
        elif (stream := self.streams.get(session)) is not None:
            stream.stateful_at(servers)

    def write(
        self,
        session: SessionId,
        line: bytes,
        about: RawJson = ABSENT,
        *,
        answers: bool = False,
        call: CallId = NO_CALL,
        ask: AskId = NO_ASK,
    ) -> None:
        """A line for this agent; it leaves at `flush`. Nothing happens when the agent is gone.

        `about`: the id of the agent's request that it belongs to; `answers`: it is the answer to that, and to
        `call` where there is one (which is in `written` once the socket has it). `ask`: it is that question.
        """
        agent = self.agents.get(session)
        if agent is not None:
            passage = agent.passage
            if passage is not None:
                if passage.due and agent.returning is None:
                    # Before the line: what that makes a part of the session is told before the agent has it.
                    self.tell_settled(agent, passage)
                if not passage.goes(line, about, answers=answers):
                    return
                if ask:
                    passage.asked(ask, about, line)
            # As `_queue`, without the call: all answers pass here.
            agent.io.write(line)
            if call:
                agent.io.mark(call)
            self._dirty[session] = agent
            self._unflushed += 1
            if self._unflushed >= PIECE:
                self.flush()
            return
        stream = self.streams.get(session)
        if stream is not None:
            stream.write(line, about, last=answers, call=call)

    def let_go(self, session: SessionId, call: CallId) -> None:
        """This call is in `written` once all that was said to this agent so far is with its carrier."""
        agent = self.agents.get(session)
        if agent is not None:
            agent.io.mark(call)
        elif (stream := self.streams.get(session)) is not None:
            stream.let_go(call)

    def queue(self, agent: Agent, line: bytes, call: CallId = NO_CALL) -> None:
        """A line for this connection; it leaves with the burst. `call`: the line is the answer to it."""
        if line:
            agent.io.write(line)
        if call:
            agent.io.mark(call)
        self._dirty[agent.id] = agent
        self._unflushed += 1
        if self._unflushed >= PIECE:
            self.flush()

    def flush(self) -> None:
        """Every agent gets its burst."""
        self._unflushed = 0
        self._before_flush()
        if self._dirty:
            dirty, self._dirty = self._dirty, {}
            for agent in dirty.values():
                if agent.passage is not None and agent.passage.due and agent.returning is None:
                    self.tell_settled(agent, agent.passage)
                agent.io.flush()
                if agent.carrier is not None and agent.io.unread_bytes > UNREAD_CAP_BYTES:
                    self.drop(agent.id, f"it has not read {UNREAD_CAP_BYTES} bytes")

    def drop(self, session: SessionId, why: str) -> None:
        """End this connection. Its sessions end when everything under way is over."""
        agent = self.agents.get(session)
        if agent is not None and not agent.io.closed:
            log.warning("%s is dropped: %s", session, why)
            agent.dropped = True
            if agent.passage is not None:
                agent.io.write(ended_line(f"carpool has dropped this agent: {why}"))
            agent.io.flush()
            agent.io.close()

    async def heard_out(self) -> None:
        """Until all that was said is with the system that carries it."""
        while any(agent.io.unread_bytes for agent in self.agents.values()):  # noqa: ASYNC110 - rare, and short
            await trio.sleep(HEARD_LOOK_S)

    def tell_settled(self, agent: Agent, passage: Passage) -> None:
        """Its carrier hears which of the lines that it keeps are done with."""
        agent.io.write(settled_line(passage.settle()))
        self._dirty[agent.id] = agent
