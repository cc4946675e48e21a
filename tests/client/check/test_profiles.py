"""What `check` says of profiles: patterns about nobody, and the lines for what a running carpool counted."""

import json
from typing import Any

from carpool.check.profiles import profile_lines, unknown_server_warnings
from carpool_protocol.config.reading.parse import read_config
from carpool_protocol.config.schema.model import Config
from tests.behaviours import behaviour

COUNTED: dict[str, Any] = {
    "profile": "p",
    "servers": ["git"],
    "unknown": [],
    "tools": 2,
    "of_tools": 5,
    "left_out": 0,
    "idle": [],
}


def written(**profile: Any) -> str:
    servers = {"git": {"command": "x", "tags": ["code"]}}
    inner = {"w": {"mcpServers": {"shop": {"command": "y"}}}}
    text = {"mcpServers": servers, "workspaces": inner, "profiles": {"p": profile}}
    return json.dumps(text, indent=1)


def config(**profile: Any) -> Config:
    found = read_config(written(**profile), "f").config
    assert found is not None
    return found


@behaviour("profiles:checked")
def test_a_pattern_about_servers_that_nobody_has_is_named_with_its_line() -> None:
    assert (
        unknown_server_warnings(
            config(allow=["*", "mcp:*:x", "mcp:git:any", "mcp:shop", "tag:c*", "resource:g*:x"])
        )
        == []
    )
    one, two = unknown_server_warnings(config(allow=["mcp:gti:*"], deny=["tag:prod"]))
    assert one.endswith("profiles.p.allow[0]: no server has such a name; did you mean git?")
    assert two.endswith("profiles.p.deny[0]: no server has such a tag")
    for said, pattern in ((one, "mcp:gti:*"), (two, "tag:prod")):
        at = int(said.split(":")[1])
        assert pattern in written(allow=["mcp:gti:*"], deny=["tag:prod"]).splitlines()[at - 1]


def test_people_read_how_much_a_profile_lets_through() -> None:
    assert profile_lines([COUNTED]) == ["profile p: 2 of 5 known tools"]
    assert profile_lines([{**COUNTED, "profile": ""}]) == ["agents without a profile: 2 of 5 known tools"]
    more = {**COUNTED, "left_out": 1, "unknown": ["hub"], "idle": ["mcp:git:lgo"]}
    assert profile_lines([more]) == [
        "profile p: 2 of 5 known tools (1 left out of its list by max_tools); not yet told: hub",
        "profile p: mcp:git:lgo covers nothing that is there",
    ]
