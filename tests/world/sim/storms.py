"""All kinds of storms of the simulated world, by name.

Owns the list. Knows nothing of: what goes on in any of them.
"""

from collections.abc import Callable, Mapping
from typing import Final

from tests.broker.transport.test_delivery_machine import deliver
from tests.kit.boundary_machine import play
from tests.world.sim.faults import storm
from tests.world.sim.hooks import HookedWorld, no_hook_waits
from tests.world.sim.node_faults import node_storm
from tests.world.sim.workspace_faults import workspace_storm
from tests.world.sim.world import World


def _with_hooks(seed: int) -> World:
    world = storm(seed, make=HookedWorld, profiles=seed % 3 == 0)
    assert isinstance(world, HookedWorld)
    no_hook_waits(world)
    return world


STORMS: Mapping[str, Callable[[int], World]] = {
    "plain": storm,
    "profiles": lambda seed: storm(seed, profiles=True),
    "hooks": _with_hooks,
    "supervisors": lambda seed: storm(seed, supervisors=2 + seed % 2, operators=seed % 4 == 1),
    "operators": lambda seed: storm(seed, operators=True),
    "workspaces": workspace_storm,
}
BOUNDARY_EXAMPLES: Final = 20
EVERY: Mapping[str, Callable[[int], object]] = {
    **STORMS,
    "nodes": node_storm,
    "deliveries": deliver,
    "boundary": lambda seed: play(seed, examples=BOUNDARY_EXAMPLES, shrinks=False),
}
"""Also storms over several carpools, the nodes of a cluster; and what is no storm of the world, but a carpool
on real sockets: with one agent, whose broker dies between any two steps; with agents through every way in,
which come, stop, move and leave in the middle of anything.
"""
