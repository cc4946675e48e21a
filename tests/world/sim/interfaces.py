"""What instances of the simulated world stand on: what they need of their supervisor and of the world.

Owns two interfaces, of what asks and of what runs. Knows nothing of: who gives them (`supervisor`).
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Protocol

from carpool_protocol.ids import PoolKey
from carpool_protocol.link.messages import Call
from carpool_supervisor.core.model import events as ev
from tests.world.sim.traits import Traits

if TYPE_CHECKING:
    from tests.world.sim.oracles.asks import AskOracle
    from tests.world.sim.servers import SimInstance


class AskingServerHost(Protocol):
    """What an asker needs of its instance and its world."""

    rng: Random
    life: bytes
    asks: "AskOracle"

    @property
    def now(self) -> float:
        """The time."""


class InstanceHost(AskingServerHost, Protocol):
    """What an instance needs of its world."""

    stopped: bool
    """Nobody reads what it says, for now."""

    def awake(self, act: Callable[[], None]) -> None:
        """Do it when somebody does."""

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        """Do it so much later."""

    def feed(self, event: ev.OwnEvent) -> None:
        """Tell the supervisor's core that runs this instance."""

    def executed(self, instance: "SimInstance", call: Call) -> None:
        """The server runs this call now."""

    def worked(self, call: Call) -> None:
        """The server has worked on this call to its end, and was not told that nobody wants it."""

    def traits(self, key: PoolKey) -> Traits:
        """How the servers of this pool behave now."""
