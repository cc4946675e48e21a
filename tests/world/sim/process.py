"""A daemon of the simulated world as a process: it lives, is stopped (SIGSTOP), goes on, and reads a clock.

Owns that, and the interface of the world that both daemons need. Knows nothing of: cores, effects.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from carpool_broker.core.broker import BrokerCore
from carpool_protocol.ids import AskId, Epoch, PoolKey, ServerName, SessionId, SupervisorName
from carpool_protocol.link.messages import (
    LINK_VERSION,
    Call,
    Era,
    Hello,
    PoolSpec,
)
from carpool_protocol.runtime.pace import LATE_S
from carpool_protocol.runtime.steady_clock import TICK_S
from carpool_supervisor.core.model import effects as sf
from carpool_supervisor.core.model.sharing import Evidence, EvidenceKind
from carpool_supervisor.core.supervisor import SupervisorCore
from tests.world.sim.agents import SimAgent
from tests.world.sim.oracles.calls import CallBook
from tests.world.sim.servers import SimInstance
from tests.world.sim.stateless_agents import AnyAgents, StatelessAgents, StateToken
from tests.world.sim.stateless_carriers import AnyCarrier
from tests.world.sim.traits import Traits

if TYPE_CHECKING:
    from tests.world.sim.broker import SimBroker
    from tests.world.sim.broker_deaths import BrokerDeaths
    from tests.world.sim.link import SimLink
    from tests.world.sim.supervisor import SimSupervisor


LAG_S = 0.01
"""The most that a frame takes on a good day."""


class SimProcessHost(Protocol):
    """What the two sides need of their world."""

    rng: Random
    journal: bool
    max_processes: int
    book: CallBook
    agents: dict[SessionId, AnyAgents]
    carriers: dict[SessionId, AnyCarrier]
    deaths: "BrokerDeaths"
    operations: dict[int, SupervisorName]
    paused: frozenset[ServerName]
    evidence: dict[PoolKey, dict[EvidenceKind, Evidence]]
    eras: dict[str, Era]
    """Of launches that speak one era only, as was found out."""
    supervisor_names: Sequence[SupervisorName]
    """Of all supervisors."""
    wires: dict[SupervisorName, "SimLink"]
    broker: "SimBroker"
    supervisors: dict[SupervisorName, "SimSupervisor"]

    @property
    def now(self) -> float:
        """The time."""

    @property
    def node_names(self) -> Sequence[str]:
        """All other nodes of its cluster."""

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        """Do it so much later."""

    def look(self, core: BrokerCore | SupervisorCore, event: Struct, effects: Sequence[Any]) -> None:
        """Check a core: what was touched each time, all of it now and then."""

    def traits(self, key: PoolKey) -> Traits:
        """How the servers of this pool behave."""

    def living(self) -> list[SimInstance]:
        """Every process that runs."""

    def new_instance(
        self, supervisor: "SimSupervisor", effect: sf.Spawn, spec: PoolSpec | None
    ) -> SimInstance:
        """An instance is started."""

    def heard_since(self, session: SessionId) -> float:
        """Since when whatever this session's agent says comes to the broker at once."""

    def executed(self, instance: SimInstance, call: Call) -> None:
        """A server runs a call."""

    def asked(self, agent: SimAgent, shown: AskId) -> None:
        """An agent was asked something."""

    def wanted(self, group: StatelessAgents, token: StateToken) -> None:
        """A request was answered with what is wanted first."""


def hello(name: str, world: SimProcessHost) -> Hello:
    """A new life of a process."""
    return Hello(LINK_VERSION, Epoch(f"{name}-{world.rng.random()}"), name, 1, "test")


class SimProcess:
    """A daemon as a process: it lives, and it can be stopped (SIGSTOP) and go on."""

    def __init__(self, world: SimProcessHost) -> None:
        self.world = world
        self.alive = True
        self.stopped = False
        self._left_out_s = 0.0
        self._read = 0.0
        self._unread: list[Callable[[], None]] = []
        """What reached it while it was stopped: it lies in its sockets."""

    @property
    def clock(self) -> float:
        """The time as it reads it: long gaps are left out (docs/decisions/0003)."""
        self._read = max(self._read, self.world.now - self._left_out_s)
        return self._read

    def awake(self, act: Callable[[], None]) -> None:
        """Do it when the process runs: now, or when it goes on."""
        if self.stopped:
            self._unread.append(act)
        else:
            act()

    def stop(self, for_s: float) -> None:
        """It does nothing for so long."""
        if self.stopped or not self.alive:
            return
        self.stopped = True
        self.world.book.mishaps += 1
        self.world.book.pauses.add(self.world.now, self.world.now + for_s)
        self.world.later(for_s, lambda: self._go_on(for_s))

    def _go_on(self, gap_s: float) -> None:
        self.stopped = False
        if not self.alive:
            return
        if gap_s > TICK_S + LATE_S:
            self._left_out_s += gap_s - TICK_S
            self._jumped()
        unread, self._unread = self._unread, []
        for act in unread:
            act()

    def _jumped(self) -> None:
        """Time was left out."""

    def _earliest(self, *due: float | None) -> float | None:
        """In the world's time; None while it does nothing."""
        if not self.alive or self.stopped:
            return None
        return self._in_world(min((at for at in due if at is not None), default=None))

    def _in_world(self, at: float | None) -> float | None:
        if at is None or not self._left_out_s:
            return at
        # A sum and a difference of the same numbers are not the same number: never due before it is read so.
        return at + self._left_out_s + 1e-6
