"""The one table of timers of a core.

Owns the timers of all kinds, each kind with keys of its own, and the order in which those that are due are
handed out: kind by kind as the core has named them, within a kind the earliest first.

Invariant (`check`): that of `Deadlines`, for each kind.
Refuses to know: clocks (time comes in), what a kind or a key means, what is done when a timer is due.
"""

from collections.abc import Hashable, Iterable, Iterator, KeysView
from typing import Any, Generic, TypeVar

from carpool_protocol.machine.deadlines import Deadlines

Kind = TypeVar("Kind", bound=Hashable)


class Timers(Generic[Kind]):
    """Timers of one core. A key has at most one of each kind."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self._of: dict[Kind, Deadlines[Any]] = {kind: Deadlines() for kind in kinds}

    def arm(self, kind: Kind, key: Hashable, now: float, after: float) -> None:
        """Fall due `after` seconds from `now`; an earlier timer of this kind and key is replaced."""
        self._of[kind].arm(key, now, after)

    def rearm(self, kind: Kind, key: Hashable, now: float) -> bool:
        """The same duration again, from `now`. False (and nothing) when there is no such timer."""
        return self._of[kind].rearm(key, now)

    def disarm(self, kind: Kind, key: Hashable) -> bool:
        """Forget this timer. False when there was none."""
        return self._of[kind].disarm(key)

    def of(self, kind: Kind) -> Deadlines[Any]:
        """The timers of one kind, for who arms one with every call."""
        return self._of[kind]

    def has(self, kind: Kind, key: Hashable) -> bool:
        """Whether there is such a timer."""
        return key in self._of[kind].armed

    def keys(self, kind: Kind) -> KeysView[Any]:
        """The keys that have a timer of this kind."""
        return self._of[kind].armed.keys()

    def deadline_of(self, kind: Kind, key: Hashable) -> float | None:
        """When this timer falls due; None: there is none."""
        return self._of[kind].deadline_of(key)

    def due(self, now: float) -> Iterator[tuple[Kind, list[Any]]]:
        """Disarm the timers that are due, and hand out their keys. What is done about one kind may disarm
        timers of those that come later.
        """
        for kind, deadlines in self._of.items():
            if deadlines.armed and (keys := deadlines.due(now)):
                yield kind, keys

    def next_deadline(self) -> float | None:
        """The earliest deadline, or None."""
        earliest: float | None = None
        for deadlines in self._of.values():
            if deadlines.armed:
                deadline = deadlines.next_deadline()
                if earliest is None or (deadline is not None and deadline < earliest):
                    earliest = deadline
        return earliest

    def check(self) -> None:
        """Assert every invariant."""
        for deadlines in self._of.values():
            deadlines.check()
