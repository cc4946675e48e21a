"""The agent server: accepts connections on the Unix socket and passes on their input.

Owns which part takes the lines of a connection, and when its sessions end: between two bursts
(docs/decisions/0031). A session whose agent sends nothing more ends once its requests are answered. Also owns
the time limits for agents that do not read (rule 3) and carriers that do not send their environment, and the
last line to carriers that keep lines when an end is on purpose (docs/decisions/0019).

`attach_dialogue` has the lines before a session is admitted, `multiplexed` those of connections with many
sessions, `connections` the table of connections and the output.

Knows nothing of: the meaning of a line, except a carrier's line about its environment; configuration, calls.
"""

import logging
import math
import socket
from collections.abc import Callable
from typing import Final

import trio

from carpool_broker.transport.attach_dialogue import AttachDialogue
from carpool_broker.transport.connections import AgentConnection, Connections
from carpool_broker.transport.delivery_log import DeliveryLog
from carpool_broker.transport.incarnation import Incarnation
from carpool_broker.transport.listener import NO_DESCRIPTOR, Listener
from carpool_broker.transport.receive_budget import ReceiveBudget
from carpool_broker.transport.server_interface import AgentServerHost
from carpool_broker.transport.streams import SessionStream
from carpool_protocol.carrier.attach_line import ended_line, parse_environment
from carpool_protocol.ids import Epoch, SessionId, session_of
from carpool_protocol.runtime.pace import Pace
from carpool_protocol.runtime.poller import HEARS_HANG_UPS, ReadySet
from carpool_protocol.wire.lines import OverlongLine

log = logging.getLogger("carpool.broker")

