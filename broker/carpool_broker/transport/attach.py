"""The attach dialogue: what is said on a connection until its session is welcome.

Owns who a connection is (plain, kept by its carrier, or many sessions), that it is looked first what is where
its session wants to be, what its carrier is asked for, which session begins or comes back, and the lines that
came too early. A connection whose first line is no
attach line is plain: that line is the agent's first. One whose attach line says so carries many sessions;
what its lines mean is `multiplexed`'s.

Knows nothing of: lines of those that are welcome, configuration, how long anybody waits (that is
`agent_server`'s).
"""

import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Final

from carpool_broker.transport.connections import Agent, Connections
from carpool_broker.transport.delivery_log import Passage
from carpool_broker.transport.incarnation import Heritage
from carpool_broker.transport.multiplexed import Carrier
from carpool_broker.transport.resume import Returning
from carpool_broker.transport.server_interface import Host
from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION
from carpool_protocol.carrier.attach import (
    Attach,
    AttachProblem,
    ResumeSession,
    attached_line,
    parse_attach,
    parse_environment,
    refused_line,
)
from carpool_protocol.ids import Epoch, SessionId
from carpool_protocol.wire.lines import OverlongLine

log = logging.getLogger("carpool.broker")

EARLY_BYTES: Final = 16 * 1024 * 1024
"""A carrier that sends more before it is welcome is dropped. What an earlier broker has taken of a session
that comes back does not count: that one had its own bounds, and the carrier says all of it at once.
"""


