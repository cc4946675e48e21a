"""The verb `uninstall`: what it undoes, ends and removes, in which order, and what it says that stays."""

import json
import re
import sys
from pathlib import Path

import pytest

from carpool.setup.state_files import STATE_DIRECTORIES, STATE_FILES
from tests.behaviours import behaviour
from tests.client.cli.test_service import systemd
from tests.kit.private_daemon import PrivateDaemon

PROGRAM = f"stays     the program: {sys.executable} -m pip uninstall carpool"


@pytest.fixture
def moved(house: PrivateDaemon) -> Path:
    """The file of a program whose server was moved to carpool."""
    file = house.base / ".cursor" / "mcp.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"mcpServers": {"a": {"command": "/bin/cat"}}}))
    assert house.run("setup", "--yes", "--no-try").returncode == 0
    assert "connect" in file.read_text()
    return file


def tree(house: PrivateDaemon) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in house.base.rglob("*") if path.is_file()}


@behaviour("start:uninstall")
def test_a_dry_run_shows_each_step_and_changes_nothing(house: PrivateDaemon, moved: Path) -> None:
    before = tree(house)
    done = house.run("uninstall", "--dry-run", "--purge")
    assert (done.returncode, tree(house)) == (0, before)
    config = house.base / ".config/carpool/carpool.json"
    assert f"removed   {config}\n" in done.stdout
    assert f"{moved} goes back to what it was\n" in done.stdout
    assert done.stdout.endswith("nothing is changed: it was a dry run\n")
    assert PROGRAM in done.stdout


@behaviour("start:uninstall")
def test_programs_get_their_servers_back_and_carpool_ends_with_its_service(
    house: PrivateDaemon, moved: Path
) -> None:
    systemd(house)
    assert house.run("service", "install").returncode == 0
    assert house.run("up", "--detach").returncode == 0
    done = house.run("uninstall", "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(moved.read_text()) == {"mcpServers": {"a": {"command": "/bin/cat"}}}
    assert not (house.base / ".config/systemd/user/carpool.service").exists()
    assert f"carpool was not running in {house.directory}" in house.run("down").stdout
    assert done.stdout.endswith(f"{PROGRAM}\n")
    state = house.directory / "state"
    assert f"stays     {state}: " in done.stdout
    again = house.run("uninstall", "--yes")
    assert again.stdout.startswith("There is nothing to undo, to end or to remove.\n")


@behaviour("start:uninstall")
def test_a_purge_removes_configuration_and_state_and_nothing_of_others(
    house: PrivateDaemon, moved: Path
) -> None:
    assert moved.exists()
    config, state = house.base / ".config/carpool", house.directory / "state"
    own = json.loads((config / "carpool.json").read_text())
    own["mcpServers"]["mine"] = {"command": "/bin/cat"}
    (config / "carpool.json").write_text(json.dumps(own))
    (state / "of-somebody-else").write_text("x")
    assert house.run("up", "--detach").returncode == 0
    done = house.run("uninstall", "--purge", "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert not config.exists()
    assert [each.name for each in state.iterdir()] == ["of-somebody-else"]
    assert f"stays     {state}: of-somebody-else\n" in done.stdout


@behaviour("start:uninstall")
def test_a_purge_removes_the_password_of_the_nats_server_and_the_log_of_the_node(
    house: PrivateDaemon,
) -> None:
    done = house.run("up", "--detach", "--cluster", "new")
    assert done.returncode == 0, done.stderr
    state = house.directory / "state"
    assert [each.name for each in state.rglob("*") if each.name in {"address", "node.log"}] != []
    done = house.run("uninstall", "--purge", "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert [*state.glob("*")] == []


@behaviour("start:uninstall")
@pytest.mark.parametrize("mode", [0o644, 0o600])
def test_a_purge_leaves_files_of_others_in_directories_of_carpools_names(
    house: PrivateDaemon, tmp_path: Path, mode: int
) -> None:
    state = tmp_path / "work"
    (state / "log" / "of-mine").mkdir(parents=True)
    (state / "log").chmod(0o700)
    (state / "setup").mkdir()
    mine = [state / "log" / "of-mine" / "broker.log", state / "setup" / "install.sh"]
    for each in mine:
        each.write_text("x")
        each.chmod(mode)
    (state / "catalogs").symlink_to(state / "setup")
    house.environ["CARPOOL_STATE_DIR"] = str(state)
    assert house.run("up", "--detach").returncode == 0
    done = house.run("uninstall", "--purge", "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(each for each in state.rglob("*") if not each.is_dir()) == sorted(mine)
    for each in mine:
        assert f"stays     {each}: carpool has not made it\n" in done.stdout


@behaviour("start:uninstall")
def test_a_file_that_a_variable_names_is_not_removed(house: PrivateDaemon, tmp_path: Path) -> None:
    file = tmp_path / "carpool.json"
    file.write_text("{}")
    house.environ["CARPOOL_CONFIG"] = str(file)
    done = house.run("uninstall", "--purge", "--yes")
    assert (done.returncode, file.exists()) == (0, True)
    assert f"stays     {file}: your configuration\n" in done.stdout


@behaviour("start:uninstall")
def test_nothing_else_is_removed_while_a_program_still_leads_to_carpool(
    house: PrivateDaemon, moved: Path
) -> None:
    edited = json.loads(moved.read_text())
    edited["mcpServers"]["carpool"]["args"].append("--profile=other")
    moved.write_text(json.dumps(edited))
    assert house.run("up", "--detach").returncode == 0
    done = house.run("uninstall", "--purge", "--yes")
    assert done.returncode == 1
    assert "nothing else is removed while files of programs still lead to carpool" in done.stderr
    assert (house.base / ".config/carpool/carpool.json").exists()
    assert "carpool is down" in house.run("down").stdout


@behaviour("start:uninstall")
def test_a_person_is_asked_and_nobody_is_a_usage_error(house: PrivateDaemon, moved: Path) -> None:
    before = moved.read_bytes()
    assert house.run("uninstall").returncode == 2
    code, said = house.answered("n", "uninstall")
    assert (code, "Do this? [y/N]" in said, moved.read_bytes()) == (1, True, before)
    code, said = house.answered("y", "uninstall")
    assert (code, json.loads(moved.read_text())["mcpServers"].keys()) == (0, {"a"})


def test_a_purge_knows_each_name_of_the_page_of_files() -> None:
    page = (Path(__file__).parents[3] / "docs" / "files.md").read_text()
    table = page.partition("## In the state directory")[2].partition("\n## ")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    names = {name.partition("/")[0] for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert names == {*STATE_FILES, *STATE_DIRECTORIES}
