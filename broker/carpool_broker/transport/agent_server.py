"""The door: the Unix socket that agents come in through, and who is on it.

Owns the connections, and when the sessions of one end: between two bursts (docs/decisions/0031). Owns the
patience with agents that do not read (rule 3) or do not say their environment, and when carriers that keep
are told what is settled and that an end is meant (docs/decisions/0019). What a connection says before it is
welcome is `attach`'s; what the lines of one with many sessions mean is `multiplexed`'s.

Knows nothing of: what a line means, but for a carrier's word about its environment; configuration, calls.
"""

import logging
import math
import socket
from collections.abc import Callable, Sequence
from typing import Final

import trio

from carpool_broker.core.model.effects import NO_CALL
from carpool_broker.transport.attach import Attaching
from carpool_broker.transport.connection import Agent
from carpool_broker.transport.delivery_log import Passage
from carpool_broker.transport.detached_sessions import Lingering
from carpool_broker.transport.incarnation import Heritage
from carpool_broker.transport.listener import Listener
from carpool_broker.transport.outbound import NO_ASK
from carpool_broker.transport.receive_budget import ReceiveBudget
from carpool_broker.transport.server_interface import Host
from carpool_broker.transport.socket_io import AgentIo
from carpool_broker.transport.streams import Stream
from carpool_protocol.carrier.attach import (
    Moved,
    ended_line,
    moved_line,
    parse_environment,
    settled_line,
    wanted_line,
)
from carpool_protocol.ids import ABSENT, AskId, CallId, Epoch, RawJson, SessionId, session_of
from carpool_protocol.runtime.poller import ReadySet
from carpool_protocol.runtime.pump import PIECE
from carpool_protocol.wire.lines import OverlongLine

log = logging.getLogger("carpool.broker")

ENVIRONMENT_S: Final = 10.0
"""How long a carrier may take to say the asked variables; after that they count as missing."""
LOOK_S: Final = 1.0
HEARD_LOOK_S: Final = 0.01
UNREAD_CAP_BYTES: Final = 256 * 1024 * 1024
"""A carrier of many that leaves more unread is dropped at once: it would take the memory of all others."""


