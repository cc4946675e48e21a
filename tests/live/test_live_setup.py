"""`carpool setup` to the end: what a program runs afterwards reaches the server that all of them share."""

import json
import stat
from pathlib import Path
from typing import Any

import trio

from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, Json, LineAgent
from tests.kit.live import Daemon, Make, observer

CANARY = "canary-live-0123456789abcdef"


def put(path: Path, held: Any, mode: int) -> tuple[int, bytes]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(held, indent=2))
    path.chmod(mode)
    return mode, path.read_bytes()


def as_it_is(path: Path) -> tuple[int, bytes]:
    return stat.S_IMODE(path.stat().st_mode), path.read_bytes()


async def seen(agent: LineAgent, server: str) -> Json:
    found: Json = json.loads(await agent.text(f"{server}__seen", {}))
    return found


@behaviour("setup:works", "setup:profiles", "setup:undone", "setup:secrets")
async def test_two_programs_share_one_server_after_setup_and_have_their_own_again_after_undo(
    daemon: Make,
) -> None:
    one: Daemon = daemon(up=False)
    del one.environ["CARPOOL_CONFIG"]
    server = observer(env={"WEATHER_API_KEY": CANARY, "UNITS": "metric"})
    claude, cursor = one.base / ".claude.json", one.base / ".cursor" / "mcp.json"
    project = one.base / "shop"
    theirs = project / ".mcp.json"
    before = {
        claude: put(claude, {"theme": "dark", "mcpServers": {"weather": {"type": "stdio", **server}}}, 0o600),
        cursor: put(cursor, {"mcpServers": {"weather": server}}, 0o664),
        theirs: put(theirs, {"mcpServers": {"shop": observer()}}, 0o644),
    }
    one.environ["PATH"] = "/usr/bin:/bin"  # no carpool in it: the entry names the whole path
    with trio.fail_after(LIMIT_S):
        done = await trio.run_process(
            one.command("setup", "--yes", "--trust"),
            env=one.environ,
            cwd=project,
            stdin=b"",
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert CANARY.encode() not in done.stdout
        entries = [json.loads(path.read_text())["mcpServers"] for path in before]
        assert [list(each) for each in entries] == [["carpool"]] * 3
        starts = [[entry["carpool"]["command"], *entry["carpool"]["args"]] for entry in entries]
        async with (
            one.shim(command=starts[0], cwd=project) as coder,
            one.shim(command=starts[1], cwd=one.base) as editor,
        ):
            both = [await seen(agent, "weather") for agent in (coder, editor)]
            assert both[0]["pid"] == both[1]["pid"]
            assert await coder.text("weather__environ", {"name": "WEATHER_API_KEY"}) == CANARY
            assert await editor.text("weather__environ", {"name": "UNITS"}) == "metric"
            # The project's server is there for who works in the project, and runs there.
            assert (await seen(coder, "shop"))["cwd"] == str(project)
            listed = await editor.ask("tools/list")
            assert not [each for each in listed["result"]["tools"] if each["name"].startswith("shop")]
            # Cursor had no server of the project, and gets none there either.
            async with one.shim(command=starts[1], cwd=project) as beside:
                names = [each["name"] for each in (await beside.ask("tools/list"))["result"]["tools"]]
                assert "weather__seen" in names
                assert not [each for each in names if each.startswith("shop")]
            # The file of the project says how to reach carpool; to carpool that is no server.
            assert not [each for each in (await one.status())["servers"] if each == "carpool"]
        assert CANARY not in one.log("broker") + one.log("supervisor-sup1")
        code, said, _ = await one.carpool("setup", "--undo")
        assert code == 0, said
    assert {path: as_it_is(path) for path in before} == before
    assert not (one.base / ".config").exists()
    assert not (project / ".carpool").exists()


@behaviour("setup:tried")
async def test_setup_starts_each_server_once_and_says_which_work(daemon: Make) -> None:
    one: Daemon = daemon(up=False)
    del one.environ["CARPOOL_CONFIG"]
    servers = {"good": observer(), "gone": {"command": "no-such-program"}}
    put(one.base / ".claude.json", {"mcpServers": servers}, 0o600)
    with trio.fail_after(LIMIT_S):
        code, out, said = await one.carpool("setup", "--yes", "--try")
        assert code == 0, said
        table = [line.split() for line in out[out.index("SERVER") :].splitlines()]
        assert table == [["SERVER", "WORKS", "PROBLEM"], ["gone", "no", "program-missing"], ["good", "yes"]]
        assert "Install no-such-program, or write the absolute path" in said
        assert (await one.carpool("setup", "--undo"))[0] == 0
        code, out, said = await one.carpool("setup", "--yes", "--try", "--json")
        assert code == 0, said
        started = {each["server"]: each["problem"] for each in json.loads(out)["started"]}
        assert started == {"good": "", "gone": "program-missing"}
        assert (await one.carpool("setup", "--undo"))[0] == 0
