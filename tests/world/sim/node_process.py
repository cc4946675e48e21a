"""The node's process of one simulated carpool: the real core of a node and its table of near ends.

Owns its life: it starts, sends what is due, publishes its offer, hears those of others, drains, dies and is
started again. What stands at its sides is `node_instances` and `node_agents`.

Knows nothing of: MCP, when it dies.
"""

from random import Random
from typing import TYPE_CHECKING, Final

import msgspec

from carpool.cluster.core.local_sessions import LocalSessions, NearEndEvents, SessionRefusal
from carpool.cluster.core.node import NodeCore, NodeEffect, OffersChanged, OwnOfferChanged
from carpool.cluster.core.offers import NodeOffer
from carpool.cluster.offer_exchange import PUBLISH_S, SETTLE_S
from carpool_protocol.ids import SupervisorName
from tests.world.sim.clock import SimClock
from tests.world.sim.node_agents import SimBrokerEnd
from tests.world.sim.node_instances import NodeAsker, NodeInstance, SimPipesEnd
from tests.world.sim.node_links import SimNodeLinks

if TYPE_CHECKING:
    from tests.world.sim.node_carpool import NodeCarpool
    from tests.world.sim.supervisor import SimSupervisor

WINDOW_BYTES: Final = 6000
FRAME_BYTES: Final = 4000
READ_S: Final = 0.3
"""The most that a change of offers takes to be read by the broker."""


class NodeEnds:
    """Makes the near ends of one life of a node's process (`NearEndMaker`)."""

    def __init__(self, node: "SimNode") -> None:
        self._node = node
        self.at_broker: list[SimBrokerEnd] = []

    def open_pipes(self, pipes: NodeInstance, events: NearEndEvents) -> SimPipesEnd:
        """See `NearEndMaker`."""
        return SimPipesEnd(self._node, pipes, events)

    def close_pipes(self, pipes: NodeInstance) -> None:
        """See `NearEndMaker`."""
        pipes.pipes_closed()

    def open_at_broker(self, node: str, server: str, events: NearEndEvents) -> SimBrokerEnd:
        """See `NearEndMaker`."""
        self.at_broker = [each for each in self.at_broker if not each.is_over]
        self.at_broker.append(SimBrokerEnd(self._node, node, server, events))
        return self.at_broker[-1]


