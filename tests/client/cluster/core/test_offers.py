"""Names of servers of other nodes, and the node that a session goes to."""

import msgspec

from carpool.cluster.core.offers import NodeOffer, ServerOffer, choose_node, read_offer, remote_servers


def offer(node: str, *launches: str, load: int = 0, draining: bool = False, server: str = "git") -> NodeOffer:
    servers = [ServerOffer(name=server, launch=launch) for launch in launches]
    return NodeOffer(node=node, epoch="e", release="1", load=load, is_draining=draining, servers=servers)


def test_nodes_with_the_same_launch_are_one_server() -> None:
    found = remote_servers([offer("b", "x"), offer("a", "x")], ())
    assert {name: each.nodes for name, each in found.items()} == {"git": ["a", "b"]}


def test_of_different_launches_the_one_of_most_nodes_has_the_name() -> None:
    found = remote_servers([offer("a", "y"), offer("b", "x"), offer("c", "x")], ())
    assert {name: each.nodes for name, each in found.items()} == {"git": ["b", "c"], "git-a": ["a"]}


def test_a_tie_goes_to_the_first_node_by_name() -> None:
    found = remote_servers([offer("b", "x"), offer("a", "y")], ())
    assert {name: each.nodes for name, each in found.items()} == {"git": ["a"], "git-b": ["b"]}


def test_a_name_of_the_own_node_is_taken() -> None:
    assert remote_servers([offer("a", "x")], {"git"}) == {}


def test_a_session_goes_to_the_least_loaded_node_that_is_not_draining() -> None:
    offers = {"a": offer("a", "x", load=3), "b": offer("b", "x", load=1), "c": offer("c", "x", draining=True)}
    server = remote_servers(offers.values(), ())["git"]
    assert choose_node(server, offers, {}) == "b"
    assert choose_node(server, offers, {"b": 4}) == "a", "own sessions count before the offer tells of them"
    assert choose_node(server, {"c": offers["c"]}, {}) == ""


def test_what_is_no_offer_is_not_read() -> None:
    assert read_offer(b"nonsense") is None
    assert read_offer(msgspec.json.encode(offer("no name!"))) is None
    assert read_offer(msgspec.json.encode(offer("a", "x"))) == offer("a", "x")
