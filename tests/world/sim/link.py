"""The link between the two daemons of the simulated world.

Owns how frames of the real link codec travel: with lag, in order, lost when the link is cut.

Knows nothing of: what the frames say, when the link is cut.
"""

from typing import TYPE_CHECKING

from tests.world.sim.process import LAG_S, SimProcessHost

if TYPE_CHECKING:
    from tests.world.sim.broker import SimBroker
    from tests.world.sim.supervisor import SimSupervisor


class SimLink:
    """The way between the two, in order, with lag, and cuttable."""

    def __init__(self, world: SimProcessHost) -> None:
        self.world = world
        self.up = False
        self.joined_at = 0.0
        self._life = 0
        self._lag_s = LAG_S
        self._last = {True: 0.0, False: 0.0}
        self._words = (0, 0.0)
        """Of which connection, and until when, what a broker that died had sent arrives still."""

    def join(self) -> None:
        """Connect, if both ends live."""
        broker, supervisor = self.world.broker, self.world.supervisor
        if broker.alive and supervisor.alive and not self.up:
            self.up = True
            self.joined_at = self.world.now
            self._life += 1
            broker.awake(self._connected)
            self.flush()

    def join_again(self) -> None:
        """A second connection takes the place of the first, from which some still arrives."""
        if self.up:
            self.world.mishaps += 1
            self.joined_at = self.world.now
            self.world.broker.awake(self._connected)
            self.flush()

    def _connected(self) -> None:
        broker = self.world.broker
        self.world.operations.clear()
        broker.heard(broker.peer.connection_opened())

    def _disconnected(self) -> None:
        broker = self.world.broker
        self.world.operations.clear()
        broker.heard(broker.peer.connection_lost("cut"))

    def slow_down(self, lag_s: float) -> None:
        """From now on a frame may take so long."""
        self._lag_s = lag_s

    def broker_died(self) -> None:
        """What its supervisor had sent is lost, and of what it had sent itself the last."""
        if self.up:
            self._words = (self._life, self.world.now + self.world.rng.uniform(0.0, self._lag_s))
            self.up = False
            self._life += 1

    def cut(self, *, told: bool) -> None:
        """What is under way is lost. `told`: the supervisor's end learns of it too."""
        if not self.up:
            return
        self.world.mishaps += 1
        self.up = False
        self._life += 1
        broker, supervisor = self.world.broker, self.world.supervisor
        broker.awake(self._disconnected)
        if told:
            supervisor.awake(lambda: supervisor.heard(supervisor.peer.connection_lost("cut")))

    def flush(self) -> None:
        """Send what both ends have."""
        for side in (self.world.broker, self.world.supervisor):
            while side.alive and not side.stopped and side.peer.has_output:
                for frame in side.peer.take_frames(side.clock):
                    self._carry(side, frame)

    def _carry(self, side: "SimBroker | SimSupervisor", frame: bytes) -> None:
        world, life = self.world, self._life
        down = side is world.broker
        if not self.up:
            return
        at = max(world.now + world.rng.uniform(0.0001, self._lag_s), self._last[down])
        self._last[down] = at

        def arrive() -> None:
            other = world.supervisor if down else world.broker
            words = down and (life, world.now) <= self._words and life == self._words[0] and not self.up
            if (words or (self.up and self._life == life)) and other.alive:
                other.awake(lambda: other.heard(other.peer.receive(frame, other.clock)))

        world.later(at - world.now, arrive)
