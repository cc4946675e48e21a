"""Deaths of the simulated world's broker, and how agents come to the next one.

Owns when exactly it dies: at once, or in the middle of what one event causes; and who comes back when, as
what. Knows nothing of: what carriers keep (`carriers`), what brokers do about it.
"""

from typing import TYPE_CHECKING

from msgspec.structs import replace

from carpool_broker.core.recovery.recovery import UNREAD, joint_epoch
from carpool_protocol.ids import Epoch, SessionId
from tests.world.sim.agents import SimAgent
from tests.world.sim.broker import BOUNDS
from tests.world.sim.carriers import CarrierFate
from tests.world.sim.stateless_agents import AnyAgents, OpenRequest, StatelessAgents
from tests.world.sim.stateless_carriers import AnyCarrier

if TYPE_CHECKING:
    from tests.world.sim.world import World

MOST_BACK = UNREAD * (BOUNDS.max_open_calls + BOUNDS.max_waiting_calls)
"""Of more requests than this that come back with one session some are lost."""


class BrokerDeaths:
    """Of one world."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self._next: tuple[float, CarrierFate | None] = (0.0, None)
        """In how long the next broker comes, and what becomes of carriers."""

    def kill(self, away_s: float, *, fate: CarrierFate | None = None, dies_in: int = 1) -> None:
        """The broker dies, after so many effects or half a second; a new one comes. Carriers come back, or
        all have this `fate`.
        """
        self._next = (away_s, fate)
        self.world.broker.dies_in = dies_in
        broker = self.world.broker
        self.world.later(
            0.0 if dies_in == 1 else 0.5, lambda: self.now() if self.world.broker is broker else None
        )

    def now(self) -> None:
        """Now."""
        if not self.world.broker.alive:
            return
        away_s, fate = self._next
        if self.world.rng.random() < 0.5:
            self.world.settle()
        for each in self.world.supervisors.values():
            if not each.alive:
                each.sharing.forget()
            elif not each.was_told:
                each.sharing.forget(inherited=True)
            self.world.wires[each.name].broker_died()
        self.world.broker.alive = False
        agents, self.world.agents = list(self.world.agents.values()), {}
        carriers, self.world.carriers = self.world.carriers, {}
        self.world.operations.clear()
        self.world.book.cancelled.clear()  # nobody can tell the servers before the next one
        for agent in agents:
            self._lose_broker(carriers[agent.session], fate)
        before = self.world.broker

        def again() -> None:
            self.world.broker = self.world.new_broker(before)
            self.world.read_config()
            *later, first = self.world.wires.values()
            first.join()
            for wire in later:  # agents come back meanwhile
                self.world.later(self.world.rng.uniform(0.0, 2.0), wire.join)

        self.world.later(away_s, again)

    def _lose_broker(self, carrier: AnyCarrier, fate: CarrierFate | None) -> None:
        roll = self.world.rng.random()
        common: CarrierFate = (
            "gone" if roll < 0.1 else "late" if roll < 0.2 else "impostor" if roll < 0.3 else "back"
        )
        carrier.fate = "gone" if carrier.is_closed else fate or common
        if carrier.fate != "gone":
            self.world.away.append(carrier)
        else:
            self.world.never_returns(carrier.agent)
        for line in carrier.last_words(self.world.rng):
            if not carrier.crosses(line):
                self.world.broker.deliver(carrier, line)
        carrier.agent.doubles.clear()
        self.world.later(self.world.rng.uniform(0.01, 2.0), lambda: self.come_back(carrier))

    def forgive(self, agent: AnyAgents) -> None:
        """What it has given up nobody can tell its servers before it is back, or given up itself."""
        own = [self.world.book.asks.first_of(agent.session)]
        if isinstance(agent, StatelessAgents):
            own = agent.persons
        for number in [each for each in self.world.book.cancelled if self.world.book.owners[each] in own]:
            del self.world.book.cancelled[number]

    def come_back(self, carrier: AnyCarrier) -> None:
        """It finds the next broker, now or as soon as that can be."""
        broker = self.world.broker
        if carrier not in self.world.away:
            return
        if not broker.alive or broker.stopped or (carrier.fate == "late" and broker.may_resume()):
            self.world.later(self.world.rng.uniform(0.05, 0.5), lambda: self.come_back(carrier))
            return
        self.world.away.remove(carrier)
        agent = carrier.agent
        agent.doubles.clear()
        secret = "0.0" if carrier.fate == "impostor" else carrier.secret
        knows = broker.may_resume() and broker.heritage.claim_session(agent.session, secret)
        if not knows:
            self.world.sessions += 1
            new = SessionId(f"{self.world.mark}{self.world.sessions}")
            carrier.renamed(new)
            carrier.epoch = Epoch("")
            carrier.came = replace(carrier.came, session=new)
        for each in agent.open.values():
            request = each.request if isinstance(each, OpenRequest) else each
            request.at = self.world.now
        self.world.agents[agent.session] = agent
        self.world.carriers[agent.session] = carrier
        carrier.secret = broker.heritage.resume_secret(agent.session)
        carrier.fate = "back"
        supervisors = self.world.supervisors.values()
        unharmed = all(each.alive for each in supervisors) and self.world.book.mishaps == broker.mishaps
        epoch = joint_epoch([each.epoch for each in supervisors])
        alone = not self.world.node_names  # another node may lose a call at any time
        sure = alone and unharmed and carrier.epoch == epoch and len(agent.open) <= MOST_BACK
        said = carrier.again(agent.session, self.world.book.mishaps if sure else None)
        again = [replace(each, session=agent.session) for each in said]
        pipe, carrier.pipe = carrier.pipe, []
        for event in again:
            broker.feed(event)
        for act in pipe:
            act()

    def choke(self, share: float) -> None:
        """So many agents stop reading: what they are told lies in the broker until it dies."""
        for carrier in self.world.carriers.values():
            agent = carrier.agent
            if self.world.rng.random() < share and (isinstance(agent, StatelessAgents) or agent.greeted):
                if isinstance(agent, SimAgent):
                    agent.careless = False
                carrier.choked = []

    def has(self, agent: AnyAgents) -> bool:
        """Whether this agent is there, or waits for a broker."""
        return agent.session in self.world.agents or any(
            carrier.agent is agent for carrier in self.world.away
        )

    def carrier_of(self, session: SessionId) -> AnyCarrier | None:
        """Where this agent's lines go first, whether a broker is there or not."""
        away = (each for each in self.world.away if each.agent.session == session)
        return self.world.carriers.get(session) or next(away, None)
