"""Links between the nodes of the simulated cluster: frames with lag, losses and cuts, and stored offers.

Owns how frames travel between any two nodes, in order; the queue of a link with little bandwidth; cuts of one
direction or of both; the NATS server that carries everything and keeps offers, and dies.

Knows nothing of: what frames say, when links are cut.
"""

from collections.abc import Callable
from random import Random
from typing import Final

from tests.kit.frame_queue import FrameQueue
from tests.world.sim.clock import SimClock

LATE_S: Final = 0.3
"""What waits longer than this for those before it is late: who waits for it may not hear of it in time."""
LAG_S: Final = 0.01
Pair = tuple[str, str]
"""The sender's node and the receiver's."""


class SimNodeLinks:
    """All links of one cluster. `has_store`: they are those of a NATS server, which keeps offers."""

    def __init__(self, clock: SimClock, rng: Random, *, has_store: bool) -> None:
        self.clock = clock
        self.rng = rng
        self.has_store = has_store
        self.is_up = True
        self.loss = 0.0
        """The part of frames that is lost."""
        self.lag_s = LAG_S
        self.store: dict[str, bytes] = {}
        self.cuts: set[Pair] = set()
        self._queues: dict[Pair, FrameQueue] = {}
        """Of the directions with little bandwidth."""
        self.longest_wait_s = 0.0
        """The longest time that a frame has waited for those before it."""
        self._lives: dict[Pair, int] = {}
        self._last: dict[Pair, float] = {}
        self._troubled: dict[Pair, float] = {}
        """When something was last lost between two, or late."""

    def send(self, pair: Pair, size_bytes: int, arrive: Callable[[], None]) -> None:
        """Carry a frame of this size, or lose it. `arrive`: hands it over."""
        if not self.carries(pair) or self.rng.random() < self.loss:
            self.troubled(pair)
            return
        life = self._lives.get(pair, 0)
        at = max(self.clock.now + self.rng.uniform(0.0001, self.lag_s), self._last.get(pair, 0.0))
        if (queue := self._queues.get(pair)) is not None:
            wait_s = queue.waiting_s(self.clock.now)
            self.longest_wait_s = max(self.longest_wait_s, wait_s)
            at = max(at, queue.put(size_bytes, self.clock.now))
            if wait_s > LATE_S:
                self._troubled[pair] = at
        self._last[pair] = at

        def come() -> None:
            if self.carries(pair) and self._lives.get(pair, 0) == life:
                arrive()

        self.clock.later(at - self.clock.now, come)

    def carries(self, pair: Pair) -> bool:
        """Whether frames from one to the other arrive."""
        return self.is_up and pair not in self.cuts

    def narrow(self, pair: Pair, bytes_per_s: float) -> None:
        """Give one direction this bandwidth from now on. What is on its way arrives as it would have."""
        queue = self._queues.setdefault(pair, FrameQueue())
        queue.bytes_per_s = bytes_per_s

    def widen(self) -> float:
        """Take all bandwidths away. Returns how long what is on its way still takes."""
        waits = [queue.waiting_s(self.clock.now) for queue in self._queues.values()]
        self._queues.clear()
        return max(waits, default=0.0)

    def cut(self, pair: Pair) -> None:
        """Cut one direction: what is under way is lost."""
        self.cuts.add(pair)
        self._lose_what_is_under_way(pair)
        self.troubled(pair)

    def _lose_what_is_under_way(self, pair: Pair) -> None:
        self._lives[pair] = self._lives.get(pair, 0) + 1
        self._last[pair] = self.clock.now  # what is sent later does not wait for what is lost
        if pair in self._queues:
            self._queues[pair].clear()

    def mend(self, pair: Pair) -> None:
        """Frames of this direction arrive again."""
        if pair in self.cuts:
            self.cuts.discard(pair)
            self.troubled(pair)

    def store_died(self) -> None:
        """The NATS server dies: nothing arrives, and its offers are lost."""
        self.is_up = False
        self.store.clear()
        for pair in self._last:
            self._lose_what_is_under_way(pair)
            self.troubled(pair)

    def store_came(self) -> None:
        """A NATS server runs again. Its nodes connect when they see it."""
        self.is_up = True
        for pair in self._last:
            self.troubled(pair)

    def troubled(self, pair: Pair) -> None:
        """Something is lost between these two."""
        self._troubled[pair] = self.clock.now

    def clear_since(self, one: str, other: str) -> float:
        """Since when nothing was lost or late between these two; now, if it may be now."""
        pairs = ((one, other), (other, one))
        if not all(map(self.carries, pairs)):
            return self.clock.now
        return max(self._troubled.get(pair, 0.0) for pair in pairs)
