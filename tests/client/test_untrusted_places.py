"""A repository whose `.env` names carpool's places, at every door: shim, launcher, verbs, Python client."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from carpool import launcher_lock
from carpool.api.client import Carpool
from carpool.errors import NotRunning
from tests.behaviours import behaviour
from tests.kit.private_daemon import PrivateDaemon

VARIABLES = ("CARPOOL_CONFIG", "CARPOOL_STATE_DIR", "CARPOOL_RUNTIME_DIR")
DOORS = (
    ["connect"],
    ["run", "--", "cat"],
    ["up", "--detach"],
    ["status"],
    ["tools"],
    ["check"],
    ["add", "a", "--", "cat"],
    ["trust", "."],
    ["down"],
)


def repository(house: PrivateDaemon) -> Path:
    """Its servers would leave a file."""
    root = house.base / "repo"
    (root / ".x").mkdir(parents=True)
    (root / ".git").mkdir()
    server = {"command": "touch", "args": [str(house.base / "owned")], "auto_connect": True}
    (root / ".x" / "c.json").write_text(json.dumps({"mcpServers": {"a": server}}))
    return root


def said(house: PrivateDaemon, words: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "carpool", *words],
        env=house.environ,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@behaviour("places:project")
@pytest.mark.parametrize("variable", VARIABLES)
@pytest.mark.parametrize("spelled", [".x/c.json", "{root}/.x/c.json"])
def test_no_door_follows_a_variable_into_a_repository(
    house: PrivateDaemon, variable: str, spelled: str
) -> None:
    root = repository(house)
    house.environ[variable] = spelled.format(root=root)
    for words in DOORS:
        if (variable, words) == ("CARPOOL_CONFIG", ["down"]):
            continue  # it reads no configuration
        done = said(house, words, root)
        assert done.returncode == 2, words
        assert f"carpool: {variable} names " in done.stderr, words
        assert "Traceback" not in done.stderr
    assert house.lives("broker") == []
    assert sorted(os.listdir(root / ".x")) == ["c.json"]
    assert not (house.base / "owned").exists()


@behaviour("places:project")
async def test_the_python_client_does_not_follow_one_either(house: PrivateDaemon) -> None:
    root = repository(house)
    environ = {**house.environ, "CARPOOL_CONFIG": str(root / ".x" / "c.json")}
    with pytest.raises(NotRunning, match="CARPOOL_CONFIG names"):
        async with Carpool(environ=environ):
            pass
    assert house.lives("broker") == []


@behaviour("places:project")
def test_what_is_typed_counts_and_a_place_counts_once_it_is_trusted(house: PrivateDaemon) -> None:
    root = repository(house)
    file = str(root / ".x" / "c.json")
    house.environ["CARPOOL_CONFIG"] = file
    assert said(house, ["check", "--config", ".x/c.json"], root).returncode == 0
    assert said(house, ["trust", "--place", file], root).returncode == 2, "nobody is there to be asked"
    assert said(house, ["check"], root).returncode == 2
    done = said(house, ["trust", "--place", "--yes", ".x"], root)
    assert (done.returncode, f"{root}/.x is trusted as a place" in done.stdout) == (0, True)
    assert "may run any command" in done.stdout
    assert said(house, ["check"], root).returncode == 0
    assert said(house, ["up", "--detach"], root).returncode == 0
    assert file in house.text("lives-broker")
    del house.environ["CARPOOL_CONFIG"]
    listed = json.loads(said(house, ["trust", "--list", "--json"], root).stdout)
    assert listed == [{"place": f"{root}/.x", "exists": True}]
    house.environ["CARPOOL_CONFIG"] = file
    assert said(house, ["trust", "--place", "--revoke", f"{root}/.x"], root).returncode == 0
    assert said(house, ["down"], root).returncode == 0, "the file is in force still"
    assert said(house, ["status"], root).returncode == 2
    del house.environ["CARPOOL_CONFIG"]


@behaviour("places:in-force")
async def test_a_carpool_that_was_started_with_the_typed_file_is_looked_at_and_ended_with_the_variable(
    house: PrivateDaemon,
) -> None:
    root = repository(house)
    file = root / ".x" / "c.json"
    assert said(house, ["up", "--detach", "--config", str(file)], root).returncode == 0
    other = root / ".x" / "d.json"
    other.write_text("{}")
    house.environ["CARPOOL_CONFIG"] = str(other)
    for words in DOORS[:-1]:
        assert said(house, words, root).returncode == 2, words
    (root / "link.json").symlink_to(file)
    for spelled in (".x/c.json", str(root / "link.json"), "link.json", str(file)):
        house.environ["CARPOOL_CONFIG"] = spelled
        assert said(house, ["status"], root).returncode == 0, spelled
    async with Carpool(environ=house.environ):
        pass
    done = said(house, ["connect"], root)
    assert done.returncode == 0, done.stderr
    for text in ("is down in", "was not running in"):
        done = said(house, ["down"], root)
        assert (done.returncode, text in done.stdout) == (0, True), "it reads no configuration"
    for words in DOORS[:-1]:
        assert said(house, words, root).returncode == 2, words


@behaviour("places:in-force")
def test_a_runtime_directory_of_the_repository_does_not_say_what_is_in_force(house: PrivateDaemon) -> None:
    root = repository(house)
    file = str(root / ".x" / "c.json")
    house.environ["CARPOOL_CONFIG"] = file
    (root / "rt").mkdir(mode=0o700)
    held = launcher_lock.take_lock(str(root / "rt"), file)
    assert held is not None
    house.environ["CARPOOL_RUNTIME_DIR"] = str(root / "rt")
    for words in DOORS:
        assert said(house, words, root).returncode == 2, words
    launcher_lock.release_lock(held)


@behaviour("places:project")
def test_general_variables_of_a_repository_reach_neither_carpool_nor_its_servers(
    house: PrivateDaemon,
) -> None:
    root = repository(house)
    (root / "carpool").mkdir()
    (root / "carpool" / "carpool.json").write_text((root / ".x" / "c.json").read_text())
    names = ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME")
    house.environ |= {**dict.fromkeys(names, str(root)), "XDG_CONFIG_DIRS": "/etc/xdg"}
    found = json.loads(said(house, ["check", "--json"], root).stdout)
    assert (found["file"], found["exists"]) == (str(house.base / ".config/carpool/carpool.json"), False)
    assert said(house, ["up", "--detach"], root).returncode == 0
    given = (Path("/proc") / str(house.launcher) / "environ").read_text()
    assert "XDG_CONFIG_DIRS=/etc/xdg" in given
    assert str(root) not in given


@behaviour("places:project")
def test_a_shim_opens_no_http_door_that_only_its_environment_names(house: PrivateDaemon) -> None:
    house.environ["CARPOOL_HTTP"] = "127.0.0.1:0"
    done = subprocess.run(
        [sys.executable, "-P", "-m", "carpool.launcher", "--detach", "--quiet"],
        env=house.environ,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert house.lives("broker")
    assert not house.lives("http")
