"""The roots that agents name themselves, for the servers that are told them (rule 6).

Owns the question to the agent: asked once it is ready, where its configuration uses the answer, and whenever
it says that its roots are others, where they may also take it to another workspace; one question at a time. A
server never reaches the agent with `roots/list`: what it is told is part of its pool's key, so another answer
gives the session another source, never the process another answer. Source: MCP 2025-11-25, client/roots.

Invariant (`check`): whoever is asked is there and has declared roots.
Knows nothing of: which workspace roots are of, how an answer is worded (`era.server_requests`) or a source
found for it, what waits for it.
"""

from collections.abc import Callable, Mapping
from typing import Final

from carpool_broker.core.configuration.effective_sources import EffectiveSources
from carpool_broker.core.model.effects import AnyEffect, ApplyRoots, SendAsk
from carpool_broker.core.model.events import RootsAnswered
from carpool_broker.core.model.session import Session
from carpool_protocol.ids import EMPTY_OBJECT, AskId, SessionId
from carpool_protocol.link.messages import Root

METHOD: Final = "roots/list"
PREFIX: Final = "roots-"
"""The ids of these questions begin with this, and no others do: a supervisor's begin with eight hexadecimal
digits. So an answer is recognized without looking up the question.
"""


class _AgentRoots:
    """The roots of one agent, as far as they are known."""

    __slots__ = ("asked", "changed", "roots", "stale")

    def __init__(self) -> None:
        self.asked = AskId("")
        """The id of the open question; empty if there is none."""
        self.stale = True
        """True if the last answer, if any, no longer holds."""
        self.changed = False
        """True if the agent has said that its roots changed."""
        self.roots: tuple[Root, ...] | None = None
        """The last answer."""


class AgentRoots:
    """The roots of all agents that declare the capability and are ready to be asked."""

    def __init__(
        self,
        sessions: Mapping[SessionId, Session],
        sources: EffectiveSources,
        out: Callable[[AnyEffect], None],
    ) -> None:
        self._sessions = sessions
        self._sources = sources
        self._emit = out
        self._agents: dict[SessionId, _AgentRoots] = {}
        self._count = 0

    def capabilities_known(self, session: Session) -> None:
        """The capabilities of an agent are known. If its roots matter, its servers wait until it has said
        them.
        """
        session.awaits_roots = (
            session.capabilities.roots
            and not session.input_ended
            and bool(self._sources.servers_with_roots(session.source))
        )

    def agent_ready(self, session: Session) -> None:
        """`notifications/initialized` has come: the agent must not be asked before it (MCP 2025-11-25,
        basic/lifecycle).
        """
        is_new = session.id not in self._agents and not session.input_ended
        if is_new and session.greeted and session.capabilities.roots:
            self._agents[session.id] = _AgentRoots()
            self.recheck(session)

    def roots_changed(self, session: Session) -> None:
        """`notifications/roots/list_changed` has come."""
        agent = self._agents.get(session.id)
        if agent is not None:
            agent.stale = agent.changed = True
            self.recheck(session)

    def recheck(self, session: Session) -> None:
        """Ask the agent, if that is needed and no question is open."""
        agent = self._agents.get(session.id)
        if agent is None or not agent.stale or agent.asked:
            return
        matter = bool(self._sources.servers_with_roots(session.source))
        if not matter and not (agent.changed and session.follows_roots):
            return
        self._count += 1
        agent.stale = False
        agent.asked = AskId(f"{PREFIX}{self._count}")
        if matter and agent.roots is None:
            session.awaits_roots = True
        ask, version = agent.asked, session.version
        self._emit(SendAsk(session.id, ask, METHOD, EMPTY_OBJECT, wants_progress=False, version=version))

    def roots_answered(self, session: Session, event: RootsAnswered) -> bool:
        """The agent has answered. Returns False if that is not the open question. An agent that cannot tell
        its roots keeps its last answer, or else its workspace.
        """
        agent = self._agents.get(session.id)
        if agent is None or not agent.asked or agent.asked != event.ask:
            return False
        agent.asked = AskId("")
        if event.roots is None or event.roots == agent.roots:
            session.awaits_roots = False
        else:
            agent.roots = event.roots
            self._emit(ApplyRoots(session.id, event.roots, agent.changed))
        self.recheck(session)
        return True

    def input_ended(self, session: Session) -> None:
        """The agent sends nothing more: it keeps its last answer, or else its workspace."""
        self._agents.pop(session.id, None)
        session.awaits_roots = False

    def session_closed(self, session: Session) -> None:
        """The session has closed."""
        self._agents.pop(session.id, None)

    def check(self) -> None:
        """Assert every invariant."""
        for session in self._agents:
            assert self._sessions[session].capabilities.roots
