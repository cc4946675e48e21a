"""The turns in which roots of agents are applied.

Owns when the roots of each session are applied. Each time costs a configuration, a message of all pools to
the supervisor, and most often the start of a server. So each owner has a number of turns that it may use at
once, and gets used ones back one by one; so have all owners together. A session that finds none left waits:
the sessions of one owner in order, and owners take turns. It waits once, however often its roots change
meanwhile.

Invariant (`check`): who waits does so for a turn that comes back, and each used turn comes back.
Deterministic: time is a parameter. Knows nothing of: roots, which of them need a turn (`roots`).
"""

from collections.abc import Callable, Iterable
from typing import Final, Literal, NamedTuple

from carpool_broker.core.model.session import Session, SessionOwner
from carpool_broker.core.model.timer_kinds import BrokerTimers
from carpool_protocol.ids import SessionId

ALL: Final = "all"
"""The key of the timer for all owners together."""


class TurnBounds(NamedTuple):
    """How many turns there are."""

    of_one: int
    """For one owner at once."""
    of_one_s: float
    """It gets a used one back every so often."""
    of_all: int
    """For all owners together at once."""
    of_all_s: float
    """They get a used one back every so often."""


class _Owner:
    """An owner that has used turns, or has a session that waits."""

    __slots__ = ("used", "waiting")

    def __init__(self) -> None:
        self.used = 0
        self.waiting: dict[SessionId, None] = {}
        """Its sessions that wait, the next one first."""


class RootsTurns:
    """The turns of all owners. `apply` is called for a session that has its turn."""

    def __init__(
        self,
        timers: BrokerTimers,
        kind: Literal["first_roots", "changed_roots"],
        bounds: TurnBounds,
        apply: Callable[[SessionId], None],
    ) -> None:
        self._timers = timers
        self._kind: Literal["first_roots", "changed_roots"] = kind
        self._bounds = bounds
        self._apply = apply
        self._owners: dict[SessionOwner, _Owner] = {}
        self._next: dict[SessionOwner, None] = {}
        """Owners with a session that waits and a turn left, the next one first."""
        self._used = 0
        """The turns that all owners together have used."""

    def add(self, session: Session, now: float) -> None:
        """Give the session its turn, now or later. It has one at most."""
        owner = self._owners.get(session.owner)
        if owner is None:
            owner = self._owners[session.owner] = _Owner()
        owner.waiting[session.id] = None
        self._place(session.owner, owner)
        self._take_turns(now)

    def remove(self, session: Session) -> None:
        """The session needs no turn any more."""
        name = session.owner
        owner = self._owners.get(name)
        if owner is None:
            return
        owner.waiting.pop(session.id, None)
        if not owner.waiting:
            self._next.pop(name, None)
            if not owner.used:
                del self._owners[name]

    def holds(self, session: Session) -> bool:
        """True if the session waits."""
        owner = self._owners.get(session.owner)
        return owner is not None and session.id in owner.waiting

    def give_back(self, keys: Iterable[SessionOwner | str], now: float) -> None:
        """These owners, or all together (`ALL`), get one turn back."""
        for key in keys:
            if isinstance(key, str):
                self._used -= 1
                if self._used:
                    self._timers.arm(self._kind, ALL, now, self._bounds.of_all_s)
                continue
            owner = self._owners[key]
            owner.used -= 1
            if owner.used:
                self._timers.arm(self._kind, key, now, self._bounds.of_one_s)
            elif not owner.waiting:
                del self._owners[key]
            self._place(key, owner)
        self._take_turns(now)

    def _place(self, name: SessionOwner, owner: _Owner) -> None:
        """Put an owner behind those that are next, if it has a session that waits and a turn left."""
        if owner.waiting and owner.used < self._bounds.of_one:
            self._next[name] = None

    def _take_turns(self, now: float) -> None:
        """Give turns to those that are next, while all together have some left."""
        while self._next and self._used < self._bounds.of_all:
            name = next(iter(self._next))
            del self._next[name]
            owner = self._owners[name]
            session = next(iter(owner.waiting))
            del owner.waiting[session]
            if not owner.used:
                self._timers.arm(self._kind, name, now, self._bounds.of_one_s)
            if not self._used:
                self._timers.arm(self._kind, ALL, now, self._bounds.of_all_s)
            owner.used += 1
            self._used += 1
            self._place(name, owner)
            self._apply(session)

    def check(self) -> None:
        """Assert every invariant."""
        returning = {name for name, owner in self._owners.items() if owner.used}
        assert self._timers.keys(self._kind) == returning | ({ALL} if self._used else set())
        assert self._used <= self._bounds.of_all
        for name, owner in self._owners.items():
            assert owner.used or owner.waiting
            assert owner.used <= self._bounds.of_one
            has_turn = bool(owner.waiting) and owner.used < self._bounds.of_one
            assert (name in self._next) == has_turn
        assert self._next.keys() <= self._owners.keys()
        assert not self._next or self._used, "roots wait for nothing"