ENVIRONMENT_S: Final = 10.0
"""How long a carrier may take to send requested variables; then they count as missing."""
CHECK_S: Final = 1.0
_ENVIRONMENT: Final = b'"carpool/environment"'
_METHOD_BYTES: Final = 64
"""The method of a line stands within this many bytes."""


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
        """`settle`: ends a burst. `clock`: a clock that stands still while this process is stopped.

        A stopped process could not see what agents do, so that time does not count.
        """
        self.listener = Listener(path, ready, self._accept, clock)
        self._ready = ready
        self._clock = clock
        self._line_handler = host
        self._incarnation = incarnation
        self.connections = connections
        self.slow_reader_s = slow_reader_s
        self.receive_budget = ReceiveBudget(receive_budget_bytes)
        self._settle = settle
        self._count = 0
        self.finishing: dict[SessionId, bool] = {}
        """Sessions whose agents send nothing more and still wait for answers. True: all are written."""
        self._attach = AttachDialogue(
            host,
            incarnation,
            connections,
            mint=self._new_session_id,
            take=self.lines_received,
            input_ended=self._await_answers,
            refused=self._agent_refused,
        )
        self._refused: dict[SessionId, AgentConnection] = {}
        """Connections to refuse whose first line has not arrived, the oldest first."""

    def open(self) -> None:
        """Listen. An existing socket file belongs to a dead broker, because the launcher holds its lock."""
        self.listener.open()

    def stop_reading(self) -> None:
        """Read nothing more from any agent, so that no call begins while the broker ends.

        A carrier that keeps lines sends those that were not read to the next broker.
        """
        for agent in self.connections.agents.values():
            agent.io.stop_reading()

    def stop_accepting(self, why: str, *, again: bool) -> None:
        """Accept no more connections. Carriers that keep lines get `why`, and if they may attach again.

        Without a reason they get no line, as if the broker had died. Their later input is ignored.
        """
        self.listener.close()
        for agent in self.connections.agents.values():
            if agent.is_scanning:
                self._refuse_attaching(agent, why, again=again)
            elif why and agent.delivery_log is not None:
                agent.deaf = True
                if again and agent.returning is not None:
                    continue  # nothing is known of its calls yet: send no line, as a broker that dies
                if again:
                    self.connections.send_settled(agent, agent.delivery_log)
                agent.io.write(ended_line(why, again=again))
            agent.io.flush()

    def _refuse_attaching(self, agent: AgentConnection, why: str, *, again: bool) -> None:
        """End a connection that waits for the scan of its workspace, so that it is not admitted later.

        None of its lines were taken, as its carrier is told.
        """
        attach = agent.attach
        # A resumed session may have calls under way, so it gets no line either.
        if why and attach is not None and attach.keeps and not (again and attach.resume is not None):
            agent.io.write(ended_line(why, again=again))
        agent.io.flush()
        agent.io.close()

    def close(self) -> None:
        """Close every connection and remove the socket file."""
        self.listener.close()
        for agent in self.connections.agents.values():
            agent.io.flush()
            agent.io.close()
        self.connections.agents.clear()

    def set_supervisor_epoch(self, epoch: Epoch) -> None:
        """Set the supervisor of new sessions; empty: there is none."""
        self._attach.epoch = epoch

    async def watch(self, pace: Pace | None = None) -> None:
        """Check slow readers, late carriers and the receive budget periodically, until cancelled."""
        while True:
            await trio.sleep(CHECK_S if pace is None else pace.delay_s())
            self.check_timeouts(self._clock())
            self.listener.check()
            self._settle()

    def check_timeouts(self, now: float) -> None:
        """Act on all time limits that have passed. `now`: by the server's clock."""
        for agent in self.connections.agents.values():
            if agent.unread_s(now) > self.slow_reader_s:
                self.connections.drop(agent.id, f"it has not read for {self.slow_reader_s:g} s")
            if agent.environment_requests and now - agent.began_at > ENVIRONMENT_S:
                log.warning("%s has not sent its environment; it starts without these variables", agent.id)
                self._attach.admit_without_environment(agent)
            if agent.answered < agent.questions and now - agent.asked_at > ENVIRONMENT_S:
                log.warning(
                    "%s did not send more of its environment; these variables count as missing", agent.id
                )
                agent.asked_at = math.inf
                self._line_handler.environment_received(agent.id, agent.questions, {})
        if not HEARS_HANG_UPS:
            self._close_hung_up()
        for stalled, why in self.receive_budget.expired_agents(now):
            self.connections.drop(stalled.id, why)
        self.end_detached_sessions(now)

    def end_detached_sessions(self, now: float) -> None:
        """End sessions of dead HTTP doors that no other door has claimed in time."""
        for stream in self.connections.detached.expired(now):
            self._forget_detached(stream)

    def _close_hung_up(self) -> None:
        for session in self.finishing:
            agent = self.connections.agents.get(session)
            if agent is not None and not agent.io.closed and agent.io.is_hung_up():
                agent.io.close()

    def end_finished(self) -> None:
        """End sessions whose agents send nothing more and have all their answers. Called after each burst."""
        for session, is_told in list(self.finishing.items()):
            agent = self.connections.agents.get(session)
            if agent is None or agent.io.closed:
                del self.finishing[session]
            elif agent.deaf or agent.io.unread_bytes or self._line_handler.owes_answers(session):
                continue
            else:
                if agent.delivery_log is not None and not is_told:
                    self.finishing[session] = True
                    agent.io.write(ended_line(""))
                    agent.io.flush()
                if not agent.io.unread_bytes:
                    agent.io.close()

    def disconnect_session(self, session: SessionId, text: str) -> bool:
        """End an agent's session as if the agent had left, and tell its carrier why. False: it is not here.

        The connection of a session that has one of its own ends with it (docs/decisions/0043).
        """
        agent = self.connections.agents.get(session)
        if agent is not None and agent.carrier is None:
            self._attach.session_ended(session, text)
            self.connections.drop(session, text)
            return True
        stream = self.connections.streams.get(session)
        if stream is None:
            return False
        if stream.held is not None:
            self.connections.detached.remove(stream)
            self._forget_detached(stream)
            return True
        carriers = [each.carrier for each in self.connections.agents.values() if each.carrier is not None]
        return any(carrier.end_stream(stream, text) for carrier in carriers)

    def _forget_detached(self, stream: SessionStream) -> None:
        del self.connections.streams[stream.id]
        self._line_handler.session_closed(stream.id)

    # --- connections -----------------------------------------------------------------------------------

    def _accept(self, sock: socket.socket, refusal: str = "") -> None:
        connections = self.connections
        agent = AgentConnection(
            self._new_session_id(), sock, self._ready, self, written=connections.written, now=self._clock()
        )
        connections.agents[agent.id] = agent
        if refusal:
            agent.refusal = refusal
            self._refused[agent.id] = agent
            if len(self._refused) > max(1, self.listener.reserve.kept // 2):
                self._attach.refuse(next(iter(self._refused.values())))

    def _agent_refused(self, agent: AgentConnection) -> None:
        self._refused.pop(agent.id, None)
        if agent.refusal == NO_DESCRIPTOR:
            self.listener.agent_refused()

    def descriptors(self) -> dict[str, object]:
        """The section `descriptors` of `carpool status --json`."""
        return {
            "limit": self.listener.reserve.limit,
            "used_up": self.listener.reserve.is_needed(),
            "refused": self.listener.refused.total,
        }

    def _new_session_id(self) -> SessionId:
        self._count += 1
        return session_of(self._incarnation.epoch, self._count)

    def connection_closed(self, agent: AgentConnection) -> None:
        """As `connections.ConnectionListener.connection_closed`."""
        if self.connections.agents.pop(agent.id, None) is None:
            return  # this server is closed: open sessions belong to the next broker
        self._refused.pop(agent.id, None)
        self.receive_budget.line_changed(agent)
        if agent.carrier is not None:
            agent.carrier.connection_closed(dropped=agent.dropped)
        elif agent.welcomed:
            self._line_handler.session_closed(agent.id)

    def input_ended(self, agent: AgentConnection) -> None:
        """As `connections.ConnectionListener.input_ended`."""
        if agent.carrier is not None:
            agent.io.close()  # an HTTP door has no use for one direction
        elif agent.welcomed:
            self._await_answers(agent)
        else:
            self._attach.input_ended(agent)

    def _await_answers(self, agent: AgentConnection) -> None:
        """Keep the session until its requests are answered. Nothing that is asked of it is answered."""
        if agent.returning is not None:  # the rest of its kept lines is lost
            agent.io.close()
            return
        self.finishing[agent.id] = False
        if agent.answered < agent.questions:
            agent.answered = agent.questions
            self._line_handler.environment_received(agent.id, agent.questions, {})
        self._line_handler.input_ended(agent.id)

    def unfinished_line_changed(self, agent: AgentConnection) -> None:
        """As `connections.ConnectionListener.unfinished_line_changed`."""
        self.receive_budget.line_changed(agent)

    def unread_changed(self, agent: AgentConnection, unread_bytes: int) -> None:
        """As `connections.ConnectionListener.unread_changed`."""
        if agent.welcomed:
            self._line_handler.unread_changed(agent.id, unread_bytes)
        elif agent.carrier is not None:
            agent.carrier.output_taken(agent.io.progress)

    def lines_received(self, agent: AgentConnection, lines: list[bytes | OverlongLine]) -> None:
        """As `connections.ConnectionListener.lines_received`."""
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
        """Take lines of an admitted session whose carrier keeps lines, or has not sent its environment
        yet.
        """
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
            # Before any effect of the lines: see `Connections.write`.
            self.connections.send_settled(agent, delivery_log)
            self._line_handler.session_resumed(agent.id, returning, delivery_log)
        if lines:
            self._line_handler.lines_received(agent.id, lines, delivery_log)
        if delivery_log.due:
            self.connections.await_flush(agent)

    def _take_environment_lines(
        self, agent: AgentConnection, delivery_log: DeliveryLog | None, lines: list[bytes | OverlongLine]
    ) -> list[bytes | OverlongLine]:
        """Take the carrier's environment out of these lines.

        Lines before it are processed first; lines after it are returned.
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
