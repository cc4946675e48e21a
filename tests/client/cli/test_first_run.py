"""What carpool says to a user who has configured nothing, and how its help is grouped."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from carpool.cli import main
from carpool.cli.first_run import no_servers, nothing_configured, where_servers_are
from carpool.cli.status import status_page
from carpool.cluster.core.offers import NodeOffer
from carpool.cluster.node_facts import NodeFacts, write_facts
from tests.behaviours import behaviour
from tests.kit.private_daemon import PrivateDaemon
from tests.kit.waits import END_LIMIT_S

STEPS = ("`carpool setup`", "`carpool add NAME COMMAND`")


def config_of(house: PrivateDaemon) -> Path:
    """The user's own file of this home."""
    return Path(house.environ["XDG_CONFIG_HOME"], "carpool", "carpool.json")


@pytest.fixture
def empty(house: PrivateDaemon, tmp_path: Path) -> PrivateDaemon:
    """A home in which nothing is configured, and no variable names a file."""
    house.environ.pop("CARPOOL_CONFIG", None)
    house.environ["XDG_CONFIG_HOME"] = str(tmp_path / "config")
    return house


@behaviour("start:first-run")
@pytest.mark.parametrize("arguments", [(), ("help",), ("--help",), ("status",)], ids=" ".join)
def test_a_verb_names_the_first_steps_and_the_file_where_nothing_is_configured(
    empty: PrivateDaemon, arguments: tuple[str, ...]
) -> None:
    done = empty.run(*arguments)
    said = done.stdout + done.stderr
    assert [step for step in (*STEPS, str(config_of(empty))) if step not in said] == []
    assert not empty.launcher


@behaviour("config:broken-is-named")
@pytest.mark.parametrize("arguments", [("tools", "a__b"), ("call", "a__b", "--dry-run")], ids=" ".join)
def test_a_verb_that_finds_no_tool_names_the_file_that_cannot_be_read(
    empty: PrivateDaemon, arguments: tuple[str, ...]
) -> None:
    file = config_of(empty)
    file.parent.mkdir(parents=True)
    file.write_text('{\n"mcpServers": {"a": {"command": "x", "timout_s": 3}}}')
    done = empty.run(*arguments)
    assert f"{file}:2: mcpServers.a.timout_s" in done.stdout + done.stderr
    assert f"{file}:2: mcpServers.a.timout_s" in no_servers(empty.environ, str(empty.directory))


@behaviour("start:first-run")
def test_the_help_names_the_file_alone_once_a_server_is_configured(empty: PrivateDaemon) -> None:
    file = config_of(empty)
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"mcpServers": {"a": {"command": "x"}}}))
    said = empty.run("help").stdout
    assert f"Your servers are in {file}\n" in said
    assert "No server is configured" not in said
    assert nothing_configured(empty.environ) not in empty.run("status").stderr


def test_a_file_that_the_environment_names_is_not_read_for_the_help(tmp_path: Path) -> None:
    named = {"CARPOOL_CONFIG": str(tmp_path / "there-is-none.json"), "HOME": str(tmp_path)}
    assert where_servers_are(named) == f"Your servers are in {named['CARPOOL_CONFIG']}"


@behaviour("start:first-run")
def test_a_running_carpool_without_servers_names_the_first_steps() -> None:
    said = status_page({"broker": {}, "servers": {}})
    assert [step for step in STEPS if step not in said] == []


def test_a_broken_file_is_not_taken_for_one_without_servers() -> None:
    facts = {"broker": {}, "servers": {}, "config": {"file": "f", "problem": "f:1: not JSON"}}
    assert "`carpool setup`" not in status_page(facts)


