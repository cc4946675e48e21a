"""All kinds of storms of the simulated world, by name.

Owns the list. Imports the parts of a kind when its first storm runs: each planted bug is looked for in a
process of its own, and most kinds need neither Hypothesis nor pytest, whose import takes as long as a storm.
Knows nothing of: what goes on in any of them.
"""

from collections.abc import Callable, Mapping
from typing import Final

from tests.world.sim.faults import storm
from tests.world.sim.world import World


def _with_hooks(seed: int) -> World:
    from tests.world.sim.hooks import HookedWorld, no_hook_waits

    world = storm(seed, make=HookedWorld, profiles=seed % 3 == 0)
    assert isinstance(world, HookedWorld)
    no_hook_waits(world)
    return world


def _over_workspaces(seed: int) -> World:
    from tests.world.sim.workspace_faults import workspace_storm

    return workspace_storm(seed)


def _over_nodes(seed: int) -> object:
    from tests.world.sim.node_faults import node_storm

    return node_storm(seed)


def _over_narrow_links(seed: int) -> object:
    from tests.world.sim.node_faults import narrow_storm

    return narrow_storm(seed)


def _of_megabytes(seed: int) -> object:
    from tests.world.sim.node_faults import megabyte_storm

    return megabyte_storm(seed)


def _of_pairs(seed: int) -> None:
    from tests.kit.node_pair_storms import pair_storm

    pair_storm(seed)


def _of_deliveries(seed: int) -> None:
    from tests.broker.transport.test_delivery_machine import deliver

    deliver(seed)


def _at_the_boundary(seed: int) -> object:
    from tests.kit.boundary_machine import play

    return play(seed, examples=BOUNDARY_EXAMPLES, shrinks=False)


STORMS: Mapping[str, Callable[[int], World]] = {
    "plain": storm,
    "profiles": lambda seed: storm(seed, profiles=True),
    "hooks": _with_hooks,
    "supervisors": lambda seed: storm(seed, supervisors=2 + seed % 2, operators=seed % 4 == 1),
    "operators": lambda seed: storm(seed, operators=True),
    "workspaces": _over_workspaces,
}
BOUNDARY_EXAMPLES: Final = 20
EVERY: Mapping[str, Callable[[int], object]] = {
    **STORMS,
    "nodes": _over_nodes,
    "narrow": _over_narrow_links,
    "megabytes": _of_megabytes,
    "pairs": _of_pairs,
    "deliveries": _of_deliveries,
    "boundary": _at_the_boundary,
}
"""Also storms over several carpools, the nodes of a cluster; and what is no storm of the world, but a carpool
on real sockets: with one agent, whose broker dies between any two steps; with agents through every way in,
which come, stop, move and leave in the middle of anything.
"""
