"""Nodes of one cluster as operators see them: calls, stories, counters, problems, drains."""

import json
from pathlib import Path
from typing import Final

import trio

from tests.behaviours import behaviour
from tests.kit.cluster import cluster_of, until_offered
from tests.kit.live import kit

LIMIT_S: Final = 120.0


@behaviour("cluster:calls")
async def test_an_open_call_at_another_node_is_shown_with_its_node_and_counts_as_no_process(
    tmp_path: Path,
) -> None:
    ledger, gate = tmp_path / "ledger", tmp_path / "gate"
    with trio.fail_after(LIMIT_S):
        async with cluster_of({"alpha": {"tally": kit("tally", str(ledger))}, "beta": {}}) as cluster:
            await until_offered(cluster, "beta", "tally")
            beta = cluster["beta"]
            async with beta.shim() as agent:
                started = await agent.start("tally__run", {"mark": "m", "how": "hold", "gate": str(gate)})
                await cluster.until(lambda: ledger.exists() and "m" in ledger.read_text(), "the call runs")
                (row,) = beta.carpool_json("calls")["calls"]
                assert (row["node"], row["pid"], row["server"]) == ("alpha", None, "tally")
                facts = await beta.status()
                assert facts["servers"]["tally"]["node"] == "*"
                assert facts["totals"]["instances"] == 0
                assert facts["totals"]["node_sessions"] >= 1
                roles = [each["role"] for each in json.loads(beta.run("ps", "--json").stdout)]
                assert "node_session" in roles
                assert "instance" not in roles
                assert "alpha" in beta.run("calls").stdout
                gate.touch()
                assert not (await agent.answer(started))["result"].get("isError")