class Door:
    """The listening socket and all connections."""

    def __init__(
        self,
        path: str,
        ready: ReadySet,
        host: Host,
        heritage: Heritage,
        *,
        slow_reader_s: float,
        receive_budget_bytes: int,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        """`clock`: one that stands still while we do not run, and could not see what agents do."""
        self._listener = Listener(path, ready, self._connected)
        self._ready = ready
        self._clock = clock
        self._host = host
        self._heritage = heritage
        self.written: list[CallId] = []
        """Calls whose answers are with their carriers. Whoever reports them empties this."""
        self.slow_reader_s = slow_reader_s
        self.budget = ReceiveBudget(receive_budget_bytes)
        self._count = 0
        self.agents: dict[SessionId, Agent] = {}
        self._streams: dict[SessionId, Stream] = {}
        """Sessions that come through a carrier with many, or did until it died."""
        self._lingering: Lingering[Stream] = Lingering(self.written.append)
        self._attaching = Attaching(
            host,
            heritage,
            self.agents,
            self._streams,
            lingering=self._lingering,
            mint=self._mint,
            queue=self._queue,
            drop=self.drop,
            take_kept=self._take_kept,
        )
        self._dirty: dict[SessionId, Agent] = {}
        self.before_flush: Callable[[], None] = lambda: None
        """What is to be done before anything leaves."""
        self._unflushed = 0
        self._settle: Callable[[], None] = lambda: None

    def open(self, settle: Callable[[], None]) -> None:
        """Listen. A socket file that is there is a dead broker's: the launcher's lock says so."""
        self._settle = settle
        self._listener.open()

    def take_leave(self, why: str, *, again: bool) -> None:
        """Nobody comes in any more. Carriers that keep are told `why`, and whether to come back; without a
        reason it is as if we had died. Nothing that they say from now on is taken.
        """
        self._listener.close()
        for agent in self.agents.values():
            if agent.looking:
                self._turn_away(agent, why, again=again)
            elif why and agent.passage is not None:
                agent.io.on_lines = _take_nothing
                if again and agent.returning is not None:
                    continue  # nothing is known of its calls yet: no word, as of a broker that dies
                if again:
                    self._tell_settled(agent, agent.passage)
                agent.io.write(ended_line(why, again=again))
            agent.io.flush()

    def _turn_away(self, agent: Agent, why: str, *, again: bool) -> None:
        """One that waits for a look at its workspace. It must not come in once that is done: nothing of what
        it has said is taken, as its carrier is told.
        """
        attach = agent.attach
        # One that comes back from an earlier broker may have calls under way: no word to come back, as above.
        if why and attach is not None and attach.keeps and not (again and attach.resume is not None):
            agent.io.write(ended_line(why, again=again))
        agent.io.flush()
        agent.io.close()

    async def heard_out(self) -> None:
        """Until all that was said is with the system that carries it."""
        while any(agent.io.unread_bytes for agent in self.agents.values()):  # noqa: ASYNC110 - rare, and short
            await trio.sleep(HEARD_LOOK_S)

    def close(self) -> None:
        """Close every connection and remove the socket file."""
        self._listener.close()
        for agent in self.agents.values():
            agent.io.flush()
            agent.io.close()
        self.agents.clear()

    def carriers(self) -> list[int]:
        """Pids of those that carry many sessions each."""
        pids = [agent.io.peer_pid() for agent in self.agents.values() if agent.carrier is not None]
        return [pid for pid in pids if pid]

    def serve_by(self, epoch: Epoch) -> None:
        """Sessions that come from now on are served by this supervisor; empty: by none."""
        self._attaching.epoch = epoch

    def served_by(self, session: SessionId, epoch: Epoch) -> None:
        """All that is open of this session, and all that comes, goes to this supervisor."""
        agent = self.agents.get(session)
        if agent is not None and agent.passage is not None:
            agent.passage.served_by(epoch)
            self._dirty[agent.id] = agent
        elif (stream := self._streams.get(session)) is not None:
            stream.served_by(epoch)

    def ask_environment(self, session: SessionId, names: list[str]) -> int:
        """See `workspace_moves.Carriers`."""
        agent = self.agents.get(session)
        if agent is None or agent.passage is None or agent.attach is None or not agent.attach.tells:
            return 0
        agent.questions += 1
        agent.asked_at = self._clock()
        self._queue(agent, wanted_line(names))
        return agent.questions

    def tell_moved(self, session: SessionId, moved: Moved) -> None:
        """See `workspace_moves.Carriers`."""
        agent = self.agents.get(session)
        if agent is not None and agent.passage is not None:
            self._queue(agent, moved_line(moved))
        elif (stream := self._streams.get(session)) is not None:
            stream.moved(moved)

    def stateful_at(self, session: SessionId, servers: Sequence[str]) -> None:
        """Its carrier is to remember that this session may have state there."""
        agent = self.agents.get(session)
        if agent is not None and agent.passage is not None:
            agent.passage.stateful_at(servers)
            self._dirty[agent.id] = agent
        elif (stream := self._streams.get(session)) is not None:
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
                    self._tell_settled(agent, passage)
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
        stream = self._streams.get(session)
        if stream is not None:
            stream.write(line, about, last=answers, call=call)

    def let_go(self, session: SessionId, call: CallId) -> None:
        """This call is in `written` once all that was said to this agent so far is with its carrier."""
        agent = self.agents.get(session)
        if agent is not None:
            agent.io.mark(call)
        elif (stream := self._streams.get(session)) is not None:
            stream.let_go(call)

    def _queue(self, agent: Agent, line: bytes, call: CallId = NO_CALL) -> None:
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
        self.before_flush()
        if self._dirty:
            dirty, self._dirty = self._dirty, {}
            for agent in dirty.values():
                if agent.passage is not None and agent.passage.due and agent.returning is None:
                    self._tell_settled(agent, agent.passage)
                agent.io.flush()
                if agent.carrier is not None and agent.io.unread_bytes > UNREAD_CAP_BYTES:
                    self.drop(agent.id, f"it has not read {UNREAD_CAP_BYTES} bytes")

    def drop(self, session: SessionId, why: str) -> None:
        """End this connection. Its sessions end when everything under way is over (`_left`)."""
        agent = self.agents.get(session)
        if agent is not None and not agent.io.closed:
            log.warning("%s is dropped: %s", session, why)
            agent.dropped = True
            if agent.passage is not None:
                agent.io.write(ended_line(f"carpool has dropped this agent: {why}"))
            agent.io.flush()
            agent.io.close()

    async def watch(self) -> None:
        """Look at slow readers, late carriers and the receive budget, until cancelled."""
        while True:
            await trio.sleep(LOOK_S)
            self.look(self._clock())
            self._listener.look()
            self._settle()

    def look(self, now: float) -> None:
        """See who takes too long, at this moment of the door's clock."""
        for agent in self.agents.values():
            if agent.unread_s(now) > self.slow_reader_s:
                self.drop(agent.id, f"it has not read for {self.slow_reader_s:g} s")
            if agent.asked and now - agent.began_at > ENVIRONMENT_S:
                log.warning("%s has not said its environment; until it does that is missing", agent.id)
                self._attaching.welcome_early(agent)
            if agent.answered < agent.questions and now - agent.asked_at > ENVIRONMENT_S:
                log.warning("%s did not say more of its environment; that counts as missing", agent.id)
                agent.asked_at = math.inf
                self._host.environment_came(agent.id, agent.questions, {})
        for stalled, why in self.budget.stalled(now, self.slow_reader_s):
            self.drop(stalled.id, why)
        self.end_lingering(now)

    def end_lingering(self, now: float) -> None:
        """Sessions whose door has died, and that no other door has asked for, are over."""
        for stream in self._lingering.due(now):
            del self._streams[stream.id]
            self._host.farewell(stream.id)

    # --- connections -----------------------------------------------------------------------------------

    def _connected(self, sock: socket.socket) -> None:
        agent = Agent(self._mint(), self._clock())
        agent.io = AgentIo(
            sock,
            self._ready,
            on_lines=lambda lines: self._attaching.take(agent, lines),
            on_closed=lambda: self._left(agent),
            on_unfinished=lambda: self.budget.look(agent),
            on_unread=lambda size_bytes: self._unread(agent, size_bytes),
            written=self.written,
        )
        self.agents[agent.id] = agent

    def _mint(self) -> SessionId:
        self._count += 1
        return session_of(self._heritage.life, self._count)

    def _left(self, agent: Agent) -> None:
        """Its socket is closed, and nothing is under way."""
        if self.agents.pop(agent.id, None) is None:
            return  # the door is closed: what is open is the next broker's
        self.budget.look(agent)
        if agent.carrier is not None:
            agent.carrier.left(dropped=agent.dropped)
        elif agent.welcomed:
            self._host.farewell(agent.id)

    def _unread(self, agent: Agent, unread_bytes: int) -> None:
        if agent.welcomed:
            self._host.unread(agent.id, unread_bytes)

    def _take_kept(self, agent: Agent, passage: Passage | None, lines: list[bytes | OverlongLine]) -> None:
        """Lines of a welcome agent whose carrier keeps them, or has not said its environment yet."""
        if agent.answered < agent.questions:
            lines = self._answered(agent, passage, lines)
            if not lines:
                return
        if passage is None:
            self._host.take(agent.id, lines)
            return
        returning = agent.returning
        if returning is not None:
            lines = self._host.take_back(agent.id, lines, passage, returning)
            if not returning.is_over:
                return
            agent.returning = None
            passage.came_back(returning.asks)
            # Before anything comes of it: see `write`.
            self._tell_settled(agent, passage)
            self._host.resumed(agent.id, returning, passage)
        if lines:
            self._host.take(agent.id, lines, passage)
        if passage.due:
            self._dirty[agent.id] = agent

    def _answered(
        self, agent: Agent, passage: Passage | None, lines: list[bytes | OverlongLine]
    ) -> list[bytes | OverlongLine]:
        """Take out what its carrier says of its environment, which is no line of the agent. What came before
        is taken first; what came after is given back.
        """
        assert agent.attach is not None
        for place, line in enumerate(lines):
            if isinstance(line, bytes) and _ENVIRONMENT in line[:_METHOD_BYTES]:
                environment = parse_environment(line, agent.attach.mark)
                if environment is not None:
                    if place:
                        self._take_kept(agent, passage, lines[:place])
                    agent.answered += 1
                    self._host.environment_came(agent.id, agent.answered, environment)
                    rest = lines[place + 1 :]
                    return self._answered(agent, passage, rest) if agent.answered < agent.questions else rest
        return lines

    def _tell_settled(self, agent: Agent, passage: Passage) -> None:
        agent.io.write(settled_line(passage.settle()))
        self._dirty[agent.id] = agent


_ENVIRONMENT: Final = b'"carpool/environment"'
_METHOD_BYTES: Final = 64
"""A carrier has named its method by then."""


def _take_nothing(_lines: list[bytes | OverlongLine]) -> None:
    pass
