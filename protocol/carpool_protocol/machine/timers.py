"""All timers of one core, by kind and key.

Owns the timers, and the order in which due timers are returned: kind by kind in the order that the core
names, within a kind the earliest first.

Invariant (`check`): the invariant of `Deadlines` holds for each kind. Refuses to know: clocks (time is a
parameter), the meaning of a kind or a key, the action of a due timer.
"""

from collections.abc import Hashable, Iterable, Iterator, KeysView
from itertools import compress
from typing import Any, Generic, TypeVar

from carpool_protocol.machine.deadlines import Deadlines

Kind = TypeVar("Kind", bound=Hashable)


class Timers(Generic[Kind]):
    """Timers of one core. A key has at most one of each kind."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self._of: dict[Kind, Deadlines[Any]] = {kind: Deadlines() for kind in kinds}
        self._all = list(self._of.values())
        self._armed = [deadlines.armed for deadlines in self._all]

    def arm(self, kind: Kind, key: Hashable, now: float, after: float) -> None:
        """Set a timer that falls due `after` seconds from `now`, in place of any earlier one of this kind and
        key.
        """
        self._of[kind].arm(key, now, after)

    def rearm(self, kind: Kind, key: Hashable, now: float) -> bool:
        """Restart a timer from `now` with the duration that it has. False if there is no such timer."""
        return self._of[kind].rearm(key, now)

    def disarm(self, kind: Kind, key: Hashable) -> bool:
        """Remove this timer. False if there was none."""
        return self._of[kind].disarm(key)

    def of(self, kind: Kind) -> Deadlines[Any]:
        """The timers of one kind, for code that arms one with every call."""
        return self._of[kind]

    def has(self, kind: Kind, key: Hashable) -> bool:
        """True if there is such a timer."""
        return key in self._of[kind].armed

    def keys(self, kind: Kind) -> KeysView[Any]:
        """The keys that have a timer of this kind."""
        return self._of[kind].armed.keys()

    def deadline_of(self, kind: Kind, key: Hashable) -> float | None:
        """The time at which this timer is due, or None if there is no such timer."""
        return self._of[kind].deadline_of(key)

    def due(self, now: float) -> Iterator[tuple[Kind, list[Any]]]:
        """Disarm the due timers and yield their keys, kind by kind. While one kind is handled, the caller may
        disarm timers of later kinds.
        """
        for kind, deadlines in self._of.items():
            if deadlines.armed and (keys := deadlines.due(now)):
                yield kind, keys

    def next_deadline(self) -> float | None:
        """The earliest deadline, or None."""
        earliest: float | None = None
        for deadlines in compress(self._all, self._armed):  # kinds without a timer cost nothing
            deadline = deadlines.next_deadline()
            if earliest is None or (deadline is not None and deadline < earliest):
                earliest = deadline
        return earliest

    def check(self) -> None:
        """Assert every invariant."""
        for deadlines in self._of.values():
            deadlines.check()
