"""How the file of a server comes to say that it is disabled, in every shape."""

import json
from typing import Any

import pytest

from carpool_protocol.config.edit.edit import CannotEditError
from carpool_protocol.config.edit.enable import set_enabled
from carpool_protocol.config.reading.parse import read_config
from carpool_protocol.ids import ServerName
from tests.behaviours import behaviour

OURS = """\
// mine
{
  "mcpServers": {
    // the first
    "a": { "command": "x" }, // of two
    "b": {
      "command": "y", /* why not */
      "args": ["disabled"]
    } // the last
  }
}
"""
AT_A, AT_B = ("mcpServers", "a"), ("mcpServers", "b")


@behaviour("switch:saved")
def test_in_our_file_one_member_comes_and_goes_and_every_other_byte_stays() -> None:
    off = set_enabled(OURS, "/c.json", AT_A, on=False)
    assert off == OURS.replace('{ "command": "x" }', '{ "command": "x", "disabled": true }')
    both = set_enabled(off, "/c.json", AT_B, on=False)
    assert both == off.replace('["disabled"]\n', '["disabled"],\n      "disabled": true\n')
    assert set_enabled(both, "/c.json", AT_B, on=True) == off
    assert set_enabled(off, "/c.json", AT_A, on=True) == OURS


LISTED = """[
  {"name": "other", "command": "o"},
  // mine
  {"name": "a", "command": "x", "args": ["1"]} // last
]
"""


@behaviour("switch:saved")
@pytest.mark.parametrize("within", ["%s", '{"servers": %s, "x": 1}'], ids=["list", "servers"])
def test_a_server_in_a_list_is_found_by_its_name_and_every_other_byte_stays(within: str) -> None:
    text = within % LISTED
    path = ("servers", 0) if within != "%s" else (0,)  # another edit has moved it since it was read
    off = set_enabled(text, "/p/mcp/servers.json", path, on=False, name="a")
    assert off == text.replace('["1"]}', '["1"], "disabled": true}')
    assert set_enabled(off, "/p/mcp/servers.json", path, on=True, name="a") == text
    with pytest.raises(CannotEditError):
        set_enabled(text, "/p/mcp/servers.json", path, on=False, name="gone")


@pytest.mark.parametrize("way", [True, False])
def test_what_is_so_already_is_left_alone(way: bool) -> None:
    text = '{"mcpServers": {"a": {"command": "x", "disabled": true}}}' if not way else OURS
    assert set_enabled(text, "/c.json", AT_A, on=way) == text


SHAPES: dict[str, tuple[str, Any, tuple[str, ...], Any]] = {
    "claude": (".mcp.json", {"mcpServers": {"a": {"command": "x"}}}, AT_A, {"disabled": True}),
    "vscode": (
        ".vscode/mcp.json",
        {"servers": {"a": {"command": "x"}}},
        ("servers", "a"),
        {"disabled": True},
    ),
    "opencode": ("opencode.json", {"mcp": {"a": {"command": ["x"]}}}, ("mcp", "a"), {"enabled": False}),
    "its own key": (
        ".mcp.json",
        {"mcpServers": {"a": {"command": "x", "enabled": True}}},
        AT_A,
        {"enabled": False},
    ),
}


@behaviour("switch:saved")
@pytest.mark.parametrize("shape", list(SHAPES))
def test_another_programs_file_is_told_in_its_own_key(shape: str) -> None:
    file, held, path, expected = SHAPES[shape]
    text = json.dumps(held, indent=1)
    off = set_enabled(text, file, path, on=False)
    entry = json.loads(off)
    for key in path:
        entry = entry[key]
    assert entry.items() >= expected.items()
    for each, disabled in ((off, True), (set_enabled(off, file, path, on=True), False)):
        config = read_config(each, file).config
        assert config is not None
        assert config.servers[ServerName("a")].disabled is disabled


@behaviour("switch:saved")
def test_an_entry_that_says_nothing_else_goes_with_the_word_it_was_there_for() -> None:
    text = """{
  "mcpServers": { "a": { "command": "x" } },
  "workspaces": { "w": { "mcpServers": { "a": { "disabled": true } } } }
}"""
    on = set_enabled(text, "/c.json", ("workspaces", "w", "mcpServers", "a"), on=True)
    config = read_config(on, "/c.json").config
    assert config is not None
    assert (list(config.servers), config.workspaces["w"].servers) == ([ServerName("a")], {})


@pytest.mark.parametrize(
    "text",
    [
        '{"mcpServers": {"a": {"command": "x", "disabled": "${OFF}"}}}',
        '{"mcpServers": {"b": {"command": "x"}}}',
        '{"mcpServers": [{"name": "a"}]}',
        "[]",
        "{",
    ],
)
@pytest.mark.parametrize("way", [True, False])
def test_what_only_a_person_can_decide_is_left_to_one(text: str, way: bool) -> None:
    with pytest.raises(CannotEditError):
        set_enabled(text, "/c.json", AT_A, on=way)