@behaviour("doctor:cluster")
def test_a_node_that_uses_others_servers_alone_is_told_of_the_cluster_and_not_of_first_steps(
    tmp_path: Path,
) -> None:
    environ = {"CARPOOL_CONFIG": str(tmp_path / "carpool.json"), "HOME": str(tmp_path)}
    own = NodeOffer(node="beta", epoch="1", release="1")
    up = NodeFacts(pid=os.getpid(), own=own, is_up=True)
    alone = no_servers(environ, str(tmp_path))
    assert all(step in alone for step in STEPS)
    write_facts(str(tmp_path), replace(up, servers={"echo": ["alpha"]}))
    assert no_servers(environ, str(tmp_path)) == ""
    write_facts(str(tmp_path), up)
    assert "no other node of the cluster offers one" in no_servers(environ, str(tmp_path))
    for away in (replace(up, is_up=False), replace(up, pid=0, problem="refused")):
        write_facts(str(tmp_path), away)
        assert "the cluster is not reached" in no_servers(environ, str(tmp_path))
    write_facts(str(tmp_path), replace(up, pid=0, has_left=True))
    assert no_servers(environ, str(tmp_path)) == alone


@behaviour("doctor:cluster")
def test_a_node_whose_process_is_dead_is_still_one_of_a_cluster(tmp_path: Path) -> None:
    file = tmp_path / "carpool.json"
    file.write_text('{"cluster": {"url": "nats://127.0.0.1:1"}, "mcpServers": {}}')
    environ = {"CARPOOL_CONFIG": str(file), "HOME": str(tmp_path)}
    assert "the cluster is not reached" in no_servers(environ, str(tmp_path))


@behaviour("start:help")
def test_the_help_of_a_verb_is_reached_in_both_ways(house: PrivateDaemon) -> None:
    for verb in ("status", "up", "connect", "run", "version"):
        asked, by_option = house.run("help", verb), house.run(verb, "--help")
        assert (asked.returncode, asked.stdout) == (0, by_option.stdout), verb
    unknown = house.run("help", "relaod")
    assert (unknown.returncode, "did you mean `carpool reload`?" in unknown.stderr) == (2, True)


@behaviour("start:help")
def test_the_help_groups_all_verbs_by_purpose(house: PrivateDaemon) -> None:
    said = house.run("help").stdout
    at = [said.index(f"\n{title}:\n") for title in main.VERB_GROUPS]
    assert at == sorted(at)
    assert at[0] < said.index("\n  setup ") < at[1]
    assert sum(map(len, main.VERB_GROUPS.values())) == len(main.VERBS)


def test_the_version_is_told_with_its_place(house: PrivateDaemon) -> None:
    first, second = house.run("version").stdout.splitlines()
    assert first == house.run("--version").stdout.strip() == house.run("-V").stdout.strip()
    assert second.endswith(f", in {sys.prefix}")


@behaviour("start:first-run")
def test_connect_on_a_terminal_says_that_programs_start_it(house: PrivateDaemon) -> None:
    assert house.run("up", "--detach").returncode == 0  # else a start of its own would outlive the shim
    ours, its = pty.openpty()
    command = [sys.executable, "-m", "carpool", "connect"]
    agent = subprocess.Popen(
        command, env=house.environ, stdin=its, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        assert agent.stderr is not None
        said = agent.stderr.readline()
    finally:
        agent.kill()
        agent.communicate(timeout=END_LIMIT_S)
        os.close(ours)
        os.close(its)
    assert said.startswith("carpool: programs start `carpool connect` and speak MCP with it; Ctrl-C ends it")


@behaviour("start:first-run")
def test_a_verb_that_starts_carpool_says_so_to_a_person(empty: PrivateDaemon) -> None:
    ours, its = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "carpool", "tools"],
            env=empty.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=its,
            timeout=60,
            check=False,
        )
        said = os.read(ours, 65536).decode()
    finally:
        os.close(ours)
        os.close(its)
    assert done.returncode == 0
    assert said.startswith("carpool: started in the background; `carpool down` ends it\r\n")
    assert "started in the background" not in empty.run("tools").stderr
