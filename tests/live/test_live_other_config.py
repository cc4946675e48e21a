"""Programs that start carpool pass on different variables of the user's: other configurations are told."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from carpool.api.client import Carpool
from tests.behaviours import behaviour
from tests.kit.live import Daemon, Make, kit


def configuration(one: Daemon, name: str, servers: Mapping[str, Any], **settings: Any) -> Path:
    """Write a configuration into an XDG directory of this name."""
    file = one.base / name / "carpool" / "carpool.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"mcpServers": dict(servers), **settings}))
    return file


def in_xdg(one: Daemon, name: str) -> dict[str, str]:
    """The environment of a program that passes on this XDG_CONFIG_HOME."""
    return {**one.environ, "XDG_CONFIG_HOME": str(one.base / name)}


@pytest.fixture
def one(daemon: Make) -> Daemon:
    """A carpool that is not up, whose configuration no variable names."""
    made = daemon(up=False)
    del made.environ["CARPOOL_CONFIG"]
    return made


def problem_ids(one: Daemon) -> tuple[int, dict[str, str]]:
    done = one.run("doctor", "--json")
    return done.returncode, {each["id"]: each["text"] for each in json.loads(done.stdout)["problems"]}


@behaviour("config:other")
async def test_a_carpool_that_another_program_started_with_no_servers_is_told_with_both_files(
    one: Daemon,
) -> None:
    mine = configuration(one, "mine", {"echo": kit("echo")}, profiles={"ann": {"allow": ["mcp:echo"]}})
    async with one.shim(greet=False) as stripped:  # starts carpool: Codex passes on few variables
        assert "no MCP server yet" in (await stripped.greet())["instructions"]
    one.environ = in_xdg(one, "mine")
    usual = one.base / ".config" / "carpool" / "carpool.json"
    _, said, _ = await one.carpool("status")
    flat = " ".join(said.split())
    assert f"carpool runs with the configuration {usual}, and not with {mine}" in flat
    assert "`carpool restart --all` here takes it" in flat
    assert f"no server is configured in {usual}" in flat
    assert (await one.carpool("status", "--json"))[1].count(str(mine)) == 1
    code, problems = problem_ids(one)
    assert code == 1
    assert str(mine) in problems["other-configuration"]
    for words in (["check"], ["add", "time", "--", "cat"], ["remove", "time"], ["token", "list"]):
        _, _, trouble = await one.carpool(*words)
        assert f"runs with the configuration {usual}, and not with {mine}" in trouble, words
    async with one.shim(greet=False) as agent:
        said = (await agent.greet())["instructions"]
        assert f"runs with the configuration {usual}, and not with {mine}" in said
        assert "no MCP server yet" not in said
    assert f"and not with {mine}" in (one.base / "shims.log").read_text()
    code, _, trouble = await one.carpool("restart", "--all")
    assert code == 0, trouble
    async with one.shim(greet=False) as agent:
        assert "runs with the configuration" not in (await agent.greet()).get("instructions", "")
        assert "echo__echo" in await agent.tools()
    assert "other-configuration" not in problem_ids(one)[1]
    await one.carpool("down")


@behaviour("config:other")
async def test_an_agent_that_expects_another_file_is_named_to_the_terminal_of_the_running_one(
    one: Daemon,
) -> None:
    mine = configuration(one, "mine", {"echo": kit("echo")})
    other = configuration(one, "other", {"time": kit("echo")}, profiles={"ann": {"allow": ["mcp:time"]}})
    one.environ = in_xdg(one, "mine")
    code, _, trouble = await one.carpool("up", "--detach")
    assert code == 0, trouble
    async with one.shim(environ=in_xdg(one, "other")) as agent:
        assert "echo__echo" in await agent.tools()
        _, said, _ = await one.carpool("status")
        (session,) = [each for each in (await one.status())["sessions"] if each["agent"] == "live"]
        expects = f"live ({session['id']}) expects the configuration {other}"
        assert expects in " ".join(said.split())
        code, problems = problem_ids(one)
        assert (code, str(mine) in problems["other-configuration"]) == (1, True)
    async with Carpool(environ=in_xdg(one, "other")) as client:
        assert f"and not with {other}" in client.instructions
    async with one.shim("connect", "--profile", "ann", greet=False, environ=in_xdg(one, "other")) as agent:
        error = (await agent.ask("initialize", {}))["error"]
        assert "the configuration has no profile 'ann'" in error["message"]
        assert f"and not with {other}" in error["message"]
    await one.carpool("down")


@behaviour("config:other")
async def test_nobody_is_told_who_misses_nothing_and_a_file_that_was_named_may_be_meant(one: Daemon) -> None:
    typed = configuration(one, "typed", {"echo": kit("echo")})
    one.environ["XDG_CONFIG_HOME"] = str(one.base / "empty")
    assert one.run("up", "--detach", "--config", str(typed)).returncode == 0
    async with one.shim(greet=False) as agent:
        assert "runs with the configuration" not in (await agent.greet()).get("instructions", "")
        assert "runs with the configuration" not in (await one.carpool("status"))[1]
        assert problem_ids(one)[0] == 0
    (one.base / "link").symlink_to(one.base / "typed")
    one.environ = in_xdg(one, "link")
    assert "runs with the configuration" not in (await one.carpool("status"))[1]
    configuration(one, "mine", {})
    one.environ = in_xdg(one, "mine")
    code, problems = problem_ids(one)
    assert (code, "other-configuration" in problems) == (0, True)
    assert "`carpool down` and then `carpool up` here" in " ".join((await one.carpool("status"))[1].split())
    await one.carpool("down")


@behaviour("config:second-carpool")
async def test_a_second_carpool_with_the_same_configuration_is_told_from_both_sides(one: Daemon) -> None:
    """The usual runtime directory is one below the home of this test, so no carpool of the machine counts."""
    del one.environ["CARPOOL_STATE_DIR"]
    usual = one.base / "run" / "carpool"
    usual.parent.mkdir(mode=0o700)
    own = {**one.environ, "XDG_RUNTIME_DIR": str(usual.parent), "CARPOOL_RUNTIME_DIR": str(one.directory)}
    stripped = {name: value for name, value in own.items() if name != "CARPOOL_RUNTIME_DIR"}
    configuration(one, ".config", {"echo": kit("echo")})
    one.environ = own
    assert one.run("up", "--detach").returncode == 0
    try:
        async with one.shim(
            environ=None, command=["env", "-u", "CARPOOL_RUNTIME_DIR", *one.command("connect")]
        ):
            told = f"another carpool with this configuration runs in {one.directory}"
            assert told in (one.base / "shims.log").read_text()
            _, said, _ = await one.carpool("status")
            assert f"another carpool with this configuration runs in {usual}" in " ".join(said.split())
            code, problems = problem_ids(one)
            assert (code, str(usual) in problems["second-carpool"]) == (1, True)
            one.environ = stripped
            _, said, _ = await one.carpool("status")
            assert told in " ".join(said.split())
        one.environ = own
        await one.carpool("down")
        code, _, trouble = await one.carpool("status")
        assert (code, f"runs in {usual}" in trouble) == (69, True)
    finally:
        one.environ = stripped
        await one.carpool("down")
        one.environ = own
        await one.carpool("down")
    assert "second-carpool" not in problem_ids(one)[1]
