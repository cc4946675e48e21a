"""Sessions that go to another workspace without leaving.

Owns who may go where, and who is on the way. Before a session goes it is looked what is there, and its
carrier is asked for the variables that servers over there use, if it has not been asked yet; until both are
known, or take too long, the session stays where it is. Then the carrier is told where its session is, so that
a later broker has it there, and the core what follows. The moves of one session are made one after the other.

Invariant (`check`): the first move of a session is under way, and no other.
Knows nothing of: what a session finds where it goes (`configuration`), how is looked, how lines are worded.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from carpool_broker.config.configuration import Configuration, ConfigurationChange
from carpool_broker.config.locations import WorkspaceRequest, file_uri_path, workspace_request
from carpool_broker.config.scan import WorkspaceScan
from carpool_protocol.carrier.attach import WorkspaceChanged
from carpool_protocol.ids import SessionId
from carpool_protocol.link.messages import Root

MoveDone = Callable[[str], None]
"""What is done once a session has moved; otherwise with why it has not, as a sentence."""
SESSION_CLOSED = "the session has left meanwhile"


class WorkspaceScanner(Protocol):
    """What is needed of whoever looks (`watcher.Reader`)."""

    def scan(
        self, wish: WorkspaceRequest, then: Callable[[WorkspaceScan], None], *, spell: bool = False
    ) -> None:
        """Have `then` told what is there; at once where that is known. `spell`: a directory is named as
        sessions share it, and the sight is of that.
        """


class CarrierRequests(Protocol):
    """What is needed of the connections (`transport.connections`)."""

    def request_environment(self, session: SessionId, names: list[str]) -> int:
        """Ask the session's carrier for variables. The number of that question, counted from 1; 0: it is one
        that cannot be asked.
        """

    def announce_workspace(self, session: SessionId, change: WorkspaceChanged) -> None:
        """Tell the session's carrier where it is, if that comes back after a death of this broker."""


class _Move:
    """One move."""

    __slots__ = ("begun", "moved", "question", "then")

    def __init__(self, change: WorkspaceChanged, then: MoveDone) -> None:
        self.moved = change
        self.then = then
        self.begun = False
        self.question = 0
        """What its carrier was asked for it; 0: nothing yet, or nothing."""


