"""What `check` says of names: which are cut for which bound, and which prefixes are not used."""

import json
from typing import Any

from carpool.check.names import name_lines, shortened, unused_prefixes
from carpool_protocol.config.reading.parse import read_config
from carpool_protocol.config.schema.model import Config
from carpool_protocol.wire.tool_name_resolver import qualify
from tests.behaviours import behaviour

LONG = "add_pull_request_review_comment_to_pending_review"


def config(servers: dict[str, Any], **rest: Any) -> Config:
    found = read_config(json.dumps({"mcpServers": servers, **rest}), "f").config
    assert found is not None
    return found


@behaviour("names:length")
def test_names_that_are_cut_are_told_with_the_bound_that_cuts_them() -> None:
    tools = [{"server": "github", "tool": tool} for tool in (LONG, "x" * 80, "search")]
    here = config({"github": {"command": "x"}})
    assert [(each["tool"], each["length"]) for each in shortened(tools, here)] == [
        ("x" * 80, 64),
        (LONG, 50),
        ("x" * 80, 50),
    ]
    cut = qualify("github", LONG, most=50)
    both = f"{cut}, {qualify('github', 'x' * 80, most=50)}"
    assert name_lines(shortened(tools, here)) == [
        f"1 name is cut to 64 characters: {qualify('github', 'x' * 80)}",
        f"2 names are cut to 50 characters (`carpool connect --tool-name-length 50`): {both}",
    ]
    short = config({"github": {"command": "x", "tools_prefix": ""}}, tool_name_length=50)
    assert [each["tool"] for each in shortened(tools, short)] == ["x" * 80]
    assert name_lines(shortened(tools * 6, here))[1].endswith(" and 7 more")
    assert name_lines([]) == []


def test_a_prefix_that_is_the_name_of_another_server_is_told_with_its_line() -> None:
    prefixed = {"command": "x", "tools_prefix": "github"}
    (said,) = unused_prefixes(config({"github": {"command": "x", "disabled": True}, "mine": prefixed}))
    assert said.startswith("f:1: mcpServers.mine.tools_prefix: it reads as a name of another server")
    assert unused_prefixes(config({"mine": prefixed, "other": prefixed})) == []
