"""Nodes of one cluster on this machine: an agent of one node uses the servers of another as its own."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

import pytest
import trio

from tests.behaviours import behaviour
from tests.kit.cluster import (
    ClusterUnderTest,
    cluster_of,
    curve_settings,
    shared_cluster,
    until_offered,
    until_says,
)
from tests.kit.line_agent import Json, LineAgent, fault_of
from tests.kit.live import Daemon, Make, kit
from tests.kit.sdk_reports import compare, plain
from tests.kit.sdks import AGENTS, ASKABLE, entry, require_peers, steps_of, tour

LIMIT_S: Final = 120.0
ECHO: Final[dict[str, dict[str, Json]]] = {"alpha": {"echo": kit("echo")}, "beta": {}}
LABELLED: Final[Json] = {**kit("echo"), "on": "gpu"}
SHARED: Final[dict[str, dict[str, Json]]] = {
    "alpha": {
        "echo": kit("echo"),
        "labelled": LABELLED,
        "everywhere": kit("echo"),
        "needy": {**kit("echo"), "env": {"TOKEN": "${CLUSTER_TEST_TOKEN}"}},
        "placed": {**kit("echo"), "cwd": "${workspace}"},
    },
    "beta": {"labelled": LABELLED, "everywhere": kit("echo")},
}
PROFILES: Final[Json] = {
    "few": {"allow": ["mcp:echo"], "deny": ["mcp:echo:blob"]},
    "none": {"allow": ["mcp:other"]},
}


@pytest.fixture(scope="module")
def shared() -> Iterator[ClusterUnderTest]:
    yield from shared_cluster(SHARED, profiles=PROFILES, alpha={"labels": ["gpu"]})


async def servers_in(agent: LineAgent) -> set[str]:
    """The servers whose tools an agent sees."""
    return {tool["name"].partition("__")[0] for tool in (await agent.result("tools/list"))["tools"]}


@behaviour("cluster:reach")
async def test_an_agent_calls_a_server_of_another_node(shared: ClusterUnderTest) -> None:
    with trio.fail_after(LIMIT_S):
        for server in ("echo", "labelled"):
            await until_offered(shared, "beta", server)
        async with shared["beta"].shim() as agent:
            assert await servers_in(agent) == {"echo", "labelled", "everywhere"}
            assert await agent.text("echo__echo", {"text": "over there"}) == "over there"
        sessions = (await shared["alpha"].status())["sessions"]
        assert {each["agent"] for each in sessions} <= {"beta"}, "the other node's name is seen"


@behaviour("cluster:features")
async def test_every_feature_of_a_server_reaches_agents_of_each_sdk_at_another_node() -> None:
    require_peers()
    steps, wrong = steps_of("sdk2", "anna"), list[str]()
    with trio.fail_after(len(AGENTS) * LIMIT_S):
        async with cluster_of(
            {"alpha": {"asking": entry("sdk2", sharing="concurrent")}, "beta": {}}
        ) as cluster:
            await until_offered(cluster, "beta", "asking")
            for kind in AGENTS:
                near, far = [
                    await tour(
                        kind, "anna", one.command("connect"), steps, environ=one.environ, directory=one.base
                    )
                    for one in (cluster["alpha"], cluster["beta"])
                ]
                wrong += compare(kind, steps, plain(kind, near), plain(kind, far))
                assert far["init"] == near["init"], kind
    assert not wrong, "\n".join(wrong)


def answer(name: str, ask: Json) -> Json:
    """What the agent `name` says to a question: its name and the question."""
    if ask["method"] == "elicitation/create":
        fields = ask["params"]["requestedSchema"]["required"]
        return {"result": {"action": "accept", "content": dict.fromkeys(fields, f"{name}: form")}}
    text = ask["params"]["messages"][0]["content"]["text"]
    content = {"type": "text", "text": f"{name}: model on {text}"}
    return {"result": {"role": "assistant", "content": content, "model": name}}


@behaviour("cluster:asks")
async def test_agents_of_two_nodes_are_asked_each_its_own_question_by_one_process_of_a_third() -> None:
    require_peers()
    servers: dict[str, dict[str, Json]] = {
        "alpha": {},
        "beta": {},
        "gamma": {"asking": entry("sdk2", sharing="concurrent", pool={"max": 1})},
    }
    with trio.fail_after(LIMIT_S):
        async with cluster_of(servers) as cluster, AsyncExitStack() as stack:
            agents: dict[str, LineAgent] = {}
            for node in ("alpha", "beta"):
                await until_offered(cluster, node, "asking")
                for number in range(5):
                    name = f"{node}-{number}"
                    agent = agents[name] = await stack.enter_async_context(cluster[node].agent(greet=False))
                    agent.says = partial(answer, name)
                    await agent.greet("2025-11-25", ASKABLE)
            started = {}
            for name, agent in agents.items():
                arguments = {"text": name, "room": "r", "party": len(agents)}
                started[name] = await agent.start("both", arguments, id_=1, token=1)
            for name, agent in agents.items():
                result = (await agent.answer(started[name]))["result"]
                assert json.loads(result["content"][0]["text"]) == [
                    name,
                    f"{name}: model on {name}",
                    f"{name}: form",
                ]


@behaviour("cluster:lists")
async def test_a_server_that_a_node_gets_or_loses_is_told_to_agents_of_other_nodes() -> None:
    with trio.fail_after(LIMIT_S):
        async with cluster_of(ECHO) as cluster, cluster["beta"].shim() as agent:
            await until_offered(cluster, "beta", "echo")
            assert await servers_in(agent) == {"echo"}
            config = json.loads(cluster["alpha"].config.read_text())
            config["mcpServers"]["more"] = kit("echo")
            cluster["alpha"].config.write_text(json.dumps(config))
            await until_offered(cluster, "beta", "more")
            await agent.notice("notifications/tools/list_changed")
            assert await servers_in(agent) == {"echo", "more"}
            del config["mcpServers"]["echo"]
            cluster["alpha"].config.write_text(json.dumps(config))
            await until_offered(cluster, "beta", "echo", there=False)
            assert await servers_in(agent) == {"more"}


@behaviour("cluster:deaths")
async def test_the_death_of_each_process_of_a_node_is_survived() -> None:
    with trio.fail_after(LIMIT_S):
        async with cluster_of(ECHO) as cluster, cluster["beta"].shim() as agent:
            await until_offered(cluster, "beta", "echo")
            await until_says(agent, "echo__echo", "before")
            for node in ("alpha", "beta"):
                facts = await cluster[node].status()
                for pid in (facts["broker"]["pid"], facts["supervisors"][0]["pid"], cluster.node_pid(node)):
                    os.kill(pid, signal.SIGKILL)
                    await until_says(agent, "echo__echo", f"after {pid}")


@behaviour("cluster:state")
async def test_a_node_that_starts_again_loses_no_state_of_a_server_that_was_not_seen_to_keep_any() -> None:
    servers = {"alpha": {"echo": kit("echo"), "pages": kit("echo", sharing="session")}, "beta": {}}
    with trio.fail_after(LIMIT_S):
        async with cluster_of(servers) as cluster, cluster["beta"].shim() as agent:
            for name, codes in (("echo", set()), ("pages", {"state_lost"})):
                await until_offered(cluster, "beta", name)
                await until_says(agent, f"{name}__echo", "before")
                os.kill(cluster.node_pid("alpha"), signal.SIGKILL)
                assert await codes_until_says(agent, f"{name}__echo", "after") & {"state_lost"} == codes


async def codes_until_says(agent: LineAgent, tool: str, text: str) -> set[str]:
    """Call until the answer is there, and return the codes of the errors before it."""
    codes: set[str] = set()
    while True:
        said = await agent.answer(await agent.start(tool, {"text": text}))
        if "error" not in said and not said["result"].get("isError"):
            return codes
        assert "result" in said, said
        codes.add(fault_of(said["result"])["code"])


@behaviour("cluster:deaths")
async def test_a_broker_that_dies_at_the_server_s_node_costs_a_call_of_another_node_a_pause(
    tmp_path: Path,
) -> None:
    ledger = tmp_path / "ledger"
    with trio.fail_after(LIMIT_S):
        async with cluster_of({"alpha": {"tally": kit("tally", str(ledger))}, "beta": {}}) as cluster:
            await until_offered(cluster, "beta", "tally")
            async with cluster["beta"].shim() as agent:
                started = await agent.start("tally__run", {"mark": "m", "how": "nap", "nap_s": 1.5})
                await cluster.until(lambda: ledger.exists() and "m" in ledger.read_text(), "the call runs")
                os.kill((await cluster["alpha"].status())["broker"]["pid"], signal.SIGKILL)
                result = (await agent.answer(started))["result"]
                assert not result.get("isError"), result
                assert ledger.read_text().split() == ["m"]


@behaviour("cluster:cuts")
async def test_a_nats_server_that_is_away_for_a_moment_costs_a_pause() -> None:
    with trio.fail_after(LIMIT_S):
        async with cluster_of(ECHO) as cluster, cluster["beta"].shim() as agent:
            await until_offered(cluster, "beta", "echo")
            assert await agent.text("echo__echo", {"text": "before"}) == "before"
            cluster.nats.kill()
            started = await agent.start("echo__echo", {"text": "meanwhile"})
            cluster.nats.launch()
            result = (await agent.answer(started))["result"]
            assert result["content"][0]["text"] == "meanwhile"


@behaviour("cluster:rights")
async def test_a_profile_of_peers_bars_a_server_and_the_log_says_who_asked() -> None:
    servers: dict[str, dict[str, Json]] = {"alpha": {"echo": kit("echo"), "secret": kit("echo")}, "beta": {}}
    settings: Json = {"profile": "peers", "profiles": {"peers": {"allow": ["mcp:echo"]}}}
    with trio.fail_after(LIMIT_S):
        async with cluster_of(servers, alpha=settings) as cluster:
            await until_offered(cluster, "beta", "echo")
            config = json.loads(cluster["beta"].config.read_text())
            config["mcpServers"]["hidden"] = {"node": "alpha", "server": "secret"}
            cluster["beta"].config.write_text(json.dumps(config))
            await until_offered(cluster, "beta", "hidden")
            async with cluster["beta"].shim() as agent:
                assert await agent.text("echo__echo", {"text": "x"}) == "x"
                said = await agent.answer(await agent.start("hidden__echo", {"text": "x"}))
                refused = said["result"]["content"][0]["text"]
                rule = (
                    "node alpha does not offer secret: the profile of other nodes (peers) does not grant it"
                )
                assert rule in refused
            assert "secret" not in (await cluster["beta"].status())["servers"]
            own = cluster.facts("alpha")["own"]
            assert own["kept_local"] == {"secret": "the profile of other nodes (peers) does not grant it"}


@behaviour("cluster:rights")
async def test_an_agent_s_profile_answers_alike_for_an_own_server_and_for_one_of_another_node(
    shared: ClusterUnderTest,
) -> None:
    """Also for a tool that only this profile hides, and for a server of which it grants nothing."""
    with trio.fail_after(LIMIT_S):
        await until_offered(shared, "beta", "echo")
        found: dict[str, list[Json]] = {"alpha": [], "beta": []}
        for node, said in found.items():
            for profile in PROFILES:
                async with shared[node].shim("connect", "--profile", profile) as agent:
                    for tool in ("echo__blob", "echo__absent", "absent__x"):
                        error = (await agent.answer(await agent.start(tool, {"bytes": 1})))["error"]
                        error["data"].pop("call")
                        said.append(error)
        assert found["beta"] == found["alpha"]
        assert [each["data"]["code"] for each in found["beta"]] == [
            *("not_permitted", "unknown_tool", "unknown_tool"),
            *("not_permitted", "not_permitted", "unknown_tool"),
        ]


@behaviour("cluster:environment")
async def test_a_server_that_needs_its_agent_s_environment_or_directory_stays_local_and_says_so(
    shared: ClusterUnderTest,
) -> None:
    with trio.fail_after(LIMIT_S):
        await until_offered(shared, "beta", "echo")
        reasons = shared.facts("alpha")["own"]["kept_local"]
        assert "CLUSTER_TEST_TOKEN" in reasons["needy"]
        assert "directory of its agent" in reasons["placed"]
        assert not {"needy", "placed"} & (await shared["beta"].status())["servers"].keys()


@behaviour("cluster:placement")
async def test_a_server_runs_only_at_nodes_with_its_label_and_is_reached_from_all(
    shared: ClusterUnderTest,
) -> None:
    alpha, beta = shared["alpha"], shared["beta"]
    with trio.fail_after(LIMIT_S):
        async with beta.shim() as agent:
            await beta.until(
                lambda facts: (
                    facts["servers"].get("labelled", {}).get("state") not in {None, "misconfigured"}
                ),
                "beta has the server of alpha",
            )
            assert await agent.text("labelled__echo", {"text": "x"}) == "x"
        assert (await alpha.status())["servers"]["labelled"]["instances"]
        assert "`on`" in shared.facts("beta")["own"]["kept_local"]["labelled"]


@behaviour("cluster:names")
async def test_a_server_of_the_own_node_is_used_although_another_node_offers_the_name(
    shared: ClusterUnderTest,
) -> None:
    with trio.fail_after(LIMIT_S):
        before = shared.facts("alpha")["own"]["load"]
        async with shared["beta"].shim() as agent:
            assert await agent.text("everywhere__echo", {"text": "x"}) == "x"
        assert shared.facts("alpha")["own"]["load"] <= before
        assert not (await shared["alpha"].status())["servers"]["everywhere"]["instances"]


@behaviour("cluster:drain")
async def test_a_draining_node_keeps_its_sessions_and_gets_no_others(shared: ClusterUnderTest) -> None:
    alpha, beta = shared["alpha"], shared["beta"]
    with trio.fail_after(LIMIT_S):
        async with beta.shim() as first:
            await until_offered(shared, "beta", "echo")
            await until_says(first, "echo__echo", "one")
            said = beta.run("cluster", "drain", "alpha")
            assert (said.returncode, "alpha takes no further sessions" in said.stdout) == (0, True)
            await shared.until(
                lambda: bool(shared.facts("beta")["nodes"][0]["offer"]["is_draining"]), "beta knows of it"
            )
            await until_says(first, "echo__echo", "two")
            assert alpha.run("cluster", "undrain").returncode == 0
            await shared.until(
                lambda: not shared.facts("beta")["nodes"][0]["offer"]["is_draining"],
                "beta knows of that too",
            )
            async with beta.shim() as second:
                await until_says(second, "echo__echo", "three")


@behaviour("cluster:leave")
async def test_a_node_that_leaves_takes_its_servers_with_it() -> None:
    with trio.fail_after(LIMIT_S):
        async with cluster_of(ECHO) as cluster, cluster["beta"].shim() as agent:
            await until_offered(cluster, "beta", "echo")
            assert cluster["alpha"].run("cluster", "leave").returncode == 0
            await until_offered(cluster, "beta", "echo", there=False)
            assert await servers_in(agent) == set()
            refused = fault_of(await agent.call("echo__echo", {"text": "x"}))
            assert (refused["code"], refused["delivered"]) == ("node_away", "no")
            left = cluster["alpha"].run("cluster", "status")
            assert (left.returncode, "it has left the cluster carpool" in left.stderr) == (1, True)
            status = cluster["alpha"].run("status")
            assert (status.returncode, "node alpha is in no cluster: it has left" in status.stdout) == (
                0,
                True,
            )
            assert "cluster" not in cluster["alpha"].run("doctor").stdout
            async with cluster["alpha"].shim() as near:
                assert await near.text("echo__echo", {"text": "x"}) == "x"


@behaviour("cluster:keys")
async def test_nodes_with_keys_reach_each_other_and_a_stranger_reaches_nobody(daemon: Make) -> None:
    """Over TCP without a server; the third node has a key that the others do not know."""
    nodes = {name: daemon({}, up=False) for name in ("alpha", "beta", "gamma")}
    known = curve_settings({name: nodes[name] for name in ("alpha", "beta")})
    stranger = curve_settings(nodes)["gamma"]
    stranger["node"] = "beta"
    with trio.fail_after(LIMIT_S):
        nodes["alpha"].configure({"echo": kit("echo")}, cluster=known["alpha"])
        nodes["beta"].configure({}, cluster=known["beta"])
        peer = f"alpha {known['alpha']['url']} {nodes['alpha'].carpool_json('cluster', 'key')['public_key']}"
        nodes["gamma"].configure({}, cluster={**stranger, "peers": [peer]})
        for each in nodes.values():
            each.up()
        await nodes["beta"].until(lambda facts: "echo" in facts["servers"], "beta has the server of alpha")
        async with nodes["beta"].shim() as agent:
            assert await agent.text("echo__echo", {"text": "x"}) == "x"
        key = nodes["gamma"].carpool_json("cluster", "key")["public_key"]
        await logged(nodes["alpha"], key)
        assert "echo" not in (await nodes["gamma"].status())["servers"]
        assert nodes["alpha"].run("cluster", "leave").returncode == 0
        await nodes["beta"].until(lambda facts: "echo" not in facts["servers"], "beta has lost the server")
        assert "not heard" not in nodes["beta"].log("node"), "it had to find that out by itself"


async def logged(one: Daemon, text: str) -> None:
    """Wait until the log of the node's process holds this."""
    with trio.fail_after(LIMIT_S):
        while text not in one.log("node"):  # noqa: ASYNC110 - it is a file
            await trio.sleep(0.05)


@behaviour("cluster:new")
async def test_two_commands_make_a_cluster_of_two_carpools_on_one_machine(daemon: Make) -> None:
    first, second = daemon({"echo": kit("echo")}, up=False), daemon({}, up=False)
    with trio.fail_after(LIMIT_S):
        for one, arguments in ((first, ("new", "alpha")), (second, ("", "beta"))):
            url = arguments[0] or first.carpool_json("cluster", "status")["join"]
            done = one.run("up", "--detach", "--cluster", url, "--node", arguments[1])
            assert done.returncode == 0, done.stderr
            if one is first:
                await logged(first, "NATS is connected")
        await second.until(lambda facts: "echo" in facts["servers"], "beta has the server of alpha")
        async with second.shim() as agent:
            assert await agent.text("echo__echo", {"text": "x"}) == "x"
