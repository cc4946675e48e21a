"""Nodes of one cluster as operators see them: calls, stories, counters, problems, drains."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urljoin

import pytest
import trio

from carpool.cluster.requests import story_at_node
from carpool.control.control_client import ControlClient
from carpool.doctor.cluster_problems import DOWN_S
from carpool.launcher.http_door import read_door_url, read_page_key
from carpool.readings.call_steps import crossings
from carpool_protocol.ids import call_named
from tests.behaviours import behaviour
from tests.kit.cluster import (
    ClusterUnderTest,
    cluster_of,
    shared_cluster,
    until,
    until_offered,
    until_says,
)
from tests.kit.line_agent import Json
from tests.kit.live import Daemon, Make, kit
from tests.kit.open_door import open_door

LIMIT_S: Final = 120.0
ECHO: Final[dict[str, dict[str, Json]]] = {"alpha": {"echo": kit("echo")}, "beta": {}}


@pytest.fixture(scope="module")
def shared(ledger: Path) -> Iterator[ClusterUnderTest]:
    """Three nodes, of which alpha has servers and lets only gamma drain it."""
    servers = {"alpha": {"echo": kit("echo"), "tally": kit("tally", str(ledger))}, "beta": {}, "gamma": {}}
    yield from shared_cluster(servers, audit={"on": True}, http=open_door(), alpha={"drain_by": ["gamma"]})


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file in which the server `tally` writes down what it executes."""
    return tmp_path_factory.mktemp("operators") / "ledger"


def runs(ledger: Path, mark: str) -> bool:
    return ledger.exists() and mark in ledger.read_text().splitlines()


