"""Deadlines of many keys that share few durations.

Owns one queue per duration. A queue holds its keys in the order in which they were armed, which is also the
order in which they fall due, because `now` never decreases. So arming, re-arming and disarming cost the same
with ten keys and with a hundred thousand, and a disarmed key leaves nothing behind (a heap would keep 40,000
dead entries per second).

Invariants: a key is armed in at most one queue; each queue is sorted by deadline. Refuses to know: clocks
(time is a parameter), the meaning of a key.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_EMPTY_QUEUES_KEPT: Final = 16
"""Empty queues are kept for the next key. Beyond this number they are removed, so that rare durations do not
pile up.
"""


class Deadlines(Generic[K]):
    """A set of keys with deadlines."""

    def __init__(self) -> None:
        self._queues: dict[float, OrderedDict[K, float]] = {}
        self.armed: dict[K, float] = {}
        """Key → duration in seconds, which is also its queue."""

    def __len__(self) -> int:
        return len(self.armed)

    def __contains__(self, key: K) -> bool:
        return key in self.armed

    def arm(self, key: K, now: float, duration_s: float) -> None:
        """Set the deadline of a key to `duration_s` after `now`, in place of any earlier one."""
        if key in self.armed:
            self.disarm(key)
        queue = self._queues.get(duration_s)
        if queue is None:
            queue = self._new_queue(duration_s)
        queue[key] = now + duration_s
        self.armed[key] = duration_s

    def rearm(self, key: K, now: float) -> bool:
        """Restart a key's deadline from `now` with the same duration. False, and no change, if the key is not
        armed.
        """
        duration_s = self.armed.get(key)
        if duration_s is None:
            return False
        queue = self._queues[duration_s]
        queue[key] = now + duration_s
        queue.move_to_end(key)
        return True

    def disarm(self, key: K) -> bool:
        """Remove the key's deadline. False if it had none."""
        duration_s = self.armed.pop(key, None)
        if duration_s is None:
            return False
        del self._queues[duration_s][key]
        return True

    def deadline_of(self, key: K) -> float | None:
        """The time at which this key falls due, or None."""
        duration_s = self.armed.get(key)
        return None if duration_s is None else self._queues[duration_s][key]

    def due(self, now: float) -> list[K]:
        """Disarm and return every key whose deadline is not after `now`, earliest first."""
        found: list[tuple[float, K]] = []
        for queue in self._queues.values():
            while queue:
                key = next(iter(queue))
                deadline = queue[key]
                if deadline > now:
                    break
                del queue[key]
                del self.armed[key]
                found.append((deadline, key))
        found.sort(key=lambda pair: pair[0])
        return [key for _, key in found]

    def next_deadline(self) -> float | None:
        """The earliest deadline, or None. Reads the first key of each queue."""
        earliest: float | None = None
        if not self.armed:
            return None
        for queue in self._queues.values():
            if queue:
                deadline = queue[next(iter(queue))]
                if earliest is None or deadline < earliest:
                    earliest = deadline
        return earliest

    def check(self) -> None:
        """Assert every invariant."""
        assert sum(map(len, self._queues.values())) == len(self.armed)
        for duration_s, queue in self._queues.items():
            deadlines = list(queue.values())
            assert deadlines == sorted(deadlines)
            assert all(self.armed[key] == duration_s for key in queue)

    def _new_queue(self, duration_s: float) -> OrderedDict[K, float]:
        if len(self._queues) >= _EMPTY_QUEUES_KEPT:
            self._queues = {d: queue for d, queue in self._queues.items() if queue}
        queue = self._queues[duration_s] = OrderedDict()
        return queue
