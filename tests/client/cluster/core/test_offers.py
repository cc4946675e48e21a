"""Names of servers of other nodes, and the node that a session goes to."""

from typing import Any

import msgspec
import pytest

from carpool.cluster.core.offers import (
    MAX_COUNT,
    MAX_OFFER_BYTES,
    NodeOffer,
    ServerOffer,
    choose_node,
    fitting_offer,
    read_offer,
    remote_servers,
)
from carpool_protocol.wire.tool_name_resolver import MAX_SERVER_NAME_CHARS, check_server_name


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


@pytest.mark.parametrize(
    "hostile",
    [
        {"name": "a\x1b[2J"},
        {"name": "x" * 41},
        {"name": "__git__"},
        {"name": "git", "tools_prefix": "a b\n"},
        {"name": "git", "timeout_s": -1.0},
        {"name": "git", "max_total_s": 1e300},
        {"name": "git", "tool_timeouts_s": {"x": 0.0}},
        {"name": "git", "tool_timeouts_s": {"x" * 1000: 1.0}},
        {"name": "git", "tags": ["\x07"]},
        {"name": "git", "tags": ["x"] * 1000},
        {"name": "git", "launch": "x" * 100_000},
    ],
)
def test_a_server_that_no_configuration_can_hold_does_not_cost_the_others(hostile: dict[str, Any]) -> None:
    servers = [ServerOffer(**{"launch": "x", **hostile}), ServerOffer(name="good", launch="x")]
    told = NodeOffer(node="a", epoch="e", release="1", servers=servers)
    read = read_offer(msgspec.json.encode(told))
    assert read is not None
    assert [each.name for each in read.servers] == ["good"]


def test_words_of_another_node_that_a_terminal_obeys_are_not_read() -> None:
    told = NodeOffer(node="a", epoch="e" * 1000, release="\x1b[2J", labels=["gpu", "\x1b[31m"], load=-5)
    read = read_offer(msgspec.json.encode(told))
    assert read is not None
    assert (read.release, read.labels, read.load, len(read.epoch)) == ("?", ["gpu"], 0, 64)


@pytest.mark.parametrize(("told", "read_as"), [(10**30, MAX_COUNT), (-(10**30), 0), (3, 3)])
def test_counts_that_no_node_has_are_not_believed(told: int, read_as: int) -> None:
    read = read_offer(b'{"node":"a","epoch":"e","release":"1","load":%d,"open_calls":%d}' % (told, told))
    assert read is not None
    assert (read.load, read.open_calls) == (read_as, read_as)


def test_an_offer_of_ten_thousand_servers_is_read_and_sent_in_part() -> None:
    servers = [ServerOffer(name=f"server-{number}", launch="x" * 16) for number in range(10_000)]
    whole = NodeOffer(node="a", epoch="e", release="1", servers=servers)
    assert read_offer(msgspec.json.encode(whole)) is None, "more than any node sends"
    fitting, data = fitting_offer(whole)
    assert len(data) <= MAX_OFFER_BYTES
    read = read_offer(data)
    assert read is not None
    assert len(read.servers) == len(fitting.servers) > 200
    assert len(fitting.kept_local) == 10_000 - len(fitting.servers)
    assert set(fitting.kept_local.values()) == {"the offer of this node is full"}


def test_the_name_of_a_node_s_own_kind_of_a_server_is_legal() -> None:
    long = "x" * MAX_SERVER_NAME_CHARS
    found = remote_servers([offer("a", "x", server=long), offer("b" * 32, "y", server=long)], ())
    assert len(found) == 2
    assert all(check_server_name(name) is None for name in found)