@behaviour("cluster:calls")
async def test_an_open_call_at_another_node_is_shown_with_its_node_and_counts_as_no_process(
    shared: ClusterUnderTest, ledger: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with trio.fail_after(LIMIT_S):
        await until_offered(shared, "beta", "tally")
        beta = shared["beta"]
        async with beta.shim() as agent:
            started = await agent.start("tally__run", {"mark": "shown", "how": "hold", "gate": str(gate)})
            await shared.until(lambda: runs(ledger, "shown"), "the call runs")
            (row,) = beta.carpool_json("calls")["calls"]
            assert (row["node"], row["pid"], row["server"]) == ("alpha", None, "tally")
            facts = await beta.status()
            assert facts["servers"]["tally"]["node"] == "*"
            assert facts["totals"]["instances"] == 0
            assert facts["totals"]["node_sessions"] >= 1
            roles = [each["role"] for each in json.loads(beta.run("ps", "--json").stdout)["processes"]]
            assert "node_session" in roles
            assert "instance" not in roles
            assert "alpha" in beta.run("calls").stdout
            gate.touch()
            assert not (await agent.answer(started))["result"].get("isError")


@behaviour("cluster:status")
async def test_the_status_of_a_cluster_has_the_figures_that_each_node_tells_now(
    shared: ClusterUnderTest, ledger: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with trio.fail_after(LIMIT_S):
        async with shared["alpha"].shim() as agent:
            started = await agent.start("tally__run", {"mark": "told", "how": "hold", "gate": str(gate)})
            await shared.until(lambda: runs(ledger, "told"), "the call runs")
            facts = shared["beta"].carpool_json("cluster", "status")
            [alpha] = [each["offer"] for each in facts["nodes"] if each["offer"]["node"] == "alpha"]
            assert alpha["open_calls"] == 1
            facts = shared["alpha"].carpool_json("cluster", "status")
            assert facts["own"]["open_calls"] == 1
            gate.touch()
            assert not (await agent.answer(started))["result"].get("isError")


def acts_of(one: Daemon) -> list[Json]:
    """The acts on nodes in the audit, without what differs between runs."""
    lines = json.loads(one.run("audit", "--acts", "--json").stdout)
    keys = ("act", "targets", "via", "principal", "outcome")
    return [{key: line[key] for key in keys} for line in lines]


@behaviour("cluster:drain_by")
async def test_a_node_that_others_may_not_drain_refuses_and_says_so_and_both_write_it_down(
    shared: ClusterUnderTest,
) -> None:
    alpha, beta = shared["alpha"], shared["beta"]
    with trio.fail_after(LIMIT_S):
        said = beta.run("cluster", "drain", "alpha")
        assert (said.returncode, "`cluster.drain_by`" in said.stderr) == (1, True)
        assert not shared.facts("alpha")["own"]["is_draining"]
        assert beta.run("cluster", "drain").returncode == 0
        await shared.until(
            lambda: len(acts_of(beta)) == 2 and len(acts_of(alpha)) == 1, "the acts are written down"
        )
        asked: Json = {"act": "drain", "targets": ["alpha"], "outcome": "refused"}
        own: Json = {"act": "drain", "targets": ["beta"], "outcome": "done"}
        assert acts_of(beta) == [{**each, "via": "cli", "principal": ""} for each in (asked, own)]
        assert acts_of(alpha) == [{**asked, "via": "node", "principal": "beta"}]
        assert "node beta: it asks this one to drain, or to end that; refused" in alpha.log("node")
        assert "beta" in alpha.run("audit", "--acts").stdout
        assert beta.run("cluster", "undrain").returncode == 0


@behaviour("cluster:acts")
async def test_a_node_that_leaves_has_a_line_in_the_audit() -> None:
    with trio.fail_after(LIMIT_S):
        async with cluster_of({"alpha": {}}, audit={"on": True}) as cluster:
            assert cluster["alpha"].run("cluster", "leave").returncode == 0
            await cluster.until(lambda: len(acts_of(cluster["alpha"])) == 1, "it is written down")
            [line] = acts_of(cluster["alpha"])
            assert (line["act"], line["targets"], line["outcome"]) == ("leave", ["alpha"], "done")


def story_over_http(one: Daemon, call: str) -> Json:
    """The story of a call as an operator gets it over HTTP."""
    directory = str(one.directory)
    asked = urllib.request.Request(
        urljoin(read_door_url(directory), f"/operator/story?call={call}"),
        headers={"Authorization": f"Bearer {read_page_key(directory)}"},
    )
    with urllib.request.urlopen(asked, timeout=30) as answer:
        found: Json = json.load(answer)
    return found


def lines_of(one: Daemon, since: int = 0) -> list[Json]:
    """The calls in the audit, without the first ones."""
    found: list[Json] = json.loads(one.run("audit", "--json").stdout)
    return found[since:]


def answers_of_alpha(one: Daemon) -> int:
    """The calls that the counters of a node have for alpha; they have no other node."""
    groups = json.loads(one.run("stats", "--by", "node", "--json").stdout)["groups"]
    assert {each["name"] for each in groups} <= {"alpha"}
    return sum(each["answers"] for each in groups)


@behaviour("cluster:story")
async def test_a_story_tells_what_happened_at_the_other_node(shared: ClusterUnderTest) -> None:
    alpha, beta = shared["alpha"], shared["beta"]
    with trio.fail_after(LIMIT_S):
        at_beta, at_alpha = len(lines_of(beta)), len(lines_of(alpha))
        counted = answers_of_alpha(beta)
        async with beta.shim() as agent:
            await until_offered(shared, "beta", "echo")
            assert await agent.text("echo__echo", {"text": "hunter2"}) == "hunter2"
            [line] = lines_of(beta, at_beta)
            [there] = lines_of(alpha, at_alpha)
            assert (line["node"], "node" in there, there["agent"]) == ("alpha", False, "beta")
            assert answers_of_alpha(beta) == counted + 1
            told = beta.run("story", line["id"])
            assert told.returncode == 0, told.stderr
            steps = [each.split()[2:] for each in told.stdout.splitlines() if " alpha " in each]
            assert ["alpha", "broker", "came", "from", there["session"]] in steps
            assert any(words[:3] == ["alpha", "supervisor", "handed"] for words in steps)
            assert "handed to node alpha" in told.stdout
            assert f"at node alpha it is {there['id']}" in told.stdout
            order = [
                told.stdout.index(text)
                for text in ("handed to node", "alpha broker", "answered to its agent")
            ]
            assert order == sorted(order)
            whole = beta.run("story", line["id"], "--json").stdout
            assert "hunter2" not in told.stdout + whole
            [tale] = json.loads(whole)["nodes"]
            assert (tale["node"], tale["call"], tale["refused"]) == ("alpha", there["id"], "")
            over_http = story_over_http(beta, line["id"])
            [same] = over_http["nodes"]
            assert same.keys() == tale.keys()
            assert (same["node"], same["call"], same["refused"]) == ("alpha", there["id"], "")
            words = [(step["where"], step["text"]) for step in tale["steps"]]
            assert [(step["where"], step["text"]) for step in same["steps"]] == words
            steps_there = [step for step in over_http["steps"] if step["where"].startswith("alpha ")]
            assert steps_there == same["steps"]


@behaviour("cluster:story")
async def test_a_story_of_a_session_that_has_ended_is_still_told_and_an_absent_node_is_named() -> None:
    own = {**ECHO, "alpha": {"echo": kit("echo", sharing="session")}}  # its session ends with its agent
    with trio.fail_after(LIMIT_S):
        async with cluster_of(own, audit={"on": True}) as cluster:
            beta = cluster["beta"]
            await until_offered(cluster, "beta", "echo")
            async with beta.shim() as agent:
                await until_says(agent, "echo__echo", "x")
            await cluster.until(lambda: not cluster.facts("alpha")["own"]["load"], "the session has ended")
            line = json.loads(beta.run("audit", "--json").stdout)[-1]
            assert "at node alpha it is" in beta.run("story", line["id"]).stdout
            cluster.nodes["alpha"].close()
            await cluster.until(lambda: not cluster.reached("beta"), "beta knows that alpha is away")
            await cluster.until(
                lambda: "what happened at node alpha is not known" in beta.run("story", line["id"]).stdout,
                "the story says that alpha cannot be asked",
            )


@behaviour("cluster:story")
async def test_a_node_is_told_nothing_of_sessions_that_are_not_its_own(shared: ClusterUnderTest) -> None:
    """The node gamma asks alpha for a call that beta's agent has made there."""
    with trio.fail_after(LIMIT_S):
        await until_offered(shared, "beta", "echo")
        beta = shared["beta"]
        async with beta.shim() as agent:
            await until_says(agent, "echo__echo", "x")
            line, there = lines_of(beta)[-1], lines_of(shared["alpha"])[-1]
            with ControlClient(str(beta.directory), control=True) as door:
                live = json.loads(bytes(door.request("carpool/story", {"call": line["id"]})))
            [crossing] = crossings(live, call_named(line["id"]) or 0)
            found = {
                node: [
                    story_at_node(str(shared[node].directory), "alpha", session, call)
                    for session in (crossing.session, -crossing.session, 1, -1)
                    for call in {*range(1, 20), call_named(there["id"]) or 0}
                ]
                for node in ("beta", "gamma")
            }
            assert any(each.steps for each in found["beta"])
            assert not any(each.steps for each in found["gamma"])
            assert all(each.refused for each in found["gamma"])


def problems_of(one: Daemon) -> set[str]:
    """The ids of what doctor finds."""
    return {each["id"] for each in json.loads(one.run("doctor", "--json").stdout)["problems"]}


@behaviour("doctor:cluster")
async def test_doctor_and_status_tell_of_a_cluster_that_is_away_and_of_a_server_that_no_node_runs() -> None:
    placed: Json = {**kit("echo"), "on": "gpu"}
    with trio.fail_after(LIMIT_S):
        async with cluster_of({"alpha": {}, "beta": {"placed": placed}}) as cluster:
            beta = cluster["beta"]
            await beta.until(
                lambda facts: facts["servers"].get("placed", {}).get("state") == "misconfigured",
                "nobody runs it",
            )
            assert problems_of(beta) == {"server-nowhere"}
            assert "1 other node reached, 0 servers from them" in beta.run("status").stdout
            section = beta.carpool_json("status")["cluster"]
            assert (section["node"], section["is_up"], section["nodes"][0]["node"]) == ("beta", True, "alpha")
            await cluster.until(
                lambda: beta.carpool_json("status")["cluster"]["nodes"][0]["latency_s"] is not None,
                "the latency is measured",
            )
            cluster.nats.kill()
            await cluster.until(lambda: cluster.facts("beta")["down_s"] >= DOWN_S, "it has been away so long")
            assert "cluster-unreachable" in problems_of(beta)
            assert "not reached" in beta.run("status").stdout
            cluster.nats.launch()


@behaviour("doctor:cluster")
async def test_doctor_names_credentials_that_are_missing_or_open_to_all(daemon: Make) -> None:
    one = daemon({}, up=False)
    creds = one.base / "node.creds"
    one.configure({}, cluster={"url": "nats://127.0.0.1:9", "node": "beta", "credentials": str(creds)})
    one.up()
    with trio.fail_after(LIMIT_S):
        await until(lambda: "cluster-file-missing" in problems_of(one), "the file is missing")
        assert "cluster-unreachable" not in problems_of(one), "it is told once"
        creds.write_text("secret")
        creds.chmod(0o644)
        one.base.chmod(0o711)
        await until(lambda: "secrets-readable" in problems_of(one), "all can read it")
