"""What a node offers, and why it keeps a server local; the file from which other nodes' brokers read it."""

import json
from typing import Any

from carpool.cluster.core.own_servers import launch_hash, node_servers_text, own_offers
from carpool_protocol.config.reading.node_servers import with_node_servers
from carpool_protocol.config.reading.parse import read_config
from carpool_protocol.config.schema.model import Config
from carpool_protocol.config.schema.placement import is_placed_on, node_name
from carpool_protocol.ids import ServerName


def config(servers: dict[str, Any], **settings: Any) -> Config:
    loaded = read_config(json.dumps({"mcpServers": servers, **settings}), "/c.json")
    assert loaded.config is not None, loaded.problems
    return loaded.config


def offered(found: Config, **known: Any) -> set[str]:
    return {each.name for each in own_offers(found, "alpha", known.get("known", ()), {})[0]}


def test_a_plain_server_is_offered() -> None:
    assert offered(config({"git": {"command": "git-server", "env": {"A": "b"}}})) == {"git"}


def test_a_server_with_variables_is_offered_if_the_daemon_has_them() -> None:
    found = config({"git": {"command": "x", "env": {"TOKEN": "${TOKEN}"}}})
    assert offered(found) == set()
    assert offered(found, known={"TOKEN"}) == {"git"}
    assert "TOKEN" in own_offers(found, "alpha", (), {})[1]["git"]


def test_servers_that_work_in_the_agents_directory_are_local() -> None:
    for settings in ({"cwd": "${workspace}"}, {"args": ["${cwd}"]}, {"roots": "agent"}):
        assert offered(config({"git": {"command": "x", **settings}})) == set()


def test_disabled_servers_and_those_of_other_nodes_are_not_mentioned() -> None:
    found = config({"off": {"command": "x", "disabled": True}, "far": {"node": "beta"}})
    assert own_offers(found, "alpha", (), {}) == ([], {})


def test_a_server_keeps_state_unless_its_mode_says_otherwise() -> None:
    found = config({"a": {"command": "x"}, "b": {"command": "x", "sharing": "concurrent"}})
    assert [each.keeps_state for each in own_offers(found, "n", (), {})[0]] == [True, False]
    assert [each.keeps_state for each in own_offers(found, "n", (), {"a": False})[0]] == [False, False]


def test_the_hash_of_a_launch_tells_commands_apart_and_holds_no_value_of_an_environment() -> None:
    servers = config(
        {
            "a": {"command": "x", "env": {"T": "one"}},
            "b": {"command": "x", "env": {"T": "two"}},
            "c": {"command": "x", "args": ["-v"]},
        }
    ).servers
    one, other, third = (launch_hash(each) for each in servers.values())
    assert one == other != third


def test_what_a_node_offers_is_a_server_of_another_nodes_configuration() -> None:
    theirs = config(
        {"git": {"command": "x", "timeout_s": 7, "tools_prefix": "", "tags": ["t"], "sharing": "concurrent"}}
    )
    [offer], _ = own_offers(theirs, "alpha", (), {})
    text = node_servers_text("beta", {"git": ("*", offer)})
    given = read_config(text, "/node-servers.json")
    assert given.problems == []
    merged = with_node_servers(config({"own": {"command": "y"}}), given.config, "beta")
    git = merged.servers[ServerName("git")]
    assert (git.node, git.server, git.tools_prefix, git.tags) == ("*", "git", "", ("t",))
    assert git.policy.timeout_s > 7
    assert git.policy.sharing == "concurrent"


def test_a_server_of_the_file_keeps_its_name_unless_it_is_placed_elsewhere() -> None:
    given = read_config('{"mcpServers": {"git": {"node": "alpha"}}}', "/node-servers.json").config
    own = config({"git": {"command": "x"}})
    assert [each.node for each in with_node_servers(own, given, "beta").servers.values()] == [None]
    placed = config({"git": {"command": "x", "on": "gpu"}})
    assert [each.node for each in with_node_servers(placed, given, "beta").servers.values()] == ["alpha"]
    nowhere = with_node_servers(placed, None, "beta")
    assert nowhere.servers == {}
    assert "places the server on other nodes" in "".join(nowhere.unusable.values())


def test_labels_place_servers() -> None:
    assert is_placed_on((), "a", ())
    assert is_placed_on(("gpu",), "a", ("gpu",))
    assert not is_placed_on(("gpu",), "a", ("big",))
    assert is_placed_on(("host:a", "gpu"), "a", ())
    assert not is_placed_on(("!host:a",), "a", ())
    assert is_placed_on(("!host:b",), "a", ())


def test_the_name_of_a_node_is_the_configured_one_or_the_machines() -> None:
    assert node_name("alpha", "Ignored") == "alpha"
    assert node_name("", "My_Laptop.local") == "my-laptop"
    assert node_name("", "___") == "node"
