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

from carpool_broker.config.configuration import Configuration, Followed
from carpool_broker.config.locations import Wish, directory_of, wish_of
from carpool_broker.config.scan import Sight
from carpool_protocol.carrier.attach import Moved
from carpool_protocol.ids import SessionId
from carpool_protocol.link.messages import Root

Then = Callable[[str], None]
"""What is done once a session has moved; otherwise with why it has not, as a sentence."""
LEFT = "the session has left meanwhile"


class Looks(Protocol):
    """What is needed of whoever looks (`watcher.Reader`)."""

    def look(self, wish: Wish, then: Callable[[Sight], None], *, spell: bool = False) -> None:
        """Have `then` told what is there; at once where that is known. `spell`: a directory is named as
        sessions share it, and the sight is of that.
        """


class Carriers(Protocol):
    """What is needed of the connections (`transport.connections`)."""

    def ask_environment(self, session: SessionId, names: list[str]) -> int:
        """Ask the session's carrier for variables. The number of that question, counted from 1; 0: it is one
        that cannot be asked.
        """

    def tell_moved(self, session: SessionId, moved: Moved) -> None:
        """Tell the session's carrier where it is, if that comes back after a death of this broker."""


class _Leaving:
    """One move."""

    __slots__ = ("begun", "moved", "question", "then")

    def __init__(self, moved: Moved, then: Then) -> None:
        self.moved = moved
        self.then = then
        self.begun = False
        self.question = 0
        """What its carrier was asked for it; 0: nothing yet, or nothing."""


class Moving:
    """All sessions of one broker. `feed` takes what follows for the core."""

    def __init__(
        self,
        configuration: Configuration,
        feed: Callable[[list[Followed]], None],
        carriers: Carriers,
        looks: Looks,
    ) -> None:
        self._configuration = configuration
        self._feed = feed
        self._carriers = carriers
        self._looks = looks
        self._leaving: dict[SessionId, deque[_Leaving]] = {}
        self._going: set[SessionId] = set()

    def obstacle(self, session: SessionId, workspace: str) -> str:
        """Why this session cannot go to a workspace, as a sentence; empty: it can, if that is there."""
        guest = self._configuration.guest(session)
        if guest is None:
            return "there is no such session: `carpool status` lists them"
        if guest.attach.run is not None:
            return "a session of `carpool run` has the server that it brought, and no workspace"
        return self._configuration.objection_to(guest.attach, workspace)

    def go(self, session: SessionId, moved: Moved, then: Then = lambda _: None) -> None:
        """The session goes there, after those moves of it that wait. `then` once it has, or cannot."""
        self._leaving.setdefault(session, deque()).append(_Leaving(moved, then))
        self._go_on(session)

    def follow_roots(self, session: SessionId, roots: tuple[Root, ...], *, changed: bool) -> None:
        """The session's agent names these roots, and where they are `changed` it goes where they are."""
        self._feed(self._configuration.use_roots(session, roots))
        guest = self._configuration.guest(session)
        if changed and roots and guest is not None and guest.wanders and (path := directory_of(roots[0].uri)):
            self.go(session, Moved(path, by_roots=True))

    def look(self, sessions: list[SessionId]) -> None:
        """The configuration is another one: carriers are asked for what it uses and they have not said."""
        for session in sessions:
            self._ask(session, None)

    # --- one move ---------------------------------------------------------------------------------------

    def _go_on(self, session: SessionId) -> None:
        """Begin the first move of its line. In a loop: many may be over as soon as they have begun."""
        if session in self._going:
            return  # from within
        self._going.add(session)
        while (line := self._leaving.get(session)) and not line[0].begun:
            line[0].begun = True
            self._begin(session, line[0])
        self._going.discard(session)

    def _begin(self, session: SessionId, leaving: _Leaving) -> None:
        self._looks.look(self._wish(session, leaving), partial(self._looked, session, leaving), spell=True)

    def _wish(self, session: SessionId, leaving: _Leaving) -> Wish:
        guest = self._configuration.guest(session)
        assert guest is not None, "the moves of a session that has left are forgotten"
        return wish_of(guest.attach, leaving.moved)

    def _looked(self, session: SessionId, leaving: _Leaving, sight: Sight) -> None:
        """It is known what is there."""
        if not self._is_first(session, leaving):
            return  # it has left
        why = sight.objection
        if sight.spot.lost:
            why = f"what is in {sight.spot.lost} could not be read in time"
        if why or (leaving.moved.by_roots and not self._led_by(session, sight)):
            self._over(session, leaving, why)
            return
        leaving.moved = replace(leaving.moved, workspace=sight.directory or leaving.moved.workspace)
        leaving.question = self._ask(session, leaving.moved)
        if not leaving.question:
            self._arrive(session, leaving)

    def _led_by(self, session: SessionId, sight: Sight) -> bool:
        """Whether roots lead there: nobody has put it anywhere in words, and it is another workspace."""
        guest = self._configuration.guest(session)
        if guest is None or not guest.wanders:
            return False
        root_of = self._configuration.layers.root_of
        here = guest.spot
        return (sight.spot.name, sight.workspace.root) != (here.name, root_of(here))

    def _ask(self, session: SessionId, moved: Moved | None) -> int:
        names = self._configuration.unasked(session, moved)
        question = self._carriers.ask_environment(session, names) if names else 0
        guest = self._configuration.guest(session)
        if question and guest is not None:
            guest.asked.update(names)
        return question

    def awaits(self, session: SessionId, names: list[str]) -> None:
        """The carrier was asked for these variables when it came, and has not answered yet."""
        guest = self._configuration.guest(session)
        if guest is not None:
            guest.asked.update(names)

    def heard(self, session: SessionId, question: int, environment: dict[str, str]) -> None:
        """The carrier has answered this question, and those before it. Also: it takes too long."""
        self._feed(self._configuration.learn(session, environment))
        line = self._leaving.get(session)
        if line and 0 < line[0].question <= question:
            self._arrive(session, line[0])

    def _arrive(self, session: SessionId, leaving: _Leaving) -> None:
        """All is known; but what is there may have been forgotten meanwhile, while nobody else was there."""
        self._looks.look(self._wish(session, leaving), partial(self._arrived, session, leaving))

    def _arrived(self, session: SessionId, leaving: _Leaving, _: Sight) -> None:
        if self._is_first(session, leaving):
            self._carriers.tell_moved(session, leaving.moved)
            self._feed(self._configuration.move(session, leaving.moved))
            self._over(session, leaving, "")

    def _over(self, session: SessionId, leaving: _Leaving, why: str) -> None:
        """It has moved, or does not. The next one's turn."""
        line = self._leaving[session]
        line.popleft()
        if not line:
            del self._leaving[session]
        leaving.then(why)
        self._go_on(session)

    def _is_first(self, session: SessionId, leaving: _Leaving) -> bool:
        line = self._leaving.get(session)
        return line is not None and line[0] is leaving

    def forget(self, session: SessionId) -> None:
        """It is gone."""
        for each in self._leaving.pop(session, ()):
            each.then(LEFT)

    def check(self) -> None:
        """Assert every invariant."""
        assert all(line and line[0].begun for line in self._leaving.values())
        assert not any(each.begun for line in self._leaving.values() for each in [*line][1:])
