"""The door: the Unix socket that agents come in through, and what is done with all that comes in there.

Owns which part takes the lines of a connection, and when its sessions end: between two bursts
(docs/decisions/0031). Owns the patience with agents that do not read (rule 3) or do not say their
environment, and that carriers that keep are told when an end is meant (docs/decisions/0019). What a
connection says before it is welcome is `attach`'s; what the lines of one with many sessions mean is
`multiplexed`'s; the table of connections, and what is written to them, is `connections`'.

Knows nothing of: what a line means, but for a carrier's word about its environment; configuration, calls.
"""

import logging
import math
import socket
from collections.abc import Callable
from typing import Final

import trio

from carpool_broker.transport.attach import AttachDialogue
from carpool_broker.transport.connections import AgentConnection, Connections
from carpool_broker.transport.delivery_log import DeliveryLog
from carpool_broker.transport.incarnation import Incarnation
from carpool_broker.transport.listener import Listener
from carpool_broker.transport.receive_budget import ReceiveBudget
from carpool_broker.transport.server_interface import AgentServerHost
from carpool_protocol.carrier.attach import ended_line, parse_environment
from carpool_protocol.ids import Epoch, SessionId, session_of
from carpool_protocol.runtime.poller import ReadySet
from carpool_protocol.wire.lines import OverlongLine

log = logging.getLogger("carpool.broker")

ENVIRONMENT_S: Final = 10.0
"""How long a carrier may take to say the asked variables; after that they count as missing."""
CHECK_S: Final = 1.0
_ENVIRONMENT: Final = b'"carpool/environment"'
_METHOD_BYTES: Final = 64
"""A carrier has named its method by then."""


