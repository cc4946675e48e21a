"""Who has lost state, with a supervisor that is gone or by being served elsewhere, and how the supervisor
hears of it (rule 15).

Owns the notes per session and the messages; which servers a carrier is to remember for its session, because
nobody else may be left who does. In doubt an agent hears once too often that its state is gone.
Knows nothing of: leases, which are the supervisor's.
Decision: docs/decisions/0032.
"""

from collections.abc import Collection, Iterable, Mapping

from carpool_broker.core.model.effects import SetStatefulServers
from carpool_broker.core.model.scope import Scope
from carpool_broker.core.model.session import Session
from carpool_protocol.ids import PoolKey, ServerName, SessionId
from carpool_protocol.link.messages import (
    OpenSessions,
    PoolChanged,
    SessionNote,
    SessionNotResumable,
    SessionPoolChanged,
    SessionStateLost,
)


def supervisor_lost(sessions: Iterable[Session], states: Mapping[PoolKey, PoolChanged]) -> None:
    """The supervisor is gone. What sessions may have had there counts as called: what it is known to have had
    of them, and state at each server in mode `session` that they have called, whether they see it now or not.
    """
    for session in sessions:
        # A server may be out of its sight just now: kept back by its profile, or out of the file.
        had = session.marked | (session.called & session.stateful)
        for entry in session.scope.servers if session.called else ():
            state = states.get(entry.key)
            if entry.server in session.called and state is not None and state.mode == "session":
                had.add(entry.server)
        session.called = had
        session.marked.clear()


def supervisor_connected(
    sessions: Iterable[Session], held: Mapping[SessionId, Collection[ServerName]]
) -> None:
    """A supervisor has come. `held`: what it knows to be held or lost there; nothing where it is another than
    before. All else of what sessions had is gone, and nobody has told them.
    """
    for session in sessions:
        session.lost_servers |= session.called.difference(held.get(session.id, ()))
        session.marked |= session.called - session.lost_servers
        session.called.clear()


def report_sessions(sessions: Collection[Session], expected: Iterable[SessionNote] = ()) -> OpenSessions:
    """Who is there: some may have left, and some have lost what they had, while no supervisor was. It counts
    as said. `expected`: of who is not here and may come back.
    """
    notes = [SessionNote(each.id, sorted(each.lost_servers), each.is_unresumable) for each in sessions]
    for each in sessions:
        each.marked |= each.lost_servers
        each.lost_servers.clear()
    return OpenSessions([*notes, *expected])


def pools_of(scope: Scope) -> dict[ServerName, PoolKey]:
    """Where who looks through this is served."""
    return {entry.server: entry.key for entry in scope.servers}


def scope_changed(session: Session, before: Scope) -> list[SessionPoolChanged]:
    """It was served there before: what it held there of servers that it has called is gone."""
    now = pools_of(session.scope)
    return [
        SessionPoolChanged(session.id, old, now.get(server, PoolKey("")))
        for server, old in pools_of(before).items()
        # What a session that keeps has called at an earlier broker is not known.
        if (server in session.used or session.carrier_keeps_lines) and now.get(server) != old
    ]


def server_called(
    session: Session, server: ServerName, state: PoolChanged | None
) -> list[SetStatefulServers] | list[SessionNotResumable]:
    """Its first call of this server, which is in this state, goes. It may have state there from now on."""
    first = not session.used
    session.used.add(server)
    if first and session.is_unresumable:
        return [SessionNotResumable(session.id)]
    return _stateful(session, server, state)


def _stateful(session: Session, server: ServerName, state: PoolChanged | None) -> list[SetStatefulServers]:
    if state is None or state.mode != "session" or server in session.stateful:
        return []
    session.stateful.add(server)
    return [] if session.is_unresumable else [SetStatefulServers(session.id, tuple(sorted(session.stateful)))]


def pool_became_stateful(sessions: Iterable[Session], state: PoolChanged) -> list[SetStatefulServers]:
    """This pool is in mode `session` now: some may have called it already."""
    told: list[SetStatefulServers] = []
    for session in sessions:
        server = session.scope.server_of(state.key) if session.used else None
        if server is not None and server in session.used:
            told += _stateful(session, server, state)
    return told


def session_resumed(session: Session, stateful: Collection[str]) -> list[SetStatefulServers]:
    """Its carrier remembers that it may have state at these servers. It goes on doing so for those that there
    are.
    """
    session.stateful.update(entry.server for entry in session.scope.servers if entry.server in stateful)
    return [SetStatefulServers(session.id, tuple(sorted(session.stateful)))] if stateful else []


def assume_state_lost(session: Session) -> list[SessionStateLost]:
    """Whoever leased it something does so no more: what it may have had is gone."""
    session.marked |= session.stateful
    return [SessionStateLost(session.id, sorted(session.stateful))] if session.stateful else []
