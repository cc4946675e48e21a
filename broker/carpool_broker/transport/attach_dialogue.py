"""The attach dialogue: the lines of a connection until its session is admitted.

Decides what a connection is (plain, with kept lines, or multiplexed), has its workspace scanned, asks its
carrier for environment variables, and begins or resumes its session. Holds lines that came too early. A
connection whose first line is no attach line is plain: that line is the agent's first. A connection that is
refused, because its process has too many or descriptors are used up, is told the reason in answer to its
first line; only operators and multiplexed connections may use the last descriptors. `multiplexed` has the
lines of connections with many sessions.

Knows nothing of: lines of admitted sessions, configuration, time limits (`agent_server`).
"""

import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Final

from carpool_broker.transport.connections import DROPPED, AgentConnection, Connections
from carpool_broker.transport.delivery_log import DeliveryLog
from carpool_broker.transport.incarnation import Incarnation
from carpool_broker.transport.listener import NO_DESCRIPTOR
from carpool_broker.transport.multiplexed import MultiplexedConnection
from carpool_broker.transport.resume import SessionResume
from carpool_broker.transport.server_interface import AgentServerHost
from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION
from carpool_protocol.carrier.attach_line import (
    Attach,
    AttachProblem,
    ResumeSession,
    attached_line,
    ended_line,
    parse_attach,
    parse_environment,
    refused_line,
)
from carpool_protocol.faults.fault_answers import fault, fault_answer
from carpool_protocol.ids import Epoch, RawJson, SessionId
from carpool_protocol.wire.json_scan import scan_ends
from carpool_protocol.wire.jsonrpc import error_body_line
from carpool_protocol.wire.lines import OverlongLine

log = logging.getLogger("carpool.broker")

MAX_ENDED: Final = 10_000
"""The number of ended sessions that are remembered."""
EARLY_BYTES: Final = 16 * 1024 * 1024
"""A carrier that sends more bytes before it is admitted is dropped.

Lines of a resumed session that an earlier broker has taken do not count: that broker had its own bounds, and
the carrier repeats all of them at once.
"""


