"""Storms of the simulated world that have found faults, run again by their seeds (`tests.world.soak`)."""

import pytest

from tests.behaviours import behaviour
from tests.world.sim.storms import EVERY


@behaviour("lease:never-silently", "reattach:calls")
@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        pytest.param(
            "plain", 710006, id="two sessions hear of a loss while both wait in pools of one server"
        ),
        pytest.param("workspaces", 81, id="an instance closes its stdin after it ran calls of its holder"),
        pytest.param(
            "workspaces", 710120, id="a pool shares its instances again while a call waits at the broker"
        ),
        pytest.param("hooks", 710133, id="a hook holds a call that was read before a loss was told"),
        pytest.param("hooks", 740005, id="a call waits at the supervisor behind a later one"),
        pytest.param(
            "profiles", 162168671, id="a broker dies before an agent has read with what its call was parked"
        ),
        pytest.param(
            "workspaces", 810018, id="an instance ends without having got a call from before the loss"
        ),
        pytest.param("workspaces", 30091, id="an ask is repeated while its answer is on the link"),
        pytest.param("hooks", 30145, id="a list is answered that its agent may have read before"),
        pytest.param("workspaces", 30300, id="an operator ends a trial that calls wait for"),
        pytest.param(
            "plain", 30165, id="a retry comes too late for a call that was parked anew after a death"
        ),
        pytest.param("workspaces", 920103, id="a call makes a pool wanted while agents return"),
        pytest.param("hooks", 910113, id="an agent gives up a call while it comes back"),
        pytest.param("operators", 80009, id="a broker dies after it wrote the answer that told of a loss"),
        pytest.param("hooks", 50045, id="the next broker reports an answer that told of a loss"),
        pytest.param("plain", 1300039, id="a second retry with one token, whose refusal was lost"),
        pytest.param("workspaces", 1300033, id="a call is given up under the session after the lost one"),
        pytest.param("hooks", 1200205, id="the state of a pool changes twice while it is compared"),
        pytest.param("workspaces", 577041117, id="the link is cut while a call waits for a retry"),
        pytest.param("megabytes", 4, id="a cancel waits behind other bytes of a slow link"),
        pytest.param("megabytes", 16, id="answers of megabytes that a slow link cannot carry in time"),
        pytest.param("megabytes", 23, id="nodes are killed while megabytes are on their way"),
        pytest.param("nodes", 22, id="another node tells a call of a loss while that call is cancelled"),
    ],
)
def test_a_storm_that_found_a_fault_breaks_no_promise(kind: str, seed: int) -> None:
    EVERY[kind](seed)
