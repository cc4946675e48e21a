"""The roots that agents name themselves, for the servers that are told them (rule 6).

Owns the question to the agent: asked once it is ready, where its configuration uses the answer, and whenever
it says that its roots are others, where they may also take it to another workspace; one question at a time. A
server never reaches the agent with `roots/list`: what it is told is part of its pool's key, so another answer
gives the session another source, never the process another answer. Source: MCP 2025-11-25, client/roots.

An answer is applied in the session's turn (`roots_turns`). There are many turns for first answers and few for
later ones, which agents may give as often as they like. Until then things are as while the agent is asked:
the roots before hold, or its servers wait for its first ones. The last answer is the one that is applied.

Invariants (`check`): each agent that is asked has a session and has declared roots; each answer that waits
has a place in the turns.
Knows nothing of: which workspace roots are of, how an answer is worded (`era.server_requests`) or a source
found for it, what waits for it.
"""

from collections.abc import Callable, Mapping
from typing import Final

from carpool_broker.core.configuration.effective_sources import EffectiveSources
from carpool_broker.core.model.effects import AnyEffect, ApplyRoots, SendAsk
from carpool_broker.core.model.events import RootsAnswered
from carpool_broker.core.model.session import Session
from carpool_broker.core.model.timer_kinds import BrokerTimers
from carpool_broker.core.requests.roots_turns import RootsTurns, TurnBounds
from carpool_protocol.ids import EMPTY_OBJECT, AskId, SessionId
from carpool_protocol.link.messages import Root

METHOD: Final = "roots/list"
PREFIX: Final = "roots-"
"""The ids of these questions begin with this, and no others do: a supervisor's begin with eight hexadecimal
digits. So an answer is recognized without looking up the question.
"""

FIRST_ANSWERS: Final = TurnBounds(of_one=64, of_one_s=0.1, of_all=256, of_all_s=0.05)
"""How many first answers are applied. All agents of a token may come back at the same time."""
LATER_ANSWERS: Final = TurnBounds(of_one=1, of_one_s=0.5, of_all=4, of_all_s=0.05)
"""The same for later ones."""


class _AgentRoots:
    """The roots of one agent, as far as they are known."""

    __slots__ = ("asked", "changed", "next_roots", "roots", "stale")

    def __init__(self) -> None:
        self.asked = AskId("")
        """The id of the open question; empty if there is none."""
        self.stale = True
        """True if the last answer, if any, no longer holds."""
        self.changed = False
        """True if the agent has said that its roots changed."""
        self.roots: tuple[Root, ...] | None = None
        """The last answer that was applied."""
        self.next_roots: tuple[Root, ...] | None = None
        """A later answer, which waits for its turn."""


class AgentRoots:
    """The roots of all agents that declare the capability and are ready to be asked."""

    def __init__(
        self,
        sessions: Mapping[SessionId, Session],
        sources: EffectiveSources,
        out: Callable[[AnyEffect], None],
        timers: BrokerTimers,
    ) -> None:
        self._sessions = sessions
        self._sources = sources
        self._emit = out
        self.first_turns = RootsTurns(timers, "first_roots", FIRST_ANSWERS, self._apply)
        self.later_turns = RootsTurns(timers, "changed_roots", LATER_ANSWERS, self._apply)
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

    def roots_answered(self, session: Session, event: RootsAnswered, now: float) -> bool:
        """The agent has answered. Returns False if that is not the open question. An agent that cannot tell
        its roots keeps its last answer, or else its workspace.
        """
        agent = self._agents.get(session.id)
        if agent is None or not agent.asked or agent.asked != event.ask:
            return False
        agent.asked = AskId("")
        if event.roots is None:
            if agent.next_roots is None:
                session.awaits_roots = False
        elif event.roots == agent.roots:
            session.awaits_roots = False
            agent.next_roots = None
            self._leave_turns(session)
        else:
            agent.next_roots = event.roots
            turns = self.first_turns if agent.roots is None else self.later_turns
            turns.add(session, now)
        self.recheck(session)
        return True

    def _apply(self, session: SessionId) -> None:
        """Apply the last answer of an agent."""
        agent = self._agents[session]
        assert agent.next_roots is not None, "without roots a session has no turn"
        agent.roots, agent.next_roots = agent.next_roots, None
        self._emit(ApplyRoots(session, agent.roots, agent.changed))

    def input_ended(self, session: Session) -> None:
        """The agent sends nothing more: it keeps its last answer, or else its workspace."""
        agent = self._agents.get(session.id)
        if agent is None or agent.next_roots is None:
            self._agents.pop(session.id, None)
            session.awaits_roots = False

    def session_closed(self, session: Session) -> None:
        """The session has closed."""
        self._agents.pop(session.id, None)
        self._leave_turns(session)

    def _leave_turns(self, session: Session) -> None:
        self.first_turns.remove(session)
        self.later_turns.remove(session)

    def check(self) -> None:
        """Assert every invariant."""
        for session in self._agents:
            assert self._sessions[session].capabilities.roots
        for each in self._sessions.values():
            agent = self._agents.get(each.id)
            waits = agent is not None and agent.next_roots is not None
            is_first = agent is not None and agent.roots is None
            assert self.first_turns.holds(each) == (waits and is_first)
            assert self.later_turns.holds(each) == (waits and not is_first)
        self.first_turns.check()
        self.later_turns.check()
