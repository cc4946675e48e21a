"""Moves of sessions to another workspace without ending.

Owns which session may move where, and the moves under way. Before a move the new workspace is scanned, and
the carrier is asked for the variables of servers there, if it was not asked before. Until both are known, or
take too long, the session stays in place. Then the carrier is told the session's new workspace, for a later
broker, and the core gets the changes. The moves of one session happen one after the other.

Invariant (`check`): the first move of a session is under way, and no other. Knows nothing of: the servers at
the new place (`configuration`), how to scan, the text of lines.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from carpool_broker.config.configuration import Configuration, ConfigurationChange
from carpool_broker.config.locations import WorkspaceRequest, file_uri_path, workspace_request
from carpool_broker.config.scan import WorkspaceScan
from carpool_protocol.carrier.attach_line import WorkspaceChanged
from carpool_protocol.ids import SessionId
from carpool_protocol.link.messages import Root

MoveDone = Callable[[str], None]
"""Called when a session has moved (empty text), or with the reason why it has not."""
SESSION_CLOSED = "the session has ended meanwhile"


class WorkspaceScanner(Protocol):
    """The part of the scanner (`watcher.ConfigWatcher`) that this module needs."""

    def scan(
        self, request: WorkspaceRequest, then: Callable[[WorkspaceScan], None], *, spell: bool = False
    ) -> None:
        """Scan a workspace and call `then` with the result, at once if it is known.

        `spell`: use the spelling of the directory that all sessions share.
        """


class CarrierRequests(Protocol):
    """The part of the connections (`transport.connections`) that this module needs."""

    def request_environment(self, session: SessionId, names: list[str]) -> int:
        """Ask the session's carrier for variables. Returns the number of the request, from 1; 0: it cannot be
        asked.
        """

    def announce_workspace(self, session: SessionId, change: WorkspaceChanged) -> None:
        """Tell the session's carrier the new workspace, for a resume at a later broker."""


class _Move:
    """A waiting or running move of one session."""

    __slots__ = ("begun", "moved", "question", "then")

    def __init__(self, change: WorkspaceChanged, then: MoveDone) -> None:
        self.moved = change
        self.then = then
        self.begun = False
        self.question = 0
        """The number of the request to its carrier; 0: none."""