class SimNode:
    """One life of a node's process. `before`: the last id that the one before it took."""

    def __init__(self, world: "NodeCarpool", links: SimNodeLinks, *, life: int, has_file: bool) -> None:
        """`life`: how many there were before. `has_file`: one of them has left the servers of others."""
        self.world = world
        self.clock: SimClock = world.clock
        self.rng: Random = world.rng
        self.links = links
        self.name = world.name
        self.life = life
        self.alive = True
        self.began_at = world.now
        self._ids = 0
        self.core = NodeCore(
            self.name,
            f"{self.name}-{life}",
            self._new_id,
            frame_bytes=FRAME_BYTES,
            window_bytes=WINDOW_BYTES,
        )
        self.ends = NodeEnds(self)
        self.sessions: LocalSessions[NodeInstance] = LocalSessions(
            self.core,
            self.ends,
            refusal=self._refusal,
            flush_soon=self._flush_soon,
            log=lambda _text, _level: None,
        )
        self.askers: dict[SupervisorName, NodeAsker] = {}
        self._is_flush_due = True
        self._is_read_due = False
        self._reads_from = world.now + (SETTLE_S if has_file else 0.0)
        self._after_flush = 0.0
        self.clock.parts.append(self)
        if not links.has_store:
            for other in world.node_names:
                self.core.introduce(other, self.clock.now)
        elif links.is_up:
            self._hear_store()
        self._publish_again()

    def _new_id(self) -> int:
        """As the real one by the clock: greater than all before."""
        self._ids += 1
        return (self.life + 1) * 1_000_000 + self._ids

    # --- its life ---------------------------------------------------------------------------------------

    def die(self) -> None:
        """It is gone: connections and pipes close."""
        self.alive = False
        self.clock.parts.remove(self)
        for asker in self.askers.values():
            asker.lost()
        for end in self.ends.at_broker:
            end.end("")

    def leave(self) -> None:
        """It leaves the cluster in the ordinary way, and ends."""
        self._offer(b"")
        self.sessions.close()
        self._flush()
        self.die()

    def asker_of(self, supervisor: "SimSupervisor") -> NodeAsker:
        """The connection of this supervisor."""
        asker = self.askers.get(supervisor.name)
        if asker is None or not asker.is_of(supervisor):
            asker = self.askers[supervisor.name] = NodeAsker(supervisor, self)
        return asker

    def supervisor_gone(self, name: SupervisorName) -> None:
        """A supervisor has died."""
        asker = self.askers.pop(name, None)
        if asker is not None:
            asker.is_open = False
            self.sessions.supervisor_gone(asker)

    # --- time (`TimedPart`) -----------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """See `TimedPart`."""
        return max(min(self.core.next_deadline(), self._after_flush + 1.0), self._after_flush + 0.001)

    def tick(self) -> None:
        """See `TimedPart`."""
        self._flush()

    def settle(self) -> None:
        """See `TimedPart`."""
        if self._is_flush_due:
            self._flush()

    def _flush_soon(self) -> None:
        self._is_flush_due = True

    def _flush(self) -> None:
        self._is_flush_due = False
        now = self._after_flush = self.clock.now
        self._perform(self.core.tick(now))
        for other, frame in self.core.take_frames(now):
            self._send(other, frame)
        self.sessions.check()
        self.core.check()

    def _send(self, other: str, frame: bytes) -> None:
        def arrive() -> None:
            there = self.world.cluster.worlds[other].node_process
            if there is not None and there.alive:
                there.frame_received(self.name, frame)

        self.links.send((self.name, other), len(frame), arrive)

    def frame_received(self, other: str, frame: bytes) -> None:
        """A frame of another node has come."""
        self._perform(self.core.frame_received(other, frame, self.clock.now))
        self._is_flush_due = True

    def _perform(self, effects: list[NodeEffect]) -> None:
        for effect in effects:
            match effect:
                case OwnOfferChanged():
                    self.publish()
                case OffersChanged():
                    self._read_offers_soon()
                case _:
                    self.sessions.perform(effect)

    # --- offers -----------------------------------------------------------------------------------------

    def drain(self, *, is_on: bool) -> None:
        """Take no further sessions of other nodes, or take them again."""
        self._perform(self.core.set_draining(is_on=is_on))

    def _refusal(self, server: str) -> SessionRefusal:
        if self.world.has_server(server):
            return SessionRefusal("")
        return SessionRefusal(f"node {self.name} does not offer {server}", is_final=True)

    def _publish_again(self) -> None:
        self.publish()
        if self.alive:
            self._read_offers_soon()  # the names that are taken here may be others (`OfferExchange`)
            self.clock.later(PUBLISH_S, self._publish_again)

    def publish(self) -> None:
        """Tell what this node offers."""
        if not self.alive:
            return
        offer = NodeOffer(
            node=self.name,
            epoch=self.core.epoch,
            release="",
            load=self.core.served,
            is_draining=self.core.is_draining,
            servers=self.world.offered(),
        )
        self._offer(msgspec.json.encode(offer))

    def _offer(self, data: bytes) -> None:
        if not self.links.has_store:
            if data:
                self.core.set_offer(data)
                self._is_flush_due = True
        elif self.links.is_up:
            self.links.store[self.name] = data
            for world in self.world.cluster.worlds.values():
                if (there := world.node_process) is not None and there.alive:
                    there.hear_soon(self.name, data)

    def hear_soon(self, other: str, data: bytes) -> None:
        """An offer is on its way."""
        self.clock.later(self.rng.uniform(0.0, 0.02), lambda: self.hear(other, data))

    def hear(self, other: str, data: bytes) -> None:
        """An offer has come."""
        if self.alive:
            self._perform(self.core.offer_received(other, data, self.clock.now))
            self._is_flush_due = True

    def _hear_store(self) -> None:
        for other, data in self.links.store.items():
            if other != self.name and data:
                self.hear(other, data)

    def link_restored(self) -> None:
        """The link works again after the death of its server."""
        if self.alive:
            self.core.link_restored(self.clock.now, FRAME_BYTES)
            self._hear_store()
            self.publish()
            self._is_flush_due = True

    def _read_offers_soon(self) -> None:
        """The servers of other nodes are written, and the broker reads them."""
        if not self._is_read_due:
            self._is_read_due = True
            wait_s = max(self._reads_from - self.clock.now, 0.0)
            self.clock.later(wait_s + self.rng.uniform(0.0, READ_S), self._read_offers)

    def _read_offers(self) -> None:
        self._is_read_due = False
        if self.alive:
            self.world.nodes_offer(self.core.servers(self.world.own_names()))
