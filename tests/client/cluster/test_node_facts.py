"""What the node's process writes down is read back, and `status` has a section of it."""

import os
from pathlib import Path

import pytest

from carpool.cli.status import cluster_line
from carpool.cluster.core.offers import NodeOffer, ServerOffer
from carpool.cluster.node_facts import (
    NodeFacts,
    OtherNode,
    SilentNode,
    cluster_section,
    read_facts,
    write_facts,
)
from carpool.control.verdict import is_cluster_away
from carpool_protocol.bootstrap import paths
from carpool_protocol.runtime.node_join import node_pid
from tests.behaviours import behaviour

OWN = NodeOffer(node="beta", epoch="2", release="1.0")
ECHO = ServerOffer(name="echo", launch="x")
ALPHA = NodeOffer(node="alpha", epoch="1", release="1.1", labels=["gpu"], load=3, servers=[ECHO])
FACTS = NodeFacts(
    pid=os.getpid(),
    cluster="carpool",
    url="nats://h:4222",
    is_up=True,
    own=OWN,
    nodes=[OtherNode(offer=ALPHA, is_reached=True, sessions=5, opened=2, latency_s=0.01)],
    silent=[SilentNode("gamma", 12.0)],
    servers={"echo": ["alpha"]},
)


@pytest.fixture
def directory(tmp_path: Path) -> str:
    os.makedirs(os.path.dirname(paths.node_file(str(tmp_path))), exist_ok=True)
    return str(tmp_path)


@behaviour("cluster:status")
def test_facts_are_read_back_while_their_process_lives_and_the_pid_stands_first(directory: str) -> None:
    write_facts(directory, FACTS)
    assert read_facts(directory) == FACTS
    assert node_pid(directory) == FACTS.pid


@behaviour("cluster:status")
def test_facts_of_a_process_that_was_killed_are_none_and_those_of_one_that_failed_stay(
    directory: str,
) -> None:
    assert read_facts(directory) is None
    failed = NodeFacts(pid=0, own=OWN, problem="the NATS server refuses this node")
    write_facts(directory, failed)
    assert read_facts(directory) == failed
    assert node_pid(directory) == 0


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b'{"pid":',
        b"\xff\xfe",
        b"[]",
        b'{"pid":99999999999999999999999,"own":{"node":"a","epoch":"","release":""}}',
        b'{"pid":4294967296,"own":{"node":"a","epoch":"","release":""}}',
        b'{"pid":-1,"own":{"node":"a","epoch":"","release":""}}',
        b'{"pid":"0","own":{"node":"a","epoch":"","release":""}}',
        b'{"pid":0}',
        b'{"pid":0,"own":null}',
        b'{"pid":0,"own":[]}',
        b'{"pid":0,"own":{"node":"a"}}',
        b'{"pid":0,"own":{"node":"a","epoch":"","release":""},"nodes":[{}]}',
        b'{"pid":0,"own":{"node":"a","epoch":"","release":""},"servers":{"git":"a"}}',
        b'{"pid":0,"own":{"node":"a","epoch":"","release":""},"is_up":"yes","cluster":7}',
        b'{"pid":0,"x":' + 100_000 * b"[",
    ],
)
@behaviour("cluster:status")
def test_a_file_that_no_node_has_written_is_as_none(directory: str, text: bytes) -> None:
    Path(paths.node_file(directory)).write_bytes(text)
    assert read_facts(directory) is None
    assert node_pid(directory) == 0


@behaviour("cluster:status")
def test_status_has_a_section_and_a_line_of_the_cluster() -> None:
    section = cluster_section(FACTS)
    assert section is not None
    [alpha] = section["nodes"]
    assert (alpha["opened"], alpha["served"], alpha["load"], alpha["state"]) == (2, 3, 3, "reached")
    assert section["servers"] == {"echo": ["alpha"]}
    line = cluster_line(section)
    assert line == "node beta of the cluster carpool: 1 other node reached, 1 not reached, 1 server from them"
    assert cluster_section(None) is None
    assert cluster_line(None) == ""
    left = cluster_section(NodeFacts(pid=0, own=OWN, has_left=True, problem="it has left the cluster c"))
    assert left is not None
    assert left["own"]["state"] == "left"
    assert cluster_line(left) == "node beta is in no cluster: it has left the cluster c"
    assert not is_cluster_away({"cluster": left})
    troubled = cluster_line({**section, "problem": "no JetStream", "is_draining": True})
    assert troubled == f"{line}; this one is draining; no JetStream"
    away = cluster_line({**section, "is_up": False, "problem": "refused"})
    assert away == "node beta of the cluster carpool: not reached; refused"
