"""What each profile comes to, as operators are told."""

import json
from typing import Any

from carpool_broker.admin.profile_report import profile_page
from carpool_broker.core.configuration.profiles import profile_scope
from carpool_protocol.config.reading.parse import read_config
from carpool_protocol.config.schema.model import Config
from tests.behaviours import behaviour
from tests.broker.core.configuration.test_profiles import catalog
from tests.broker.core.test_profiles_in_core import SERVERS, ProfileRig


def configured(**profile: Any) -> Config:
    servers = {**SERVERS, "late": {"command": "z"}}
    found = read_config(json.dumps({"mcpServers": servers, "profiles": {"p": profile}}), "f").config
    assert found is not None
    return found


def told(**profile: Any) -> dict[str, Any]:
    config = configured(**profile)
    rig = ProfileRig()
    rig.configure({**SERVERS, "late": {"command": "z"}})
    (found,) = profile_page(rig.core, config)["profiles"]
    assert profile_scope(config, "p").profile in {"", "p"}
    return dict(found)


@behaviour("profiles:checked")
def test_the_profile_report_counts_permitted_and_known_entries() -> None:
    everything = told()
    assert (everything["tools"], everything["of_tools"]) == (5, 5)
    assert (everything["prompts"], everything["resources"], everything["unknown"]) == (3, 5, ["late"])
    some = told(allow=["mcp:git", "mcp:late"], deny=["mcp:*:push", "prompt:*:*"], max_tools=1)
    assert (some["servers"], some["tools"], some["left_out"]) == (["git", "late"], 2, 1)
    assert (some["prompts"], some["resources"]) == (0, 3)


@behaviour("profiles:checked", "profiles:max-tools")
def test_the_profile_report_counts_tools_left_out_for_all_sessions_without_a_profile_name() -> None:
    text = json.dumps({"mcpServers": SERVERS, "max_tools": 2})
    config = read_config(text, "f").config
    assert config is not None
    (found,) = profile_page(ProfileRig().core, config)["profiles"]
    assert (found["profile"], found["tools"], found["left_out"]) == ("", 5, 3)


@behaviour("profiles:checked")
def test_patterns_that_cover_nothing_are_named_once_everybody_they_are_about_has_told() -> None:
    found = told(
        allow=["mcp:git:lgo", "mcp:git:log", "mcp:late:x", "mcp:*:x", "mcp:nobody", "tag:none", "tag:code"],
        deny=["prompt:git:asc", "resource:git:file:///z", "*"],
    )
    assert found["idle"] == ["mcp:git:lgo", "mcp:nobody", "tag:none", "prompt:git:asc"]
    assert catalog("git", "log").tools[0].name == "log"
