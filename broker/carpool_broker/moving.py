"""Sessions that go to another workspace without leaving.

Owns who may go where, and who is on the way: before a session goes, its carrier is asked for the variables
that servers over there use, if it has not been asked yet; until it has said them, or too late, the session
stays where it is. Then the carrier is told where its session is, so that a later broker has it there, and the
core what follows.

Invariant (`check`): whoever waits has been asked for something.
Knows nothing of: what a session finds where it goes (`configuration`), how lines are worded.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from carpool_broker.configuration import Configuration, Followed
from carpool_broker.whereabouts import directory_of
from carpool_protocol.attach import Moved
from carpool_protocol.ids import SessionId

Then = Callable[[bool], None]
"""What is done once a session has moved; with False when it has left instead."""


class Carriers(Protocol):
    """What is needed of the door."""

    def ask_environment(self, session: SessionId, names: list[str]) -> int:
        """Ask the session's carrier for variables. The number of that question, counted from 1; 0: it is one
        that cannot be asked.
        """

    def tell_moved(self, session: SessionId, moved: Moved) -> None:
        """Tell the session's carrier where it is, if that comes back after a death of this broker."""


class _Leaving:
    """One move that waits."""

    __slots__ = ("moved", "question", "then")

    def __init__(self, question: int, moved: Moved, then: Then) -> None:
        self.question = question
        self.moved = moved
        self.then = then


class Moving:
    """All sessions of one broker. `feed` takes what follows for the core."""

    def __init__(self, configuration: Configuration, feed: Callable[[list[Followed]], None]) -> None:
        self.carriers: Carriers
        """Set once, by who composes."""
        self._configuration = configuration
        self._feed = feed
        self._leaving: dict[SessionId, deque[_Leaving]] = {}

    def obstacle(self, session: SessionId, workspace: str) -> str:
        """Why this session cannot go to a workspace, as a sentence; empty: it can."""
        guest = self._configuration.guest(session)
        if guest is None:
            return "there is no such session: `carpool status` lists them"
        if guest.attach.run is not None:
            return "a session of `carpool run` has the server that it brought, and no workspace"
        return self._configuration.objection_to(guest.attach, workspace)

    def go(self, session: SessionId, moved: Moved, then: Then = lambda _: None) -> None:
        """The session goes there, after those moves of it that wait. `then` once it has."""
        question = self._ask(session, moved)
        line = self._leaving.get(session)
        if question or line:
            line = self._leaving.setdefault(session, deque())
            line.append(_Leaving(question or line[-1].question, moved, then))
        else:
            self._gone(session, moved, then)

    def follow_roots(self, session: SessionId, roots: tuple[str, ...], *, changed: bool) -> None:
        """The session's agent names these roots, and where they are `changed` it goes where they are."""
        self._feed(self._configuration.use_roots(session, roots))
        moved = self._led_by(session, roots) if changed and roots else None
        if moved is not None:
            self.go(session, moved)

    def _led_by(self, session: SessionId, roots: tuple[str, ...]) -> Moved | None:
        """To the workspace of the first root. None: it stays."""
        configuration = self._configuration
        guest = configuration.guest(session)
        if guest is None or not guest.wanders or not (directory := directory_of(roots[0])):
            return None
        moved = Moved(directory, by_roots=True)
        there, here, root_of = configuration.spot_of(guest, moved), guest.spot, configuration.layers.root_of
        return None if (there.name, root_of(there)) == (here.name, root_of(here)) else moved

    def look(self, sessions: list[SessionId]) -> None:
        """The configuration is another one: carriers are asked for what it uses and they have not said."""
        for session in sessions:
            self._ask(session, None)

    def _ask(self, session: SessionId, moved: Moved | None) -> int:
        names = self._configuration.unasked(session, moved)
        question = self.carriers.ask_environment(session, names) if names else 0
        guest = self._configuration.guest(session)
        if question and guest is not None:
            guest.asked.update(names)
        return question

    def heard(self, session: SessionId, question: int, environment: dict[str, str]) -> None:
        """The carrier has answered this question, and those before it. Also: it takes too long."""
        followed = self._configuration.learn(session, environment)
        line = self._leaving.get(session)
        if not line or line[0].question > question:
            self._feed(followed)
        while line and line[0].question <= question:
            each = line.popleft()
            self._gone(session, each.moved, each.then)
        if not line:
            self._leaving.pop(session, None)

    def forget(self, session: SessionId) -> None:
        """It is gone."""
        for each in self._leaving.pop(session, ()):
            each.then(False)

    def _gone(self, session: SessionId, moved: Moved, then: Then) -> None:
        self.carriers.tell_moved(session, moved)
        self._feed(self._configuration.move(session, moved))
        then(True)

    def check(self) -> None:
        """Assert every invariant."""
        assert all(each.question for line in self._leaving.values() for each in line)
        assert all(self._leaving.values())
