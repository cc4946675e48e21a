"""Random storms over the world of nodes: agents that talk, links that lose frames, cuts, deaths. By seed.

Owns the odds of what happens. A storm ends with everything healed: then each open session has all of its
text.
"""

import random
from typing import Final

from carpool.cluster.core.channel import LOST_S
from tests.kit.node_world import NodeWorld

NODES: Final = ("alpha", "beta", "gamma")
STEPS: Final = 60


def storm(seed: int) -> NodeWorld:
    """Run the storm of this seed. Raises `AssertionError` if a promise is broken."""
    chance = random.Random(seed)
    world = NodeWorld(*NODES)
    world.run(3.0)
    for _ in range(STEPS):
        _step(world, chance)
        world.check()
    world.cuts = set()
    world.run(3 * LOST_S)
    world.check()
    for session in world.sessions:
        assert session.end or session.returned == session.wanted, f"{session.label} lacks some of its text"
    return world


def _step(world: NodeWorld, chance: random.Random) -> None:
    live = [each for each in world.sessions if not each.end]
    match chance.choices(
        ("open", "say", "close", "wait", "deliver", "cut", "start", "run"), (4, 8, 1, 3, 8, 1, 0.4, 3)
    )[0]:
        case "open":
            world.open(chance.choice(NODES), chance.choice((*NODES, "*")))
        case "say" if live:
            world.say(chance.choice(live), 50_000 if chance.random() < 0.02 else chance.randint(1, 400))
        case "close" if live:
            world.close(chance.choice(live))
        case "wait":
            world.now += chance.choice((0.01, 0.06, 0.6, 1.5, 7.0))
            world.flush()
        case "deliver":
            world.flush()
            pairs = sorted(pair for pair, queue in world.queues.items() if queue)
            if pairs:
                world.deliver(chance.choice(pairs), lose=chance.random() < 0.3)
        case "cut":
            one, other = chance.sample(NODES, 2)
            world.cuts ^= {(one, other), (other, one)} if chance.random() < 0.7 else {(one, other)}
        case "start":
            world.start(chance.choice(NODES))
        case _:
            world.run(chance.choice((0.5, 3.0, 25.0)))
