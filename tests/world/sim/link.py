"""A link between the broker and a supervisor of the simulated world.

Owns how frames of the real link codec travel: with lag, in order, lost when the link is cut.

Knows nothing of: what the frames say, when the link is cut.
"""

from carpool_protocol.ids import SupervisorName
from carpool_protocol.link.codec import FrameData
from tests.world.sim.process import LAG_S, SimProcessHost


class SimLink:
    """The way between the two, in order, with lag, and cuttable."""

    def __init__(self, world: SimProcessHost, name: SupervisorName) -> None:
        """`name`: of the supervisor at its end."""
        self.world = world
        self.name = name
        self.up = False
        self.joined_at = 0.0
        self._life = 0
        self._lag_s = LAG_S
        self._last = {True: 0.0, False: 0.0}
        self._words = (0, 0.0)
        """Of which connection, and until when, what a broker that died had sent arrives still."""

    def join(self) -> None:
        """Connect, if both ends live."""
        broker, supervisor = self.world.broker, self.world.supervisors[self.name]
        if broker.alive and supervisor.alive and not self.up:
            self.up = True
            self.joined_at = self.world.now
            self._life += 1
            broker.awake(self._connected)
            self.flush()

    def join_again(self) -> None:
        """A second connection takes the place of the first, from which some still arrives."""
        if self.up:
            self.world.book.mishaps += 1
            self.joined_at = self.world.now
            self.world.broker.awake(self._connected)
            self.flush()

    def _connected(self) -> None:
        broker = self.world.broker
        self._operators_hear_nothing()
        broker.heard(self.name, broker.peers[self.name].connection_opened())

    def _disconnected(self) -> None:
        broker = self.world.broker
        self._operators_hear_nothing()
        broker.heard(self.name, broker.peers[self.name].connection_lost("cut"))

    def _operators_hear_nothing(self) -> None:
        words = self.world.operations
        for word in [word for word, at in words.items() if at == self.name]:
            del words[word]

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
        self.world.book.mishaps += 1
        self.up = False
        self._life += 1
        broker, supervisor = self.world.broker, self.world.supervisors[self.name]
        broker.awake(self._disconnected)
        if told:
            supervisor.awake(lambda: supervisor.heard(supervisor.peer.connection_lost("cut")))

    def flush(self) -> None:
        """Send what both ends have."""
        broker, supervisor = self.world.broker, self.world.supervisors[self.name]
        for side, peer in ((broker, broker.peers[self.name]), (supervisor, supervisor.peer)):
            while side.alive and not side.stopped and peer.has_output:
                for frame in peer.take_frames(side.clock):
                    self._carry(frame, down=side is broker)

    def _carry(self, frame: FrameData, *, down: bool) -> None:
        world, life = self.world, self._life
        if not self.up:
            return
        at = max(world.now + world.rng.uniform(0.0001, self._lag_s), self._last[down])
        self._last[down] = at

        def arrive() -> None:
            broker, supervisor = world.broker, world.supervisors[self.name]
            words = down and (life, world.now) <= self._words and life == self._words[0] and not self.up
            if not (words or (self.up and self._life == life)):
                return
            if down and supervisor.alive:
                supervisor.awake(lambda: supervisor.heard(supervisor.peer.receive(frame, supervisor.clock)))
            elif not down and broker.alive:
                peer = broker.peers[self.name]
                broker.awake(lambda: broker.heard(self.name, peer.receive(frame, broker.clock)))

        world.later(at - world.now, arrive)
