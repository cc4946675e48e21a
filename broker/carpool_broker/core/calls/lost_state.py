"""Which sessions have lost state at which servers, because a supervisor died or because another pool serves
them now, and how the supervisor is told (docs/rules.md, rule 15).

Owns the flags of `session.ServerUse`, the messages, and which servers a carrier must remember for its
session, because nothing else may be left that knows. In doubt an agent is told once too often that its state
is gone. Refuses to know: leases, which the supervisor has. Decision: docs/decisions/0032.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache

from carpool_broker.core.model.effects import SetStatefulServers
from carpool_broker.core.model.scope import LeftPools, Scope
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

RunsServer = Callable[[ServerName], bool]
"""Tells whether a supervisor runs this server."""


def supervisor_lost(
    sessions: Iterable[Session], states: Mapping[PoolKey, PoolChanged], runs: RunsServer
) -> None:
    """A supervisor has gone. Note where sessions may have had state there: at each server that it ran
    (`runs`) and had reported an instance of, and at each of them in mode `session` that has run a call,
    whether the session sees it now or not.
    """
    keeping = {key for key, state in states.items() if _keeps_state(state)}

    @cache  # many sessions have one scope
    def servers_in_session_mode(scope: Scope) -> set[ServerName]:
        return {entry.server for entry in scope.servers if entry.key in keeping} if keeping else set()

    for session in sessions:
        # A server may be out of its sight just now: kept back by its profile, or out of the file.
        in_session_mode = servers_in_session_mode(session.scope) if session.servers else set()
        for server, use in session.servers.items():
            if not runs(server):
                continue
            may_hold_state = use.has_run and (use.is_stateful or server in in_session_mode)
            use.has_run = use.is_reported or may_hold_state
            use.is_reported = False


def supervisor_connected(
    sessions: Iterable[Session],
    held: Mapping[SessionId, Collection[ServerName]],
    runs: RunsServer,
) -> None:
    """A supervisor has connected, which `runs` these servers. `held` is what it knows to be held or lost by
    each session; it is empty for a new supervisor. All other state of the sessions at its servers is lost,
    and they have not been told.
    """
    for session in sessions:
        kept = held.get(session.id, ())
        for server, use in session.servers.items():
            if use.has_run and runs(server):
                use.is_lost = use.is_lost or server not in kept
                use.is_reported = use.is_reported or not use.is_lost
                use.has_run = False


def report_sessions(
    sessions: Collection[Session],
    expected: Iterable[SessionNote],
    runs: RunsServer,
) -> OpenSessions:
    """Return the open sessions and what each has lost while their supervisor, which `runs` these servers, was
    not connected; the losses count as reported. `expected` are the absent sessions that may come back.
    """
    notes: list[SessionNote] = []
    for each in sessions:
        lost = sorted(server for server, use in each.servers.items() if use.is_lost and runs(server))
        notes.append(SessionNote(each.id, lost, each.is_unresumable))
        for server in lost:
            use = each.servers[server]
            use.is_lost, use.is_reported = False, True
    return OpenSessions([*notes, *expected])


def scope_changed(session: Session, left: LeftPools) -> list[SessionPoolChanged]:
    """Return the pools that the session has left, where it may hold something of a server that it has
    called.
    """
    return [
        SessionPoolChanged(session.id, old, new)
        for server, old, new in left
        # What a session that keeps has called at an earlier broker is not known.
        if _is_called(session, server) or session.carrier_keeps_lines
    ]


def server_called(
    session: Session, server: ServerName, state: PoolChanged | None
) -> list[SetStatefulServers] | list[SessionNotResumable]:
    """Note the session's first call of this server, whose pool is in this state. It may have state there
    from now on.
    """
    is_first = not any(use.is_called for use in session.servers.values())
    session.server_use(server).is_called = True
    if is_first and session.is_unresumable:
        return [SessionNotResumable(session.id)]
    return _mark_stateful(session, server, state)


def _mark_stateful(
    session: Session, server: ServerName, state: PoolChanged | None
) -> list[SetStatefulServers]:
    use = session.server_use(server)
    if state is None or not _keeps_state(state) or use.is_stateful:
        return []
    use.is_stateful = True
    return [] if session.is_unresumable else [SetStatefulServers(session.id, _stateful_servers(session))]


def pool_became_stateful(sessions: Iterable[Session], state: PoolChanged) -> list[SetStatefulServers]:
    """The pool is in mode `session` now: some sessions may have called it already."""
    told: list[SetStatefulServers] = []
    for session in sessions:
        server = session.scope.server_of(state.key) if session.servers else None
        if server is not None and _is_called(session, server):
            told += _mark_stateful(session, server, state)
    return told


def session_resumed(session: Session, stateful: Collection[str]) -> list[SetStatefulServers]:
    """The carrier of a session that came back remembers that it may have state at these servers. The flags
    are set for those that are still there.
    """
    for entry in session.scope.servers:
        if entry.server in stateful:
            session.server_use(entry.server).is_stateful = True
    return [SetStatefulServers(session.id, _stateful_servers(session))] if stateful else []


def assume_state_lost(session: Session, runs: RunsServer) -> list[SessionStateLost]:
    """The session holds no lease any more at these servers: what it may have had is lost."""
    lost = [server for server in _stateful_servers(session) if runs(server)]
    for server in lost:
        session.servers[server].is_reported = True
    return [SessionStateLost(session.id, lost)] if lost else []


def _is_called(session: Session, server: ServerName) -> bool:
    use = session.servers.get(server)
    return use is not None and use.is_called


def _keeps_state(state: PoolChanged) -> bool:
    return state.mode == "session" and state.keeps_state


def _stateful_servers(session: Session) -> tuple[ServerName, ...]:
    return tuple(sorted(server for server, use in session.servers.items() if use.is_stateful))
