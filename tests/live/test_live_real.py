"""Servers and an agent that are not ours: mcp-server-time, mcp-server-git and the official SDK."""

import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import trio
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.types import CallToolResult, TextContent

from tests.kit.line_agent import LIMIT_S
from tests.kit.live import Daemon, Make, kit
from tests.live.conftest import shared_daemon

UTC = {"timezone": "UTC"}


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    servers = {
        "time": {"command": "mcp-server-time"},
        "git": {"command": "mcp-server-git"},
        "slow": kit("slow"),
        "changes": kit("list_changes"),
    }
    yield from shared_daemon(servers)


@asynccontextmanager
async def sdk(daemon: Daemon, *words: str, mode: str = "legacy") -> AsyncIterator[Client]:
    """The official client, with `carpool WORDS` as the server it starts."""
    command, *args = daemon.command(*(words or ("connect",)))
    with (daemon.base / "sdk.log").open("a") as stderr:
        started = stdio_client(
            StdioServerParameters(command=command, args=args, env=daemon.environ), errlog=stderr
        )
        async with Client(started, mode=mode) as client:
            yield client


def text(result: CallToolResult) -> str:
    [block] = result.content
    assert isinstance(block, TextContent)
    return block.text


def repository(daemon: Daemon) -> str:
    """A git repository with two commits."""
    path = daemon.base / "repository"
    who = ["-c", "user.name=live", "-c", "user.email=live@example.org"]
    for command in (
        ["init", "-q", str(path)],
        *(
            ["-C", str(path), *who, "commit", "-q", "--allow-empty", "-m", text]
            for text in ("first words", "second")
        ),
    ):
        subprocess.run(
            ["git", *command], check=True, capture_output=True, env={"PATH": os.environ["PATH"], "HOME": "/"}
        )
    return str(path)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_official_sdk_lists_and_calls_real_servers_through_the_shim(
    shared: Daemon, mode: str
) -> None:
    with trio.fail_after(LIMIT_S):
        path = repository(shared)
        async with sdk(shared, mode=mode) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert {
                "time__get_current_time",
                "time__convert_time",
                "git__git_log",
                "git__git_status",
            } <= names
            assert (
                json.loads(text(await client.call_tool("time__get_current_time", UTC)))["timezone"] == "UTC"
            )
            said = text(await client.call_tool("git__git_log", {"repo_path": path}))
            assert "first words" in said
            assert "second" in said
            refused = await client.call_tool("time__get_current_time", {"timezone": "Nowhere/Atall"})
            assert refused.is_error
            assert "carpool/error" not in (refused.meta or {}), "a server's own errors pass untouched"


async def test_six_official_clients_share_one_process_of_each_real_server(shared: Daemon) -> None:
    path = repository(shared)

    async def work(number: int) -> None:
        async with sdk(shared) as client:
            for _ in range(3):
                arguments = {
                    "source_timezone": "UTC",
                    "time": f"1{number}:30",
                    "target_timezone": "Asia/Tokyo",
                }
                converted = json.loads(text(await client.call_tool("time__convert_time", arguments)))
                assert f"1{number}:30" in converted["source"]["datetime"]
                assert "first words" in text(await client.call_tool("git__git_log", {"repo_path": path}))

    async def calls() -> dict[str, dict[int, int]]:
        """By server and instance: so many so far."""
        servers = (await shared.status())["servers"]
        return {
            name: {each["id"]: each["calls"] for each in servers[name]["instances"]}
            for name in ("time", "git")
        }

    with trio.fail_after(LIMIT_S):
        before = await calls()
        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(work, number)
        after = await calls()
        for name in ("time", "git"):
            # A test before this one may have left a process for agents of the other era: it gets none.
            gained = [n - before[name].get(each, 0) for each, n in after[name].items()]
            assert [n for n in gained if n] == [18], f"{name}: {before[name]} became {after[name]}"


async def test_progress_reaches_the_official_clients_callback(shared: Daemon) -> None:
    told: list[tuple[float, float | None, str | None]] = []

    async def tell(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))

    with trio.fail_after(LIMIT_S):
        async with sdk(shared) as client:
            arguments = {"times": 3, "delay_s": 0.05}
            assert (
                text(await client.call_tool("slow__progress", arguments, progress_callback=tell))
                == "progress done"
            )
        assert told == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]


async def test_a_cancelled_scope_of_the_official_client_cancels_at_the_server(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with sdk(shared) as client:
            with trio.move_on_after(0.3) as scope:
                await client.call_tool("slow__sleep", {"seconds": 600})
            assert scope.cancelled_caught
            await shared.until(
                lambda facts: not any(each["in_flight"] for each in facts["servers"]["slow"]["instances"]),
                "the call is no longer open",
            )
            assert text(await client.call_tool("slow__sleep", {"seconds": 0})) == "sleep done"


def time_servers(one: Daemon) -> list[str]:
    """Return the command lines of the servers that run, whatever the directory of the checkout is called."""
    return [
        line for line in one.running().values() if "bin/mcp-server-time" in line and "carpool run" not in line
    ]


async def test_run_shows_names_untouched_and_two_runs_share_one_process(daemon: Make) -> None:
    one = daemon({}, up=False)
    with trio.fail_after(LIMIT_S):
        words = ("run", "--", "mcp-server-time", "--local-timezone", "UTC")
        async with sdk(one, *words) as first, sdk(one, *words) as second:
            for client in (first, second):
                names = {tool.name for tool in (await client.list_tools()).tools}
                assert names == {"get_current_time", "convert_time"}
                assert json.loads(text(await client.call_tool("get_current_time", UTC)))["timezone"] == "UTC"
            assert len(time_servers(one)) == 1, one.running()
            async with sdk(one, "run", "--", "mcp-server-time", "--local-timezone", "Asia/Tokyo") as third:
                assert json.loads(text(await third.call_tool("get_current_time", UTC)))["timezone"] == "UTC"
                assert len(time_servers(one)) == 2, one.running()
        await one.until(lambda facts: not facts["totals"]["instances"], "what nobody runs any more has ended")