class AttachDialogue:
    """Connections whose sessions are not admitted yet."""

    def __init__(
        self,
        host: AgentServerHost,
        incarnation: Incarnation,
        connections: Connections,
        *,
        mint: Callable[[], SessionId],
        take: Callable[[AgentConnection, list[bytes | OverlongLine]], None],
        input_ended: Callable[[AgentConnection], None],
        refused: Callable[[AgentConnection], None],
    ) -> None:
        """`mint`: returns a new session id. `take`: takes lines of an admitted session. `input_ended`: called
        after those lines if the agent sends nothing more. `refused`: a connection with a `refusal` is
        refused, or is admitted in spite of it, and then has none.
        """
        self._line_handler = host
        self._incarnation = incarnation
        self._connections = connections
        self._new_session_id = mint
        self._take = take
        self._input_ended = input_ended
        self._refused = refused
        self.epoch = Epoch("")
        """The supervisor of new sessions; empty: none."""
        self._ended: dict[SessionId, str] = {}
        """Sessions that an operator has ended, with the reason; the oldest first."""

    def session_ended(self, session: SessionId, text: str) -> None:
        """An operator has ended this session. If its carrier attaches again, because its socket had no room
        for the reason, it is told then.
        """
        self._ended[session] = text
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]

    def lines_received(self, agent: AgentConnection, lines: list[bytes | OverlongLine]) -> None:
        """Lines of a connection that is not admitted yet."""
        if agent.attach is None:
            self._read_attach_line(agent, lines)
        elif agent.is_scanning:
            agent.early_lines += lines
            self._limit_early_bytes(agent)
        else:
            self._collect_environment(agent, lines)

    def _read_attach_line(self, agent: AgentConnection, lines: list[bytes | OverlongLine]) -> None:
        first = lines[0]
        if not first:  # an empty line is not the first line
            if lines[1:]:
                self._read_attach_line(agent, lines[1:])
            return
        attach = parse_attach(first) if isinstance(first, bytes) else None
        if agent.refusal:
            self._settle_refusal(agent, first, attach)
            if agent.io.closed:
                return
        if isinstance(attach, AttachProblem):
            self._refuse(agent, attach.text)
            return
        if attach is None:
            agent.attach = Attach(version=ATTACH_VERSION, carrier="client", pid=agent.io.peer_pid())
            agent.io.skip_blanks()
            agent.early_lines = [line for line in lines if line]
            self.admit(agent, {})
            return
        agent.attach = attach
        keeps = attach.keeps and not attach.streams
        if not keeps:
            agent.io.skip_blanks()
            lines = [line for line in lines if line]
        if attach.streams:
            self._begin_multiplexed(agent, attach, lines[1:])
            return
        agent.early_lines = lines[1:]
        agent.is_scanning = True
        self._line_handler.scan_workspace(attach, partial(self._scanned, agent, attach))
        if agent.is_scanning:
            agent.io.set_waiting(True)
            self._limit_early_bytes(agent)

    def _settle_refusal(
        self, agent: AgentConnection, first: bytes | OverlongLine, attach: Attach | AttachProblem | None
    ) -> None:
        """Refuse this agent, or admit an operator or a multiplexed connection to the last descriptors."""
        may_use_reserve = isinstance(attach, Attach) and (attach.control or attach.streams)
        if agent.refusal == NO_DESCRIPTOR and may_use_reserve:
            agent.refusal = ""
            self._refused(agent)
        elif attach is None:
            self.refuse(agent, first)
        else:
            self.refuse(agent)

    def refuse(self, agent: AgentConnection, first: bytes | OverlongLine | None = None) -> None:
        """Tell an agent its `refusal` and close. `first`: the first line of a plain agent, which it answers;
        None: the agent has a carrier, or has sent no line.
        """
        self._refused(agent)
        agent.dropped = True
        if first is None:
            agent.io.write(refused_line(agent.refusal))
        else:
            body = fault_answer(fault("attach_refused", detail=agent.refusal), "")[1]
            agent.io.write(error_body_line(_id_of(first) or RawJson(b"null"), body))
        agent.io.flush()
        agent.io.close()

    def _scanned(self, agent: AgentConnection, attach: Attach) -> None:
        """Continue after the scan of the workspace."""
        agent.is_scanning = False
        if agent.io.closed:
            return
        lines, agent.early_lines = agent.early_lines, []
        named = attach.server or attach.workspace or attach.profile
        refused = self._line_handler.attach_objection(attach) if named else None
        note = self._line_handler.attach_note(attach)
        if refused is not None:
            self._refuse(agent, f"{refused.text}; {note}" if note else refused.text)
            return
        agent.environment_requests = self._line_handler.wanted_variables(attach)
        if attach.resume is not None and (why := self._why_ended(attach.resume)):
            agent.io.write(ended_line(DROPPED + why))
            agent.io.flush()
            agent.io.close()
            return
        if attach.keeps:
            self._start_delivery_log(agent, attach.resume, note)
        else:
            agent.io.write(attached_line(agent.id, agent.environment_requests, note=note))
        agent.io.flush()
        if not agent.environment_requests:
            agent.early_lines = lines
            self.admit(agent, {})
        elif lines:
            self._collect_environment(agent, lines)
        if not agent.is_scanning:
            agent.io.set_waiting(False)

    def _start_delivery_log(self, agent: AgentConnection, resume: ResumeSession | None, note: str) -> None:
        """Prepare for a carrier that keeps lines, and perhaps resumes a session of an earlier broker.

        `note`: for a carrier that is new.
        """
        epoch = self.epoch
        if resume is not None:
            back, epoch = self._open_or_resume(resume, agent.id)
            if back != agent.id:
                self._change_id(agent, back)
            agent.returning = SessionResume(agent.id, epoch, resume)
        agent.delivery_log = DeliveryLog(epoch, () if resume is None else resume.stateful)
        agent.io.write(
            attached_line(
                agent.id,
                agent.environment_requests,
                self._incarnation.resume_secret(agent.id),
                epoch,
                note if resume is None else "",
            )
        )

    def _why_ended(self, resume: ResumeSession) -> str:
        """The reason why an operator ended the session of this carrier; empty: none did."""
        why = self._ended.get(SessionId(resume.session), "")
        return (
            why if why and self._incarnation.has_own_secret(SessionId(resume.session), resume.secret) else ""
        )

    def _change_id(self, agent: AgentConnection, session: SessionId) -> None:
        del self._connections.agents[agent.id]
        agent.id = session
        self._connections.agents[session] = agent

    def _open_or_resume(
        self, resume: ResumeSession | None, fresh: SessionId | None = None
    ) -> tuple[SessionId, Epoch]:
        """The session that begins or resumes, and the epoch under which its requests were sent."""
        if resume is None:
            return fresh or self._new_session_id(), self.epoch
        session = SessionId(resume.session)
        if self._line_handler.may_resume() and self._incarnation.claim_session(session, resume.secret):
            log.info("%s is resumed", session, extra={"session": session})
            return session, Epoch(resume.supervisor)
        fresh = fresh or self._new_session_id()
        log.info(
            "%s continues as %s: nothing is known of its calls",
            resume.session,
            fresh,
            extra={"session": fresh},
        )
        return fresh, Epoch("")

    def _refuse(self, agent: AgentConnection, text: str) -> None:
        agent.io.write(refused_line(text))
        agent.io.flush()
        self._connections.drop(agent.id, text)

    def _begin_multiplexed(
        self, agent: AgentConnection, attach: Attach, lines: list[bytes | OverlongLine]
    ) -> None:
        """Begin a multiplexed connection. Its sessions bring no environment."""
        agent.io.write(attached_line(agent.id, []))
        agent.io.flush()
        agent.carrier = MultiplexedConnection(
            agent.id,
            attach,
            self._line_handler,
            self._connections.streams,
            detached=self._connections.detached,
            incarnation=self._incarnation,
            enter=self._open_or_resume,
            write=partial(self._connections.queue, agent),
            written_bytes=agent.io.written_bytes,
            drop=partial(self._connections.drop, agent.id),
        )
        if lines and not agent.io.closed:
            agent.carrier.lines_received(lines)

    def _collect_environment(self, agent: AgentConnection, lines: list[bytes | OverlongLine]) -> None:
        assert agent.attach is not None
        for place, line in enumerate(lines):
            environment = parse_environment(line, agent.attach.mark) if isinstance(line, bytes) else None
            if environment is not None:
                agent.early_lines += lines[place + 1 :]
                self.admit(
                    agent,
                    {name: environment[name] for name in agent.environment_requests if name in environment},
                )
                return
            agent.early_lines.append(line)
        self._limit_early_bytes(agent)

    def _limit_early_bytes(self, agent: AgentConnection) -> None:
        resume = None if agent.attach is None else agent.attach.resume
        early = agent.early_lines[0 if resume is None else resume.taken :]
        if sum(len(line) for line in early if isinstance(line, bytes)) > EARLY_BYTES:
            text = f"it has sent more than {EARLY_BYTES} bytes before its session was ready"
            self._connections.drop(agent.id, text)

    def input_ended(self, agent: AgentConnection) -> None:
        """A connection whose session is not admitted yet sends nothing more: no environment will come."""
        if agent.attach is None:  # it has said nothing
            agent.io.close()
        elif not agent.is_scanning:
            log.warning("%s has not sent its environment; it starts without these variables", agent.id)
            self.admit(agent, {})

    def admit_without_environment(self, agent: AgentConnection) -> None:
        """Admit a session without the variables that its carrier was asked for. They are applied when they
        come.
        """
        agent.questions = 1
        agent.asked_at = math.inf
        agent.is_late = agent.environment_requests
        self.admit(agent, {})

    def admit(self, agent: AgentConnection, environment: dict[str, str]) -> None:
        """End the dialogue and admit the session, after another scan of its workspace if necessary.

        The last session there may have ended during the dialogue, and the earlier scan with it.
        """
        assert agent.attach is not None
        agent.environment_requests = []
        agent.is_scanning = True
        self._line_handler.scan_workspace(
            agent.attach, partial(self._admit, agent, agent.attach, environment)
        )
        if agent.is_scanning:
            agent.io.set_waiting(True)

    def _admit(self, agent: AgentConnection, attach: Attach, environment: dict[str, str]) -> None:
        """Open the session and take its lines, the early ones first."""
        agent.is_scanning = False
        if agent.io.closed:
            return
        agent.welcomed = True
        kept, agent.early_lines = agent.early_lines, []
        self._line_handler.session_opened(agent.id, attach, environment)
        if agent.is_late:
            self._line_handler.environment_requested(agent.id, agent.is_late)
        if kept or agent.returning is not None:
            self._take(agent, kept)
        agent.io.set_waiting(False)
        if agent.io.input_ended and not agent.io.closed:
            self._input_ended(agent)


def _id_of(line: bytes | OverlongLine) -> RawJson | None:
    """The id of the request in this line; None: it has none that may be echoed."""
    if isinstance(line, OverlongLine):
        return line.id
    return scan_ends(line)[0]
