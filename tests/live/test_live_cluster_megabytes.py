"""Calls between nodes with lines of megabytes, and a restart of everything at the server's node."""

from pathlib import Path

import pytest
import trio

from tests.behaviours import behaviour
from tests.kit.cluster import cluster_of, until_offered
from tests.kit.line_agent import LineAgent
from tests.kit.live import kit, observer
from tests.kit.waits import until

LIMIT_S = 120.0
MEGABYTES = 3_000_000


async def big_answers(agent: LineAgent, times: int) -> None:
    """Call several times for megabytes, one after the other."""
    for _ in range(times):
        text = await agent.text("big__big", {"bytes": MEGABYTES})
        assert text == "x" * MEGABYTES


@behaviour("cluster:bytes")
async def test_calls_after_answers_of_megabytes_are_answered_for_several_agents_at_once() -> None:
    """A node stops reading its broker while so much waits for another one, and must read on."""
    with trio.fail_after(LIMIT_S):
        async with cluster_of({"alpha": {"big": kit("big", sharing="concurrent")}, "beta": {}}) as cluster:
            await until_offered(cluster, "beta", "big")
            async with (
                cluster["beta"].shim() as one,
                cluster["beta"].shim() as other,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(big_answers, one, 3)
                nursery.start_soon(big_answers, other, 3)


@pytest.mark.xfail(
    reason="`carpool restart --all` stops the node's process with the others, and a call of another node "
    "that waits for the next broker ends as maybe executed, although no server has seen it"
)
@behaviour("restart:drains")
async def test_a_call_of_another_node_that_comes_while_the_server_s_node_restarts_is_not_said_to_be_run(
    tmp_path: Path,
) -> None:
    """It is answered by the next carpool there, or said to be not delivered."""
    server = observer("--order", str(tmp_path / "order"), sharing="concurrent")
    with trio.fail_after(LIMIT_S):
        async with cluster_of({"alpha": {"good": server}, "beta": {}}) as cluster:
            await until_offered(cluster, "beta", "good")
            alpha, beta = cluster["alpha"], cluster["beta"]
            async with beta.shim() as agent, trio.open_nursery() as nursery:
                running = await agent.start("good__hold", {"text": "running", "seconds": 3})
                await until(lambda: "running" in _read(tmp_path / "order"), "the call runs", LIMIT_S)
                nursery.start_soon(alpha.carpool, "restart", "--all")
                await until(lambda: "draining" in alpha.log("broker"), "the broker drains", LIMIT_S)
                waiting = await agent.start("good__echo", {"text": "waiting"})
                assert "result" in await agent.answer(running)
                said = await agent.answer(waiting)
                assert "maybe" not in str(said), said


def _read(file: Path) -> str:
    return file.read_text() if file.exists() else ""