class WorkspaceMoves:
    """The moves of all sessions of one broker. `feed`: takes changes for the core."""

    def __init__(
        self,
        configuration: Configuration,
        feed: Callable[[list[ConfigurationChange]], None],
        carriers: CarrierRequests,
        scanner: WorkspaceScanner,
    ) -> None:
        self._configuration = configuration
        self._feed = feed
        self._carriers = carriers
        self._scanner = scanner
        self._moves: dict[SessionId, deque[_Move]] = {}
        self._going: set[SessionId] = set()

    def move_objection(self, session: SessionId, workspace: str) -> str:
        """Why this session cannot move to a workspace, as a clause; empty: it can, if the place exists."""
        context = self._configuration.session_context(session)
        if context is None:
            return "there is no such session: `carpool status` lists them"
        if context.attach.run is not None:
            return "a session of `carpool run` has only its own server, and no workspace"
        return self._configuration.workspace_objection(context.attach, workspace)

    def move(self, session: SessionId, change: WorkspaceChanged, then: MoveDone = lambda _: None) -> None:
        """Move the session, after its waiting moves. `then` is called at the end."""
        self._moves.setdefault(session, deque()).append(_Move(change, then))
        self._begin_next(session)

    def roots_received(self, session: SessionId, roots: tuple[Root, ...], *, changed: bool) -> None:
        """Apply the roots of the session's agent. If they are `changed`, the session may move to their
        workspace.
        """
        self._feed(self._configuration.roots_received(session, roots))
        context = self._configuration.session_context(session)
        if (
            changed
            and roots
            and context is not None
            and context.follows_roots
            and (path := file_uri_path(roots[0].uri))
        ):
            self.move(session, WorkspaceChanged(path, by_roots=True))

    def configuration_changed(self, sessions: list[SessionId]) -> None:
        """Ask carriers for variables that the new configuration uses and they have not sent."""
        for session in sessions:
            self._request_variables(session, None)

    # --- one move ---------------------------------------------------------------------------------------

    def _begin_next(self, session: SessionId) -> None:
        """Begin the first move of the session's queue. A loop, because moves may end as soon as they
        begin.
        """
        if session in self._going:
            return  # called from within the loop
        self._going.add(session)
        while (line := self._moves.get(session)) and not line[0].begun:
            line[0].begun = True
            self._begin(session, line[0])
        self._going.discard(session)

    def _begin(self, session: SessionId, move: _Move) -> None:
        self._scanner.scan(self._request(session, move), partial(self._scanned, session, move), spell=True)

    def _request(self, session: SessionId, move: _Move) -> WorkspaceRequest:
        context = self._configuration.session_context(session)
        assert context is not None, "the moves of a session that has left are forgotten"
        return workspace_request(context.attach, move.moved)

    def _scanned(self, session: SessionId, move: _Move, scan: WorkspaceScan) -> None:
        """Continue a move after its scan."""
        if not self._is_first(session, move):
            return  # the session has ended
        why = scan.objection
        if scan.location.lost:
            why = f"what is in {scan.location.lost} could not be read in time"
        if why or (move.moved.by_roots and not self._roots_lead_to(session, scan)):
            self._end(session, move, why)
            return
        move.moved = replace(move.moved, workspace=scan.directory or move.moved.workspace)
        move.question = self._request_variables(session, move.moved)
        if not move.question:
            self._complete(session, move)

    def _roots_lead_to(self, session: SessionId, scan: WorkspaceScan) -> bool:
        """True if the agent's roots move the session: it named no workspace, and the roots lie in another
        one.
        """
        context = self._configuration.session_context(session)
        if context is None or not context.follows_roots:
            return False
        root_of = self._configuration.layers.root_of
        location = context.location
        return (scan.location.name, scan.workspace.root) != (location.name, root_of(location))

    def _request_variables(self, session: SessionId, change: WorkspaceChanged | None) -> int:
        names = self._configuration.unknown_variables(session, change)
        question = self._carriers.request_environment(session, names) if names else 0
        context = self._configuration.session_context(session)
        if question and context is not None:
            context.requested_variables.update(names)
        return question

    def environment_requested(self, session: SessionId, names: list[str]) -> None:
        """The carrier was asked for these variables at its attach line and has not answered yet."""
        context = self._configuration.session_context(session)
        if context is not None:
            context.requested_variables.update(names)

    def environment_received(self, session: SessionId, question: int, environment: dict[str, str]) -> None:
        """The carrier has answered this request and all before it, or takes too long."""
        self._feed(self._configuration.add_environment(session, environment))
        line = self._moves.get(session)
        if line and 0 < line[0].question <= question:
            self._complete(session, line[0])

    def _complete(self, session: SessionId, move: _Move) -> None:
        """Everything is known. The scan is repeated, because its result may have been forgotten meanwhile."""
        self._scanner.scan(self._request(session, move), partial(self._completed, session, move))

    def _completed(self, session: SessionId, move: _Move, _: WorkspaceScan) -> None:
        if self._is_first(session, move):
            self._carriers.announce_workspace(session, move.moved)
            self._feed(self._configuration.move_session(session, move.moved))
            self._end(session, move, "")

    def _end(self, session: SessionId, move: _Move, why: str) -> None:
        """End a move and begin the next one."""
        line = self._moves[session]
        line.popleft()
        if not line:
            del self._moves[session]
        move.then(why)
        self._begin_next(session)

    def _is_first(self, session: SessionId, move: _Move) -> bool:
        line = self._moves.get(session)
        return line is not None and line[0] is move

    def is_moving(self, session: SessionId) -> bool:
        """True while a move of this session is under way."""
        return session in self._moves

    def session_closed(self, session: SessionId) -> None:
        """Drop the moves of a session that has ended."""
        for each in self._moves.pop(session, ()):
            each.then(SESSION_CLOSED)

    def check(self) -> None:
        """Assert every invariant."""
        assert all(line and line[0].begun for line in self._moves.values())
        assert not any(each.begun for line in self._moves.values() for each in [*line][1:])
