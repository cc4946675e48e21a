"""Links between the nodes of the simulated cluster: frames with lag, losses and cuts, and stored offers.

Owns how frames travel between any two nodes, in order; cuts of one direction or of both; the NATS server that
carries everything and keeps offers, and dies. Knows nothing of: what frames say, when links are cut.
"""

from collections.abc import Callable
from random import Random
from typing import Final

from tests.world.sim.clock import SimClock

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
        self._lives: dict[Pair, int] = {}
        self._last: dict[Pair, float] = {}
        self._troubled: dict[Pair, float] = {}
        """When something was last lost between two."""

    def send(self, pair: Pair, arrive: Callable[[], None]) -> None:
        """Carry a frame, or lose it. `arrive`: hands it over."""
        if not self.carries(pair) or self.rng.random() < self.loss:
            self.troubled(pair)
            return
        life = self._lives.get(pair, 0)
        at = max(self.clock.now + self.rng.uniform(0.0001, self.lag_s), self._last.get(pair, 0.0))
        self._last[pair] = at

        def come() -> None:
            if self.carries(pair) and self._lives.get(pair, 0) == life:
                arrive()

        self.clock.later(at - self.clock.now, come)

    def carries(self, pair: Pair) -> bool:
        """Whether frames from one to the other arrive."""
        return self.is_up and pair not in self.cuts

    def cut(self, pair: Pair) -> None:
        """Cut one direction: what is under way is lost."""
        self.cuts.add(pair)
        self._lives[pair] = self._lives.get(pair, 0) + 1
        self.troubled(pair)

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
            self._lives[pair] = self._lives.get(pair, 0) + 1
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
        """Since when nothing was lost between these two; now, if it may be lost now."""
        pairs = ((one, other), (other, one))
        if not all(map(self.carries, pairs)):
            return self.clock.now
        return max(self._troubled.get(pair, 0.0) for pair in pairs)