class AgentServer:
    """The listening socket, and the listener of all connections."""

    def __init__(
        self,
        path: str,
        ready: ReadySet,
        host: AgentServerHost,
        incarnation: Incarnation,
        connections: Connections,
        *,
        slow_reader_s: float,
        receive_budget_bytes: int,
        settle: Callable[[], None],
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        """`settle`: the burst is over. `clock`: one that stands still while we do not run, and could not see
        what agents do.
        """
        self._listener = Listener(path, ready, self._accept)
        self._ready = ready
        self._clock = clock
        self._line_handler = host
        self._incarnation = incarnation
        self.connections = connections
        self.slow_reader_s = slow_reader_s
        self.receive_budget = ReceiveBudget(receive_budget_bytes)
        self._settle = settle
        self._count = 0
        self._attach = AttachDialogue(
            host, incarnation, connections, mint=self._new_session_id, take=self.lines_received
        )

    def open(self) -> None:
        """Listen. A socket file that is there is a dead broker's: the launcher's lock says so."""
        self._listener.open()

    def stop_accepting(self, why: str, *, again: bool) -> None:
        """Nobody comes in any more. Carriers that keep are told `why`, and whether to come back; without a
        reason it is as if we had died. Nothing that they say from now on is taken.
        """
        self._listener.close()
        for agent in self.connections.agents.values():
            if agent.is_scanning:
                self._refuse_attaching(agent, why, again=again)
            elif why and agent.delivery_log is not None:
                agent.deaf = True
                if again and agent.returning is not None:
                    continue  # nothing is known of its calls yet: no word, as of a broker that dies
                if again:
                    self.connections.tell_settled(agent, agent.delivery_log)
                agent.io.write(ended_line(why, again=again))
            agent.io.flush()

    def _refuse_attaching(self, agent: AgentConnection, why: str, *, again: bool) -> None:
        """One that waits for a look at its workspace. It must not come in once that is done: nothing of what
        it has said is taken, as its carrier is told.
        """
        attach = agent.attach
        # One that comes back from an earlier broker may have calls under way: no word to come back, as above.
        if why and attach is not None and attach.keeps and not (again and attach.resume is not None):
            agent.io.write(ended_line(why, again=again))
        agent.io.flush()
        agent.io.close()

    def close(self) -> None:
        """Close every connection and remove the socket file."""
        self._listener.close()
        for agent in self.connections.agents.values():
            agent.io.flush()
            agent.io.close()
        self.connections.agents.clear()

    def set_supervisor_epoch(self, epoch: Epoch) -> None:
        """Sessions that come from now on are served by this supervisor; empty: by none."""
        self._attach.epoch = epoch

    async def watch(self) -> None:
        """Look at slow readers, late carriers and the receive budget, until cancelled."""
        while True:
            await trio.sleep(CHECK_S)
            self.check_timeouts(self._clock())
            self._listener.check()
            self._settle()

    def check_timeouts(self, now: float) -> None:
        """See who takes too long, at this moment of the door's clock."""
        for agent in self.connections.agents.values():
            if agent.unread_s(now) > self.slow_reader_s:
                self.connections.drop(agent.id, f"it has not read for {self.slow_reader_s:g} s")
            if agent.environment_requests and now - agent.began_at > ENVIRONMENT_S:
                log.warning("%s has not said its environment; until it does that is missing", agent.id)
                self._attach.admit_without_environment(agent)
            if agent.answered < agent.questions and now - agent.asked_at > ENVIRONMENT_S:
                log.warning("%s did not say more of its environment; that counts as missing", agent.id)
                agent.asked_at = math.inf
                self._line_handler.environment_received(agent.id, agent.questions, {})
        for stalled, why in self.receive_budget.expired_agents(now, self.slow_reader_s):
            self.connections.drop(stalled.id, why)
        self.end_detached_sessions(now)

    def end_detached_sessions(self, now: float) -> None:
        """Sessions whose door has died, and that no other door has asked for, are over."""
        for stream in self.connections.lingering.expired(now):
            del self.connections.streams[stream.id]
            self._line_handler.session_closed(stream.id)

    # --- connections -----------------------------------------------------------------------------------

    def _accept(self, sock: socket.socket) -> None:
        connections = self.connections
        agent = AgentConnection(
            self._new_session_id(), sock, self._ready, self, written=connections.written, now=self._clock()
        )
        connections.agents[agent.id] = agent

    def _new_session_id(self) -> SessionId:
        self._count += 1
        return session_of(self._incarnation.epoch, self._count)

    def connection_closed(self, agent: AgentConnection) -> None:
        """See `connections.ConnectionListener`."""
        if self.connections.agents.pop(agent.id, None) is None:
            return  # the door is closed: what is open is the next broker's
        self.receive_budget.line_changed(agent)
        if agent.carrier is not None:
            agent.carrier.connection_closed(dropped=agent.dropped)
        elif agent.welcomed:
            self._line_handler.session_closed(agent.id)

    def unfinished_line_changed(self, agent: AgentConnection) -> None:
        """See `connections.ConnectionListener`."""
        self.receive_budget.line_changed(agent)

    def unread_changed(self, agent: AgentConnection, unread_bytes: int) -> None:
        """See `connections.ConnectionListener`."""
        if agent.welcomed:
            self._line_handler.unread_changed(agent.id, unread_bytes)

    def lines_received(self, agent: AgentConnection, lines: list[bytes | OverlongLine]) -> None:
        """See `connections.ConnectionListener`."""
        if agent.deaf:
            return
        if agent.welcomed:
            if agent.delivery_log is not None or agent.questions:
                self._lines_received(agent, agent.delivery_log, lines)
            else:
                self._line_handler.lines_received(agent.id, lines)
        elif agent.carrier is not None:
            agent.carrier.lines_received(lines)
        else:
            self._attach.lines_received(agent, lines)

    def _lines_received(
        self, agent: AgentConnection, delivery_log: DeliveryLog | None, lines: list[bytes | OverlongLine]
    ) -> None:
        """Lines of a welcome agent whose carrier keeps them, or has not said its environment yet."""
        if agent.answered < agent.questions:
            lines = self._take_environment_lines(agent, delivery_log, lines)
            if not lines:
                return
        if delivery_log is None:
            self._line_handler.lines_received(agent.id, lines)
            return
        returning = agent.returning
        if returning is not None:
            lines = self._line_handler.resume_lines(agent.id, lines, delivery_log, returning)
            if not returning.is_complete:
                return
            agent.returning = None
            delivery_log.resumed(returning.asks)
            # Before anything comes of it: see `Connections.write`.
            self.connections.tell_settled(agent, delivery_log)
            self._line_handler.session_resumed(agent.id, returning, delivery_log)
        if lines:
            self._line_handler.lines_received(agent.id, lines, delivery_log)
        if delivery_log.due:
            self.connections.await_flush(agent)

    def _take_environment_lines(
        self, agent: AgentConnection, delivery_log: DeliveryLog | None, lines: list[bytes | OverlongLine]
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
                        self._lines_received(agent, delivery_log, lines[:place])
                    agent.answered += 1
                    self._line_handler.environment_received(agent.id, agent.answered, environment)
                    rest = lines[place + 1 :]
                    return (
                        self._take_environment_lines(agent, delivery_log, rest)
                        if agent.answered < agent.questions
                        else rest
                    )
        return lines
