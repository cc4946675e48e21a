"""Servers run where they belong: project files, trust, shapes, by real processes."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION
from carpool_protocol.carrier.attach_line import Attach
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, Json, LineAgent
from tests.kit.live import Daemon, Make, observer
from tests.live.conftest import shared_daemon

CHANGED = "notifications/tools/list_changed"


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    yield from shared_daemon({"mine": observer()})


def write(shared: Daemon, name: str, content: Any) -> Path:
    """A project's file; no test uses another one's directory."""
    path = shared.base / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def servers(**entries: Json) -> Json:
    return {"mcpServers": entries}


@asynccontextmanager
async def come(shared: Daemon, directory: str) -> AsyncIterator[LineAgent]:
    """An agent that works in a directory."""
    cwd = shared.base / directory
    cwd.mkdir(parents=True, exist_ok=True)
    attach = Attach(version=ATTACH_VERSION, carrier="client", pid=os.getpid(), cwd=str(cwd))
    async with shared.agent(attach=attach, greet=False) as agent:
        yield agent


@contextmanager
def held(file: Path) -> Iterator[None]:
    """Whoever opens this file waits: somebody has a lease on it (fcntl(2)) and does not let go."""
    words = [sys.executable, "-c", HOLDER, str(file)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.read(4) == b"held"
        yield
        holder.stdin.close()


HOLDER = """
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
fcntl.fcntl(os.open(sys.argv[1], os.O_RDWR), fcntl.F_SETLEASE, fcntl.F_WRLCK)
os.write(1, b"held")
sys.stdin.read()
"""


async def trust(shared: Daemon, directory: str) -> None:
    code, _, said = await shared.carpool("trust", "--yes", str(shared.base / directory))
    assert code == 0, said
    assert (await shared.reload())["ok"]


@behaviour("trust:asked", "trust:asked-again")
async def test_trust_is_asked_given_and_asked_again_after_a_change(shared: Daemon) -> None:
    file = write(shared, "asked/.mcp.json", servers(its=observer()))
    with trio.fail_after(LIMIT_S):
        async with come(shared, "asked") as agent:
            assert "1 server of this project's file, which awaits" in (await agent.greet())["instructions"]
            assert not [name for name in await agent.tools() if name.startswith("its__")]
            refused = json.dumps(await agent.ask("tools/call", {"name": "its__echo"}))
            assert "before the user trusts it" in refused
            facts = await shared.status()
            assert facts["servers"]["its"]["state"] == "untrusted"
            assert facts["servers"]["its"]["instances"] == []
            (place,) = facts["workspaces"]
            assert (place["trust"], place["servers"]) == ("untrusted", ["its"])
            since = len(agent.notices)
            await trust(shared, "asked")
            await agent.notice(CHANGED, since)
            await agent.until_listed(lambda names: "its__echo" in names, "the project's server is listed")
            seen = await agent.seen("its")
            assert seen["cwd"] == str(file.parent)
            since = len(agent.notices)
            write(shared, "asked/.mcp.json", servers(its=observer("--tool", "more")))
            await agent.notice(CHANGED, since)
            await agent.until_listed(lambda names: "its__echo" not in names, "it waits again")
            facts = await shared.until(
                lambda facts: not facts["servers"]["its"]["instances"], "what ran has ended"
            )
            assert facts["workspaces"][0]["trust"] == "changed"
            await trust(shared, "asked")
            await agent.until_listed(lambda names: "its__more" in names, "the changed one is listed")


@behaviour("workspaces:disk")
@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere no file can be made to keep its reader waiting"
)
async def test_a_file_that_is_waited_for_keeps_nobody_waiting_but_who_works_there(shared: Daemon) -> None:
    file = write(shared, "hung/.mcp.json", servers(its=observer()))
    await trust(shared, "hung")
    about = {"name": "t", "version": "1"}
    greeting = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": about}
    with trio.fail_after(LIMIT_S):
        async with come(shared, "elsewhere") as other, AsyncExitStack() as all_:
            await other.greet()
            with held(shared.directory / "state" / "trust.json"):
                agent = await all_.enter_async_context(come(shared, "hung"))
                asked = await agent.request("initialize", greeting)
                for _ in range(20):
                    await other.seen("mine")
                assert asked not in agent.answers, "others are answered while it waits"
                told = (await agent.answer(asked))["result"]["instructions"]
                assert "the servers of this project (its directory could not be read in time)" in told
                places = (await shared.status())["workspaces"]
                (row,) = [each for each in places if each["root"] == str(file.parent)]
                assert "could not be read within" in str(row["problems"])
            await agent.until_listed(
                lambda names: {"mine__echo", "its__echo"} <= {*names}, "it has been read"
            )


@behaviour("workspaces:override", "workspaces:found-upward", "trust:no-takeover")
async def test_a_project_found_from_a_deep_directory_overrides_for_its_own_sessions_only(
    shared: Daemon,
) -> None:
    write(shared, "over/.carpool/mcp.json", servers(mine=observer("--tool", "theirs")))
    with trio.fail_after(LIMIT_S):
        async with come(shared, "over/a/b/c") as inside, come(shared, "elsewhere") as outside:
            await inside.greet()
            await outside.greet()
            assert (await inside.seen("mine"))["pid"] == (await outside.seen("mine"))["pid"]
            await trust(shared, "over/a/b/c")
            await inside.until_listed(lambda names: "mine__theirs" in names, "the project's is listed")
            assert "mine__theirs" not in await outside.tools()
            ours, theirs = await outside.seen("mine"), await inside.seen("mine")
            assert ours["pid"] != theirs["pid"]
            assert (ours["cwd"], theirs["cwd"]) == (str(shared.base), str(shared.base / "over"))


@behaviour("workspaces:one-instance")
async def test_two_workspaces_share_what_launches_alike_and_nothing_else(shared: Daemon) -> None:
    same = observer(cwd=str(shared.base))
    for name in ("one", "two"):
        write(shared, f"{name}/.mcp.json", servers(same=same, own=observer("--tool", name)))
        await trust(shared, name)
    with trio.fail_after(LIMIT_S):
        async with come(shared, "one") as one, come(shared, "two") as two:
            await one.greet()
            await two.greet()
            assert (await one.seen("same"))["pid"] == (await two.seen("same"))["pid"]
            assert (await one.seen("own"))["pid"] != (await two.seen("own"))["pid"]
            assert "own__two" not in await one.tools()


@behaviour("workspaces:shadow", "config:shapes")
async def test_a_file_of_opencode_is_read_until_another_one_shadows_it(shared: Daemon) -> None:
    entry = observer()
    command = [entry["command"], *entry["args"]]
    opencode = write(shared, "code/opencode.json", {"mcp": {"oc": {"type": "local", "command": command}}})
    await trust(shared, "code")
    with trio.fail_after(LIMIT_S):
        async with come(shared, "code") as agent:
            await agent.greet()
            assert (await agent.seen("oc"))["cwd"] == str(opencode.parent)
            other = write(shared, "code/.mcp.json", servers(cc=observer()))
            await trust(shared, "code")
            await agent.until_listed(lambda names: "cc__echo" in names, "the other file counts")
            assert "oc__echo" not in await agent.tools()
            (place,) = (await shared.status())["workspaces"]
            assert place["warnings"] == [f"{opencode} is not read: {other} shadows it"]
            assert place["warnings"][0] in shared.log("broker")


def shapes() -> dict[str, tuple[str, Any]]:
    """A file of every shape, each with one server that we can run and one that we cannot."""
    entry = observer()
    run: Json = {"command": entry["command"], "args": entry["args"]}
    far: Json = {"type": "ws", "url": "ws://127.0.0.1:9/mcp"}
    line = [entry["command"], *entry["args"]]
    return {
        "claude": (".mcp.json", servers(got={"type": "stdio", **run, "timeout": 60000}, far=far)),
        "vscode": (".mcp.json", {"servers": {"got": {"type": "stdio", **run}, "far": far}, "inputs": []}),
        "list": (
            "mcp_servers.json",
            [{"name": "got", "transport": "stdio", "enabled": True, **run}, {"name": "far", **far}],
        ),
        "servers-list": (
            "mcp/servers.json",
            {"servers": [{"name": "got", "auto_connect": True, **run}, {"name": "far", **far}]},
        ),
        "dispatch": (".dispatch/mcp.json", servers(got=run, far=far)),
        "opencode": (
            "opencode.json",
            {"mcp": {"got": {"type": "local", "command": line, "environment": {"A": "1"}}, "far": far}},
        ),
    }


@behaviour("config:shapes")
@pytest.mark.parametrize("shape", list(shapes()))
async def test_every_shape_runs(shared: Daemon, shape: str) -> None:
    name, content = shapes()[shape]
    write(shared, f"shape-{shape}/{name}", content)
    await trust(shared, f"shape-{shape}")
    with trio.fail_after(LIMIT_S):
        async with come(shared, f"shape-{shape}") as agent:
            assert "far (misconfigured)" in (await agent.greet())["instructions"]
            assert await agent.text("got__echo", {"text": "hello"}) == "hello"
            facts = await shared.status()
            assert facts["servers"]["far"]["state"] == "misconfigured"
            assert "is a WebSocket, which carpool does not support" in facts["servers"]["far"]["last_error"]


@behaviour("config:included")
async def test_a_file_that_is_included_brings_and_takes_its_servers_live(shared: Daemon) -> None:
    write(shared, "incl/.carpool/mcp.json", {"include": ["servers.d/*.json"]})
    part = write(shared, "incl/.carpool/servers.d/one.json", servers(part=observer()))
    await trust(shared, "incl")
    with trio.fail_after(LIMIT_S):
        async with come(shared, "incl") as agent:
            await agent.greet()
            await agent.until_listed(lambda names: "part__echo" in names, "it is there")
            part.unlink()
            await agent.until_listed(lambda names: "part__echo" not in names, "it is gone")


@behaviour("config:edited")
async def test_a_server_is_added_and_removed_under_an_agent_that_is_there(shared: Daemon) -> None:
    command = observer()
    with trio.fail_after(LIMIT_S):
        async with come(shared, "nowhere") as agent:
            await agent.greet()
            words = ("add", "late", "--", command["command"], *command["args"])
            code, _, said = await shared.carpool(*words)
            assert code == 0, said
            await agent.until_listed(lambda names: "late__echo" in names, "it is there")
            code, _, said = await shared.carpool("remove", "late")
            assert code == 0, said
            await agent.until_listed(lambda names: "late__echo" not in names, "it is gone")


@behaviour("workspaces:one-file-once")
@pytest.mark.parametrize("way", ["a relative path", "link", "include"])
async def test_the_users_own_file_in_a_project_counts_once(daemon: Make, way: str) -> None:
    one = daemon(up=False)
    file = write(one, "shop/mcp_servers.json", servers(till=observer()))
    where, config = file.parent, "mcp_servers.json"
    if way == "link":
        (one.base / "mine.json").symlink_to(file)
        config = str(one.base / "mine.json")
    elif way == "include":
        config = str(write(one, "mine.json", {"include": ["shop/mcp_servers.json"]}))
    del one.environ["CARPOOL_CONFIG"]  # the verbs go by the file that the running one was given

    async def said(*words: str) -> str:
        done = await trio.run_process(
            one.command(*words), env=one.environ, cwd=where, capture_stdout=True, capture_stderr=True
        )
        assert not done.stderr, done.stderr
        return done.stdout.decode()

    with trio.fail_after(LIMIT_S):
        await said("up", "--detach", "--config", config)
        async with come(one, "shop") as agent:
            await agent.greet()
            names = await agent.tools()
            assert "till__echo" in names
            assert len(names) == len(set(names))
            facts = await one.status()
            assert facts["workspaces"] == []
            assert "is not trusted" not in await said("status")
        checked = json.loads(await said("check", "--json"))
        assert (checked["ok"], checked["project"], checked["warnings"]) == (True, None, [])
        told = json.loads(await said("trust", "--json"))
        assert told == {"workspace": str(where), "file": str(file), "trust": "own"}
        assert await said("trust", "--list") == "no project is trusted\n"


@behaviour("workspaces:one-file-once")
async def test_a_project_file_becomes_the_users_own_and_is_a_projects_again(daemon: Make) -> None:
    one = daemon()
    file = write(one, "shop/mcp_servers.json", servers(till=observer()))
    with trio.fail_after(LIMIT_S):
        async with come(one, "shop") as agent:
            await agent.greet()
            assert [each["trust"] for each in (await one.status())["workspaces"]] == ["untrusted"]
            one.configure({}, include=[str(file.relative_to(one.base))])
            assert (await one.reload())["ok"]
            await agent.until_listed(lambda names: "till__echo" in names, "it runs without trust")
            assert (await one.status())["workspaces"] == []
            one.configure({})
            assert (await one.reload())["ok"]
            await agent.until_listed(lambda names: "till__echo" not in names, "it waits for trust")
            assert [each["trust"] for each in (await one.status())["workspaces"]] == ["untrusted"]
