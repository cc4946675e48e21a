"""The verb `cluster`: what it says of the way into the cluster."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from carpool.cli.cluster import cluster, join_line, nodes_table
from carpool.cluster.core.offers import NodeOffer, ServerOffer
from carpool.cluster.node_facts import NodeFacts, OtherNode, SilentNode
from carpool.terminal import screen
from carpool_protocol.config.schema.settings_cluster import check_peer
from tests.behaviours import behaviour


@pytest.mark.parametrize(
    ("url", "is_here"),
    [
        ("nats://secret@127.0.0.1:4222", True),
        ("nats://secret@localhost:4222", True),
        ("nats://secret@[::1]:4222", True),
        ("nats://secret@10.0.0.2:4222", False),
        ("nats://nats.example:4222", False),
    ],
)
def test_another_machine_is_named_only_if_it_can_reach_the_address(url: str, is_here: bool) -> None:
    said = join_line(url)
    assert f"`carpool up --cluster {url}`" in said
    assert ("on another machine" in said) != is_here
    assert ("for this machine only" in said) == is_here


def offer(node: str, *, is_draining: bool = False) -> NodeOffer:
    """An offer whose texts are long."""
    servers = [ServerOffer(name=name, launch="x") for name in ("filesystem-of-the-machine", "playwright")]
    labels = ["gpu", "large-memory", "europe-west"]
    return NodeOffer(
        node=node, epoch="1", release="0.1.0", labels=labels, is_draining=is_draining, servers=servers
    )


@behaviour("cluster:status")
def test_the_table_of_nodes_cuts_no_state_in_80_columns_and_shows_the_age_of_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts = NodeFacts(
        pid=1,
        own=offer("workstation-of-anna-01", is_draining=True),
        nodes=[
            OtherNode(
                offer=offer("alpha-of-the-lab", is_draining=True), is_reached=True, sessions=12, age_s=2
            ),
            OtherNode(offer=offer("beta", is_draining=True), is_reached=False, sessions=3, age_s=4.5),
        ],
        silent=[SilentNode("gamma", 90_000.0)],
    )
    monkeypatch.setattr(screen, "width", lambda: 80)
    lines = nodes_table(facts, 1.0).split("\n")
    assert all(len(line) <= 80 for line in lines)
    states = ("draining", "draining", "not reached", "silent 25 h")
    assert all(state in line for state, line in zip(states, lines[1:], strict=True)), lines
    monkeypatch.setattr(screen, "width", lambda: None)
    heads, own, alpha, *_ = nodes_table(facts, 1.0).split("\n")
    assert "AGE" in heads
    assert (" 1s " in own, " 3s " in alpha) == (True, True)


@behaviour("cluster:keys")
@pytest.mark.parametrize(
    ("url", "address", "note"),
    [
        ("tcp://0.0.0.0:7411", "tcp://HOST:7411", "in place of HOST"),
        ("tcp://[::]:7411", "tcp://HOST:7411", "in place of HOST"),
        ("", "tcp://HOST:7400", "in place of HOST"),
        ("tcp://127.0.0.1:7411", "tcp://127.0.0.1:7411", "for this machine only"),
        ("tcp://10.0.0.2:7411", "tcp://10.0.0.2:7411", ""),
    ],
)
def test_the_line_for_peers_has_an_address_that_they_can_reach_or_a_place_for_one(
    url: str, address: str, note: str, tmp_path: Path
) -> None:
    file = tmp_path / "carpool.json"
    file.write_text(json.dumps({"cluster": {"url": url, "node": "alpha"}, "mcpServers": {}}))
    result = CliRunner().invoke(cluster, ["key", "--config", str(file)])
    assert result.exit_code == 0, result.output
    assert f'"alpha {address} ' in result.output
    assert (note or '"') in result.output.rstrip().rpartition("\n")[2]
    peer = json.loads(CliRunner().invoke(cluster, ["key", "--config", str(file), "--json"]).output)["peer"]
    assert peer.startswith(f"alpha {address} ")


@behaviour("cluster:keys")
@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "*"])
def test_an_address_that_no_peer_can_reach_is_a_problem_of_the_configuration(host: str) -> None:
    why = check_peer(f"beta tcp://{host}:7400 {'0' * 64}")
    assert why is not None
    assert "reaches none" in why
    assert check_peer(f"beta tcp://10.0.0.2:7400 {'0' * 64}") is None
