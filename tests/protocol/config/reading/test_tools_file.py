"""What a `tools_file` may hold, and what is said of one that cannot be used."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from carpool_protocol.config.reading.load import ConfigFile, load_layer
from carpool_protocol.config.reading.tools_file import read_tools
from carpool_protocol.config.text.problems import ConfigProblem
from carpool_protocol.ids import ServerName
from tests.behaviours import behaviour

GIT = ServerName("git")
LOG: dict[str, Any] = {"name": "log", "description": "History.", "inputSchema": {"type": "object"}}


def read(value: Any, server: ServerName = GIT) -> list[dict[str, Any]]:
    found = read_tools(json.dumps(value), "tools.json", server)
    assert isinstance(found, tuple), found
    assert [offer.name for offer in found] == [json.loads(offer.definition)["name"] for offer in found]
    return [json.loads(offer.definition) for offer in found]


def refused(text: str) -> list[str]:
    found = read_tools(text, "tools.json", GIT)
    assert isinstance(found, list)
    assert all(isinstance(each, ConfigProblem) for each in found)
    return [each.render() for each in found]


def test_an_answer_to_tools_list_and_a_bare_list_are_the_same() -> None:
    assert read({"tools": [LOG]}) == read([LOG]) == [LOG]


def test_a_tool_is_kept_as_it_is_written_on_one_line() -> None:
    tool = {**LOG, "x-own": [1.0, {"a": None}], "annotations": {"readOnlyHint": True}}
    assert read([tool]) == [tool]
    found = read_tools(json.dumps([tool], indent=2), "tools.json", GIT)
    assert isinstance(found, tuple)
    assert found[0].definition.count(b"\n") == 0


def test_a_tool_without_a_schema_takes_any_object() -> None:
    assert read([{"name": "log"}]) == [{"name": "log", "inputSchema": {"type": "object"}}]


def test_what_agents_could_not_read_is_filled_in_or_left_out() -> None:
    bare = {"name": "log", "title": None, "inputSchema": {"properties": {"n": {"type": "integer"}}}}
    assert read([bare]) == [
        {"name": "log", "inputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}}}
    ]
    nothing = {"name": "log", "description": None, "inputSchema": None, "outputSchema": None}
    strange = {"name": "log", "title": 3, "annotations": "x", "outputSchema": 3}
    assert read([nothing]) == read([strange]) == [{"name": "log", "inputSchema": {"type": "object"}}]


def test_of_what_carpool_tools_prints_the_tools_of_this_server_count() -> None:
    printed = [
        {"name": f"{server}__log", "server": server, "tool": "log", "definition": LOG}
        for server in ("git", "time")
    ]
    assert read(printed) == [LOG]


def test_comments_are_allowed() -> None:
    assert isinstance(read_tools('// by hand\n{"tools": [{"name": "log"}],}', "tools.json", GIT), tuple)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "tools.json:1: the file is empty; write at least []"),
        ('{"tools": 3}', "must be a list of tools"),
        ('[\n"log"]', "tools.json:2: [0]: must be a tool"),
        ('{"tools": [\n{"name": "a"},\n{"name": ""}]}', "tools.json:3: tools[1]: has no name"),
        ('[{"name": "a", "inputSchema": []}]', "its inputSchema must be an object"),
        ('[{"name": "a", "inputSchema": {"type": "string"}}]', 'must have "type": "object"'),
        (
            '[{"name": "a", "input_schema": {}}]',
            "its input_schema is no member of a tool in MCP; call it inputSchema",
        ),
        (
            '[{"name": "a", "parameters": {}}]',
            "its parameters is no member of a tool in MCP; call it inputSchema",
        ),
        (
            '[\n{"server": "time", "definition": {"name": "a"}}]',
            "tools.json:1: lists tools of other servers only",
        ),
        ('[{"name": "a", "description": 3}]', "its description must be text"),
        ('[{"name": "a"},\n{"name": "a"}]', "tools.json:2: [1]: this tool is listed twice"),
        ("[null]", "must be a tool"),
        ('{"tools": [', "tools.json:1: tools: this [ is not closed"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_its_line(text: str, said: str) -> None:
    assert any(said in each for each in refused(text)), refused(text)


# --- the file within a configuration -----------------------------------------------------------------------


def layer_of(tmp_path: Path, tools: str | None, **more: Any) -> Any:
    config = tmp_path / "carpool.json"
    servers = {"git": {"command": "git", "tools_file": "lists/git.json", **more}, "time": {"command": "time"}}
    config.write_text(json.dumps({"mcpServers": servers}))
    if tools is not None:
        (tmp_path / "lists").mkdir(exist_ok=True)
        (tmp_path / "lists" / "git.json").write_text(tools)
    return load_layer(ConfigFile(str(config), asked_for=True), str(tmp_path))


def test_a_tools_file_is_relative_to_its_configuration_and_is_watched_and_hashed(tmp_path: Path) -> None:
    first = layer_of(tmp_path, json.dumps([LOG]))
    assert [offer.name for offer in first.loaded.config.servers[GIT].offline] == ["log"]
    assert first.files[-1] == str(tmp_path / "lists" / "git.json") in first.seen
    assert layer_of(tmp_path, json.dumps([LOG, {"name": "add"}])).digest != first.digest


@behaviour("tools-file:bad")
def test_a_bad_tools_file_is_the_problem_of_its_server_alone(tmp_path: Path) -> None:
    for tools, said in ((None, "there is no file"), ("[\n3]", "git.json:2: [0]: must be a tool")):
        config = layer_of(tmp_path, tools).loaded.config
        assert list(config.servers) == ["time"]
        assert said in config.unusable[GIT]
    os.unlink(tmp_path / "lists" / "git.json")
    os.mkfifo(tmp_path / "lists" / "git.json")
    assert "is not a regular file" in layer_of(tmp_path, None).loaded.config.unusable[GIT]


def test_the_tools_file_of_a_server_that_is_off_is_not_read(tmp_path: Path) -> None:
    assert list(layer_of(tmp_path, None, disabled=True).loaded.config.servers) == ["git", "time"]