class Attaching:
    """Connections on their way in."""

    def __init__(
        self,
        host: Host,
        heritage: Heritage,
        connections: Connections,
        *,
        mint: Callable[[], SessionId],
        take: Callable[[Agent, list[bytes | OverlongLine]], None],
    ) -> None:
        """`take`: takes lines of a welcome agent."""
        self._host = host
        self._heritage = heritage
        self._connections = connections
        self._mint = mint
        self._take = take
        self.epoch = Epoch("")
        """The supervisor that serves sessions that come now; empty: none."""

    def take(self, agent: Agent, lines: list[bytes | OverlongLine]) -> None:
        """Lines of an agent that is not welcome yet."""
        if agent.attach is None:
            self._introduce(agent, lines)
        elif agent.looking:
            agent.kept += lines
            self._bound(agent)
        else:
            self._await_environment(agent, lines)

    def _introduce(self, agent: Agent, lines: list[bytes | OverlongLine]) -> None:
        first = lines[0]
        if not first:  # an empty line is no first line
            if lines[1:]:
                self._introduce(agent, lines[1:])
            return
        attach = parse_attach(first) if isinstance(first, bytes) else None
        if isinstance(attach, AttachProblem):
            self._refuse(agent, attach.text)
            return
        if attach is None:
            agent.attach = Attach(version=ATTACH_VERSION, carrier="client", pid=agent.io.peer_pid())
            agent.io.skip_blanks()
            agent.kept = [line for line in lines if line]
            self.welcome(agent, {})
            return
        agent.attach = attach
        keeps = attach.keeps and not attach.streams
        if not keeps:
            agent.io.skip_blanks()
            lines = [line for line in lines if line]
        if attach.streams:
            self._carry(agent, attach, lines[1:])
            return
        agent.kept = lines[1:]
        agent.looking = True
        self._host.look(attach, partial(self._looked, agent, attach))
        if agent.looking:
            agent.io.wait(True)
            self._bound(agent)

    def _looked(self, agent: Agent, attach: Attach) -> None:
        """It is known what is where it wants to be."""
        agent.looking = False
        if agent.io.closed:
            return
        lines, agent.kept = agent.kept, []
        named = attach.server or attach.workspace or attach.profile
        refused = self._host.objection(attach) if named else None
        if refused is not None:
            self._refuse(agent, refused.text)
            return
        agent.asked = self._host.wanted_variables(attach)
        if attach.keeps:
            self._remember(agent, attach.resume)
        else:
            agent.io.write(attached_line(agent.id, agent.asked))
        agent.io.flush()
        if not agent.asked:
            agent.kept = lines
            self.welcome(agent, {})
        elif lines:
            self._await_environment(agent, lines)
        if not agent.looking:
            agent.io.wait(False)

    def _remember(self, agent: Agent, resume: ResumeSession | None) -> None:
        """Its carrier keeps what passes, and perhaps brings what passed at an earlier broker."""
        epoch = self.epoch
        if resume is not None:
            back, epoch = self._enter(resume, agent.id)
            if back != agent.id:
                self._rename(agent, back)
            agent.returning = Returning(agent.id, epoch, resume)
        agent.passage = Passage(epoch, () if resume is None else resume.stateful)
        agent.io.write(attached_line(agent.id, agent.asked, self._heritage.secret_of(agent.id), epoch))

    def _rename(self, agent: Agent, session: SessionId) -> None:
        del self._connections.agents[agent.id]
        agent.id = session
        self._connections.agents[session] = agent

    def _enter(self, resume: ResumeSession | None, fresh: SessionId | None = None) -> tuple[SessionId, Epoch]:
        """The session that begins or comes back, and the epoch that its requests were sent under."""
        if resume is None:
            return fresh or self._mint(), self.epoch
        session = SessionId(resume.session)
        if self._host.may_return() and self._heritage.claim(session, resume.secret):
            log.info("%s is back", session)
            return session, Epoch(resume.supervisor)
        fresh = fresh or self._mint()
        log.info("%s goes on as %s: nothing is known of its calls", resume.session, fresh)
        return fresh, Epoch("")

    def _refuse(self, agent: Agent, text: str) -> None:
        agent.io.write(refused_line(text))
        agent.io.flush()
        self._connections.drop(agent.id, text)

    def _carry(self, agent: Agent, attach: Attach, lines: list[bytes | OverlongLine]) -> None:
        """Many sessions come through this connection. None of them brings an environment."""
        agent.io.write(attached_line(agent.id, []))
        agent.io.flush()
        agent.carrier = Carrier(
            agent.id,
            attach,
            self._host,
            self._connections.streams,
            lingering=self._connections.lingering,
            heritage=self._heritage,
            enter=self._enter,
            write=partial(self._connections.queue, agent),
            drop=partial(self._connections.drop, agent.id),
        )
        if lines and not agent.io.closed:
            agent.carrier.take(lines)

    def _await_environment(self, agent: Agent, lines: list[bytes | OverlongLine]) -> None:
        assert agent.attach is not None
        for place, line in enumerate(lines):
            environment = parse_environment(line, agent.attach.mark) if isinstance(line, bytes) else None
            if environment is not None:
                agent.kept += lines[place + 1 :]
                self.welcome(agent, {name: environment[name] for name in agent.asked if name in environment})
                return
            agent.kept.append(line)
        self._bound(agent)

    def _bound(self, agent: Agent) -> None:
        resume = None if agent.attach is None else agent.attach.resume
        early = agent.kept[0 if resume is None else resume.taken :]
        if sum(len(line) for line in early if isinstance(line, bytes)) > EARLY_BYTES:
            text = f"it has sent {EARLY_BYTES} bytes before it was welcome"
            self._connections.drop(agent.id, text)

    def welcome_early(self, agent: Agent) -> None:
        """It comes in without the variables that its carrier was asked for. They are taken when they come."""
        agent.questions = 1
        agent.asked_at = math.inf
        agent.late = agent.asked
        self.welcome(agent, {})

    def welcome(self, agent: Agent, environment: dict[str, str]) -> None:
        """The dialogue is over: it comes in, if need be after one more look at where it wants to be (while it
        was asked, the last of those who were there may have left).
        """
        assert agent.attach is not None
        agent.asked = []
        agent.looking = True
        self._host.look(agent.attach, partial(self._welcome, agent, agent.attach, environment))
        if agent.looking:
            agent.io.wait(True)

    def _welcome(self, agent: Agent, attach: Attach, environment: dict[str, str]) -> None:
        """From now on its lines are taken, first those that came early."""
        agent.looking = False
        if agent.io.closed:
            return
        agent.welcomed = True
        kept, agent.kept = agent.kept, []
        self._host.welcome(agent.id, attach, environment)
        if agent.late:
            self._host.awaits_environment(agent.id, agent.late)
        if kept or agent.returning is not None:
            self._take(agent, kept)
        agent.io.wait(False)
