"""The verbs `enable` and `disable`, where no daemon runs."""

import json
from pathlib import Path

import pytest

from carpool_protocol.bootstrap import paths
from carpool_protocol.files.overrides_file import OverridesFile, read_overrides, write_overrides
from tests.behaviours import behaviour
from tests.client.cli.test_edit import written
from tests.kit.private_daemon import PrivateDaemon

FILE = """\
// mine
{
  "mcpServers": {
    "a": { "command": "x" }, // the first
    "b": {
      "command": "y",
      "disabled": true /* for now */
    }
  }
}
"""


@behaviour("switch:saved")
def test_a_file_comes_to_say_it_and_is_as_it_was_when_that_is_taken_back(house: PrivateDaemon) -> None:
    file = written(house, FILE)
    done = house.run("disable", "a", "--save")
    assert (done.returncode, done.stdout) == (0, f"a is disabled in {file}\n")
    assert file.read_text() == FILE.replace('{ "command": "x" }', '{ "command": "x", "disabled": true }')
    assert house.run("disable", "a", "--save").stdout == f"a is disabled in {file} already\n"
    done = house.run("enable", "a", "--save", "--json")
    [facts] = json.loads(done.stdout)
    assert facts == {
        "server": "a",
        "session": "",
        "enabled": True,
        "until": "",
        "disabled_in": [],
        "problems": [],
        "file": str(file),
        "changed": True,
        "running": False,
    }
    assert file.read_text() == FILE


@behaviour("switch:saved")
def test_several_are_written_together_or_none_of_them(house: PrivateDaemon) -> None:
    file = written(house, FILE)
    done = house.run("disable", "a", "bb", "--save")
    assert (done.returncode, file.read_text()) == (1, FILE)
    assert "did you mean 'b'?" in done.stderr
    done = house.run("disable", "a", "b", "a", "--save")
    assert (done.returncode, done.stdout) == (
        0,
        f"a is disabled in {file}\nb is disabled in {file} already\n",
    )


def test_what_was_switched_until_carpool_stops_is_over_once_the_file_says_it(house: PrivateDaemon) -> None:
    written(house, FILE)
    kept = paths.switches_file(str(house.directory))
    write_overrides(kept, OverridesFile({"a": False, "b": True}))
    said = house.run("check").stdout
    assert "a is disabled until carpool stops" in said
    assert "b is enabled until carpool stops" in said
    assert json.loads(house.run("check", "--json").stdout)["switched"] == {"a": "off", "b": "on"}
    assert house.run("enable", "a", "--save").returncode == 0
    assert read_overrides(kept) == OverridesFile({"b": True})
    assert house.run("down").returncode == 0
    assert not Path(kept).exists()


@behaviour("switch:saved")
def test_it_is_written_where_the_server_stands_and_other_programs_keys_are_used(house: PrivateDaemon) -> None:
    own = written(house, '{"include": ["more.json"]}')
    more = written(house, '{"mcpServers": {"a": {"command": "x"}}}', ".config/carpool/more.json")
    assert house.run("disable", "a", "--save").stdout == f"a is disabled in {more}\n"
    assert own.read_text() == '{"include": ["more.json"]}'
    code = written(house, '{"mcp": {"oc": {"type": "local", "command": ["x"]}}}', "opencode.json")
    assert house.run("disable", "oc", "--save", "--config", str(code)).returncode == 0
    assert json.loads(code.read_text())["mcp"]["oc"]["enabled"] is False


@behaviour("switch:saved", "trust:asked-again")
def test_a_trusted_projects_file_is_written_with_its_mode_and_trust_is_to_be_given_again(
    house: PrivateDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = house.base / "work"
    written(house, FILE)
    file = written(house, '{"mcpServers": {"a": {"command": "z"}}}', "work/.mcp.json")
    file.chmod(0o644)
    monkeypatch.chdir(work)
    own = house.base / ".config/carpool/carpool.json"
    assert house.run("trust", "--yes").returncode == 0
    done = house.run("disable", "a", "--save")
    assert (done.returncode, done.stdout) == (0, f"a is disabled in {file}\n")
    assert f"`carpool trust {work}`" in done.stderr
    assert (file.stat().st_mode & 0o777, own.read_text()) == (0o644, FILE)


@pytest.mark.parametrize(
    ("text", "words", "code", "why"),
    [
        (FILE, ["disable", "a"], 69, "carpool up"),
        (FILE, ["disable", "a", "--session", "s1"], 69, "carpool up"),
        (FILE, ["disable", "a", "--session", "s1", "--save"], 2, "say one of them"),
        (FILE, ["disable", "a", "--config", "x"], 2, "--save"),
        (FILE, ["disable", "aa", "--save"], 1, "did you mean 'a'?"),
        ("{", ["disable", "a", "--save"], 2, "is not closed"),
        (
            '{"mcpServers": {"a": {"command": "x", "disabled": "${OFF:-false}"}}}',
            ["disable", "a", "--save"],
            1,
            "is not plainly true or false",
        ),
    ],
)
def test_what_cannot_be_done_is_said_and_leaves_the_file_alone(
    house: PrivateDaemon, text: str, words: list[str], code: int, why: str
) -> None:
    file = written(house, text)
    done = house.run(*words)
    assert (done.returncode, why in done.stderr, file.read_text()) == (code, True, text), done.stderr
