"""Problems of a node and its cluster: each fact leads to one problem with a repair; one in order has none."""

from typing import Any

import pytest
from msgspec.structs import replace

from carpool.cluster.core.offers import NodeOffer
from carpool.cluster.node_facts import NodeFacts, OtherNode, SilentNode
from carpool.doctor.cluster_problems import CLOCK_S, DOWN_S, SILENT_S, MissingFile, cluster_problems
from carpool.doctor.diagnose import Facts, diagnose
from carpool.doctor.kinds import KINDS
from carpool_protocol.config.reading.node_servers import PLACED_NOWHERE
from tests.behaviours import behaviour

ALPHA = OtherNode(offer=NodeOffer(node="alpha", epoch="1", release="1.0"), is_reached=True, sessions=0)
WELL = NodeFacts(
    pid=7,
    cluster="carpool",
    url="nats://h:4222",
    is_up=True,
    own=NodeOffer(node="beta", epoch="2", release="1.0"),
    nodes=[ALPHA],
)
DRAINING = replace(ALPHA, offer=replace(ALPHA.offer, is_draining=True))
KEY = MissingFile("cluster.key", "/home/me/node.key")


@behaviour("doctor:cluster")
def test_a_cluster_in_order_and_no_cluster_have_no_problem() -> None:
    assert list(cluster_problems(WELL, (), "1.0")) == []
    assert list(cluster_problems(None, (), "1.0")) == []
    near = replace(ALPHA, clock_ahead_s=CLOCK_S / 2, latency_s=0.1)
    starting = replace(WELL, is_up=False, down_s=DOWN_S / 2, silent=[SilentNode("gamma", SILENT_S * 9)])
    assert list(cluster_problems(replace(WELL, nodes=[near]), (), "1.0")) == []
    assert list(cluster_problems(starting, (), "1.0")) == [], (
        "while the link is down nothing is known of nodes"
    )


@behaviour("doctor:cluster")
@pytest.mark.parametrize(
    ("more", "kind", "text", "repair"),
    [
        ({"is_up": False, "down_s": 60.0}, "cluster-unreachable", "for 60 s.", "NATS server"),
        ({"is_up": False, "down_s": 60.0, "problem": "x y"}, "cluster-unreachable", "(x y)", "cluster.url"),
        ({"problem": "no JetStream"}, "cluster-unreachable", "no JetStream", "carpool logs --daemon"),
        ({"pid": 0, "problem": "it refuses"}, "cluster-unreachable", "it refuses", "restart --all"),
        ({"has_namesake": True}, "node-name-twice", "called beta", "cluster.node"),
        ({"silent": [SilentNode("gamma", SILENT_S)]}, "node-silent", "gamma", "cluster.peers"),
        (
            {"nodes": [replace(ALPHA, offer=replace(ALPHA.offer, release="0.9"))]},
            "node-version",
            "alpha runs carpool 0.9, and 1.0",
            "one version",
        ),
        ({"nodes": [replace(ALPHA, clock_ahead_s=-61.0)]}, "clocks-differ", "61 s behind", "NTP"),
        ({"nodes": [replace(ALPHA, clock_ahead_s=61.0)]}, "clocks-differ", "61 s ahead", "NTP"),
    ],
)
def test_a_problem_of_the_cluster_has_a_sentence_and_a_repair(
    more: dict[str, Any], kind: str, text: str, repair: str
) -> None:
    [found] = cluster_problems(replace(WELL, **more), (), "1.0")
    assert found.kind == kind
    assert kind in KINDS
    assert text in found.text
    assert repair in found.repair


@behaviour("doctor:cluster")
def test_a_missing_key_is_told_once_with_the_command_that_makes_one() -> None:
    problem = "the key of this node cannot be read from /home/me/node.key"
    ended = replace(WELL, pid=0, is_up=False, problem=problem)
    away = replace(WELL, is_up=False, down_s=60.0, problem=problem)
    assert len(list(cluster_problems(away, (KEY,), "1.0"))) == 1, "the process tries again and again"
    [found] = cluster_problems(ended, (KEY,), "1.0")
    assert (found.kind, "carpool cluster key" in found.repair) == ("cluster-file-missing", True)
    credentials = MissingFile("cluster.credentials", "/x.creds")
    tries = replace(WELL, is_up=False, down_s=60.0, problem="there are no credentials in /x.creds")
    [found] = cluster_problems(tries, (credentials,), "1.0")
    assert found.kind == "cluster-file-missing"
    [found] = cluster_problems(None, (credentials,), "1.0")
    assert "`cluster.credentials`" in found.repair


@behaviour("doctor:cluster")
@pytest.mark.parametrize(
    ("nodes", "its", "where", "repair"),
    [
        ([DRAINING], "*", "node alpha", "`carpool cluster undrain alpha`"),
        ([DRAINING], "alpha", "node alpha", "`carpool cluster undrain alpha`"),
        ([], "alpha", "node alpha", "Look whether carpool runs at alpha"),
        ([ALPHA], "*", "node alpha", "`carpool logs git` at alpha"),
    ],
)
def test_a_server_of_another_node_is_told_with_that_node_and_what_helps_there(
    nodes: list[OtherNode], its: str, where: str, repair: str
) -> None:
    node = replace(WELL, nodes=nodes, servers={"git": ["alpha"]})
    server = {"well": True, "state": "breaker_open", "last_error": "got no session: x", "node": its}
    status = {"broker": {"version": "1.0"}, "reason": "ok", "servers": {"git": server}}
    [found] = diagnose(Facts(installed="1.0", status=status, node=node))
    assert (found.id, found.server) == ("server-at-node", "git")
    assert where in found.text
    assert repair in found.repair
    assert "starting" not in found.text
    assert "run `carpool start" not in found.repair
    cold = {**status, "servers": {"git": {**server, "state": "cold"}}}
    assert diagnose(Facts(installed="1.0", status=cold, node=node)) == []


@behaviour("doctor:cluster")
def test_a_server_that_is_placed_on_nodes_that_are_not_there_is_told_as_that() -> None:
    error = f"carpool.json:4: mcpServers.gpu.on {PLACED_NOWHERE}"
    server = {"well": False, "state": "misconfigured", "last_error": error}
    status = {"broker": {"version": "1.0"}, "reason": "ok", "servers": {"gpu": server}}
    [found] = diagnose(Facts(installed="1.0", status=status, node=WELL))
    assert (found.id, found.server, "cluster.labels" in found.repair) == ("server-nowhere", "gpu", True)