class WorkspaceMoves:
    """All sessions of one broker. `feed` takes what follows for the core."""

    def __init__(
        self,
        configuration: Configuration,
        feed: Callable[[list[ConfigurationChange]], None],
        carriers: CarrierRequests,
        looks: WorkspaceScanner,
    ) -> None:
        self._configuration = configuration
        self._feed = feed
        self._carriers = carriers
        self._looks = looks
        self._moves: dict[SessionId, deque[_Move]] = {}
        self._going: set[SessionId] = set()

    def move_objection(self, session: SessionId, workspace: str) -> str:
        """Why this session cannot go to a workspace, as a sentence; empty: it can, if that is there."""
        guest = self._configuration.session_context(session)
        if guest is None:
            return "there is no such session: `carpool status` lists them"
        if guest.attach.run is not None:
            return "a session of `carpool run` has the server that it brought, and no workspace"
        return self._configuration.workspace_objection(guest.attach, workspace)

    def move(self, session: SessionId, change: WorkspaceChanged, then: MoveDone = lambda _: None) -> None:
        """The session goes there, after those moves of it that wait. `then` once it has, or cannot."""
        self._moves.setdefault(session, deque()).append(_Move(change, then))
        self._begin_next(session)

    def roots_received(self, session: SessionId, roots: tuple[Root, ...], *, changed: bool) -> None:
        """The session's agent names these roots, and where they are `changed` it goes where they are."""
        self._feed(self._configuration.roots_received(session, roots))
        guest = self._configuration.session_context(session)
        if (
            changed
            and roots
            and guest is not None
            and guest.follows_roots
            and (path := file_uri_path(roots[0].uri))
        ):
            self.move(session, WorkspaceChanged(path, by_roots=True))

    def configuration_changed(self, sessions: list[SessionId]) -> None:
        """The configuration is another one: carriers are asked for what it uses and they have not said."""
        for session in sessions:
            self._request_variables(session, None)

    # --- one move ---------------------------------------------------------------------------------------

    def _begin_next(self, session: SessionId) -> None:
        """Begin the first move of its line. In a loop: many may be over as soon as they have begun."""
        if session in self._going:
            return  # from within
        self._going.add(session)
        while (line := self._moves.get(session)) and not line[0].begun:
            line[0].begun = True
            self._begin(session, line[0])
        self._going.discard(session)

    def _begin(self, session: SessionId, move: _Move) -> None:
        self._looks.scan(self._request(session, move), partial(self._scanned, session, move), spell=True)

    def _request(self, session: SessionId, move: _Move) -> WorkspaceRequest:
        guest = self._configuration.session_context(session)
        assert guest is not None, "the moves of a session that has left are forgotten"
        return workspace_request(guest.attach, move.moved)

    def _scanned(self, session: SessionId, move: _Move, scan: WorkspaceScan) -> None:
        """It is known what is there."""
        if not self._is_first(session, move):
            return  # it has left
        why = scan.objection
        if scan.spot.lost:
            why = f"what is in {scan.spot.lost} could not be read in time"
        if why or (move.moved.by_roots and not self._roots_lead_to(session, scan)):
            self._end(session, move, why)
            return
        move.moved = replace(move.moved, workspace=scan.directory or move.moved.workspace)
        move.question = self._request_variables(session, move.moved)
        if not move.question:
            self._complete(session, move)

    def _roots_lead_to(self, session: SessionId, scan: WorkspaceScan) -> bool:
        """Whether roots lead there: nobody has put it anywhere in words, and it is another workspace."""
        guest = self._configuration.session_context(session)
        if guest is None or not guest.follows_roots:
            return False
        root_of = self._configuration.layers.root_of
        here = guest.location
        return (scan.spot.name, scan.workspace.root) != (here.name, root_of(here))

    def _request_variables(self, session: SessionId, change: WorkspaceChanged | None) -> int:
        names = self._configuration.unknown_variables(session, change)
        question = self._carriers.request_environment(session, names) if names else 0
        guest = self._configuration.session_context(session)
        if question and guest is not None:
            guest.requested_variables.update(names)
        return question

    def environment_requested(self, session: SessionId, names: list[str]) -> None:
        """The carrier was asked for these variables when it came, and has not answered yet."""
        guest = self._configuration.session_context(session)
        if guest is not None:
            guest.requested_variables.update(names)

    def environment_received(self, session: SessionId, question: int, environment: dict[str, str]) -> None:
        """The carrier has answered this question, and those before it. Also: it takes too long."""
        self._feed(self._configuration.add_environment(session, environment))
        line = self._moves.get(session)
        if line and 0 < line[0].question <= question:
            self._complete(session, line[0])

    def _complete(self, session: SessionId, move: _Move) -> None:
        """All is known; but what is there may have been forgotten meanwhile, while nobody else was there."""
        self._looks.scan(self._request(session, move), partial(self._completed, session, move))

    def _completed(self, session: SessionId, move: _Move, _: WorkspaceScan) -> None:
        if self._is_first(session, move):
            self._carriers.announce_workspace(session, move.moved)
            self._feed(self._configuration.move_session(session, move.moved))
            self._end(session, move, "")

    def _end(self, session: SessionId, move: _Move, why: str) -> None:
        """It has moved, or does not. The next one's turn."""
        line = self._moves[session]
        line.popleft()
        if not line:
            del self._moves[session]
        move.then(why)
        self._begin_next(session)

    def _is_first(self, session: SessionId, move: _Move) -> bool:
        line = self._moves.get(session)
        return line is not None and line[0] is move

    def session_closed(self, session: SessionId) -> None:
        """It is gone."""
        for each in self._moves.pop(session, ()):
            each.then(SESSION_CLOSED)

    def check(self) -> None:
        """Assert every invariant."""
        assert all(line and line[0].begun for line in self._moves.values())
        assert not any(each.begun for line in self._moves.values() for each in [*line][1:])
