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
        in_session_mode = {
            entry.server
            for entry in (session.scope.servers if session.servers else ())
            if (state := states.get(entry.key)) is not None and state.mode == "session"
        }
        for server, use in session.servers.items():
            may_hold_state = use.has_run and (use.is_stateful or server in in_session_mode)
            use.has_run = use.is_reported or may_hold_state
            use.is_reported = False


def supervisor_connected(
    sessions: Iterable[Session], held: Mapping[SessionId, Collection[ServerName]]
) -> None:
    """A supervisor has come. `held`: what it knows to be held or lost there; nothing where it is another than
    before. All else of what sessions had is gone, and nobody has told them.
    """
    for session in sessions:
        kept = held.get(session.id, ())
        for server, use in session.servers.items():
            if use.has_run:
                use.is_lost = use.is_lost or server not in kept
                use.is_reported = use.is_reported or not use.is_lost
                use.has_run = False


def report_sessions(sessions: Collection[Session], expected: Iterable[SessionNote] = ()) -> OpenSessions:
    """Who is there: some may have left, and some have lost what they had, while no supervisor was. It counts
    as said. `expected`: of who is not here and may come back.
    """
    notes: list[SessionNote] = []
    for each in sessions:
        lost = sorted(server for server, use in each.servers.items() if use.is_lost)
        notes.append(SessionNote(each.id, lost, each.is_unresumable))
        for server in lost:
            use = each.servers[server]
            use.is_lost, use.is_reported = False, True
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
        if (_is_called(session, server) or session.carrier_keeps_lines) and now.get(server) != old
    ]


def server_called(
    session: Session, server: ServerName, state: PoolChanged | None
) -> list[SetStatefulServers] | list[SessionNotResumable]:
    """Its first call of this server, which is in this state, goes. It may have state there from now on."""
    is_first = not any(use.is_called for use in session.servers.values())
    session.server_use(server).is_called = True
    if is_first and session.is_unresumable:
        return [SessionNotResumable(session.id)]
    return _mark_stateful(session, server, state)


def _mark_stateful(
    session: Session, server: ServerName, state: PoolChanged | None
) -> list[SetStatefulServers]:
    use = session.server_use(server)
    if state is None or state.mode != "session" or use.is_stateful:
        return []
    use.is_stateful = True
    return [] if session.is_unresumable else [SetStatefulServers(session.id, _stateful_servers(session))]


def pool_became_stateful(sessions: Iterable[Session], state: PoolChanged) -> list[SetStatefulServers]:
    """This pool is in mode `session` now: some may have called it already."""
    told: list[SetStatefulServers] = []
    for session in sessions:
        server = session.scope.server_of(state.key) if session.servers else None
        if server is not None and _is_called(session, server):
            told += _mark_stateful(session, server, state)
    return told


def session_resumed(session: Session, stateful: Collection[str]) -> list[SetStatefulServers]:
    """Its carrier remembers that it may have state at these servers. It goes on doing so for those that there
    are.
    """
    for entry in session.scope.servers:
        if entry.server in stateful:
            session.server_use(entry.server).is_stateful = True
    return [SetStatefulServers(session.id, _stateful_servers(session))] if stateful else []


def assume_state_lost(session: Session) -> list[SessionStateLost]:
    """Whoever leased it something does so no more: what it may have had is gone."""
    lost = _stateful_servers(session)
    for server in lost:
        session.servers[server].is_reported = True
    return [SessionStateLost(session.id, list(lost))] if lost else []


def _is_called(session: Session, server: ServerName) -> bool:
    use = session.servers.get(server)
    return use is not None and use.is_called


def _stateful_servers(session: Session) -> tuple[ServerName, ...]:
    return tuple(sorted(server for server, use in session.servers.items() if use.is_stateful))
