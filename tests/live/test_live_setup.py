"""`carpool setup` to the end: what a program runs afterwards reaches the server that all of them share."""

import json
import re
import signal
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import tomlkit
import trio

from carpool.launcher import processes
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, Json, LineAgent
from tests.kit.live import Daemon, Make, observer
from tests.kit.waits import until

CANARY = "canary-live-0123456789abcdef"


def put(path: Path, held: Any, mode: int) -> tuple[int, bytes]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(held, indent=2))
    path.chmod(mode)
    return mode, path.read_bytes()


def as_it_is(path: Path) -> tuple[int, bytes]:
    return stat.S_IMODE(path.stat().st_mode), path.read_bytes()


def at_home(one: Daemon) -> list[tuple[int, str]]:
    """Every process in this home: also those of a private carpool."""
    return list(processes.with_environment(lambda environ: f"HOME={one.base}" in environ))


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


@behaviour("setup:environment")
async def test_a_program_that_passes_few_variables_on_reaches_the_same_carpool_with_its_variables(
    daemon: Make,
) -> None:
    """Codex passes PATH, HOME and few more; the rest stands in the entry."""
    one: Daemon = daemon(up=False)
    del one.environ["CARPOOL_CONFIG"]
    one.environ |= {"XDG_CONFIG_HOME": f"{one.base}/elsewhere", "UNITS": "metric"}
    server = observer()
    codex = one.base / ".codex" / "config.toml"
    codex.parent.mkdir()
    table = {"command": server["command"], "args": server["args"], "env_vars": ["UNITS"]}
    codex.write_text(tomlkit.dumps({"model": "m", "mcp_servers": {"weather": table}}))
    before = codex.read_bytes()
    with trio.fail_after(LIMIT_S):
        assert (await one.carpool("setup", "--yes"))[0] == 0
        entry = tomllib.loads(codex.read_text())["mcp_servers"]["carpool"]
        assert (one.base / "elsewhere" / "carpool" / "carpool.json").exists()
        few = {name: one.environ[name] for name in ("HOME", "PATH", "PYTHONPATH", "SHELL")}
        passed = {name: one.environ[name] for name in entry["env_vars"]}
        given = [f"{name}={value}" for name, value in {**few, **entry["env"], **passed}.items()]
        command = ["/usr/bin/env", "-i", *given, entry["command"], *entry["args"]]
        async with one.shim(command=command, cwd=one.base) as agent:
            assert await agent.text("weather__environ", {"name": "UNITS"}) == "metric"
            assert (await one.status())["config"]["file"].startswith(f"{one.base}/elsewhere/")
        assert (await one.carpool("setup", "--undo"))[0] == 0
    assert codex.read_bytes() == before


@behaviour("setup:tried")
async def test_setup_tries_each_server_before_it_moves_and_leaves_what_does_not_work(daemon: Make) -> None:
    one: Daemon = daemon(up=False)
    del one.environ["CARPOOL_CONFIG"]
    asks = "import sys; sys.exit('ACME_TOKEN environment variable is required')"
    servers = {
        "good": observer(env={"WEATHER_API_KEY": CANARY}),
        "gone": {"command": "no-such-program"},
        "dies": {"command": sys.executable, "args": ["-c", f"import sys; sys.exit('no {CANARY}')"]},
        "asks": {"command": sys.executable, "args": ["-c", asks]},
        "unset": observer(env={"NAMED": "${NOT_SET_HERE}"}),
    }
    held = {"mcpServers": servers, "theme": "dark"}
    before = put(one.base / ".claude.json", held, 0o600)
    with trio.fail_after(LIMIT_S):
        code, out, said = await one.carpool("setup", "--yes")
        assert (code, said) == (0, ""), said
        there = json.loads((one.base / ".claude.json").read_text())["mcpServers"]
        assert there.keys() == {"carpool", "gone", "dies"}
        own = json.loads((one.base / ".config/carpool/carpool.json").read_text())
        assert own["mcpServers"].keys() == {"good", "asks", "unset"}
        lines = out.splitlines()
        assert any(re.fullmatch(r"ok  good: \d+ tools?, \d+\.\d s", line) for line in lines)
        assert any(
            line.startswith("gone stays in ") and "no-such-program was not found" in line for line in lines
        )
        assert any(line.startswith("dies stays in ") and "it does not work: " in line for line in lines)
        assert "it needs ACME_TOKEN, without which it does not start" in out
        assert "asks needs ACME_TOKEN, without which it does not start" in lines, "among the next steps"
        assert "NOT_SET_HERE is not set" in out
        assert CANARY not in out
        assert not at_home(one), "nothing is left running"
        assert (await one.carpool("setup", "--undo"))[0] == 0
        assert as_it_is(one.base / ".claude.json") == before
        code, out, said = await one.carpool("setup", "--yes", "--json")
        assert code == 0, said
        found = json.loads(out)
        started = {each["server"]: (each["ok"], each["problem"]) for each in found["started"]}
        assert started == {
            "good": (True, ""),
            "gone": (False, "program-missing"),
            "dies": (False, "server-failing"),
            "asks": (False, "server-failing"),
            "unset": (False, "variable-unset"),
        }
        assert {each["name"] for each in found["left"]} == {"gone", "dies"}
        again, out, _ = await one.carpool("setup", "--yes")
        assert (again, out.splitlines()[-1]) == (0, "nothing is changed")
        assert (await one.carpool("setup", "--undo"))[0] == 0
        assert (await one.carpool("setup", "--yes", "--no-try"))[0] == 0
        there = json.loads((one.base / ".claude.json").read_text())["mcpServers"]
        assert there.keys() == {"carpool"}
        assert (await one.carpool("setup", "--undo"))[0] == 0


@behaviour("setup:tried")
async def test_a_server_that_greets_nobody_stays_after_its_limit(daemon: Make) -> None:
    one: Daemon = daemon(up=False)
    del one.environ["CARPOOL_CONFIG"]
    silent = {"command": "sleep", "args": ["600"], "first_start_s": 1}
    put(one.base / ".cursor" / "mcp.json", {"mcpServers": {"silent": silent, "good": observer()}}, 0o644)
    with trio.fail_after(LIMIT_S):
        code, out, said = await one.carpool("setup", "--yes")
        assert code == 0, said
        there = json.loads((one.base / ".cursor" / "mcp.json").read_text())["mcpServers"]
        assert there.keys() == {"carpool", "silent"}
        assert "silent stays in " in out
        assert (await one.carpool("setup", "--undo"))[0] == 0


@behaviour("setup:tried")
async def test_a_server_that_waits_for_a_login_is_moved_without_waiting_for_its_limit(daemon: Make) -> None:
    one: Daemon = daemon(up=False)
    del one.environ["CARPOOL_CONFIG"]
    script = (
        "import sys, time; print('Please authorize: http://127.0.0.1/', file=sys.stderr); time.sleep(600)"
    )
    held = {"mcpServers": {"remote": {"command": sys.executable, "args": ["-uc", script]}}}
    put(one.base / ".claude.json", held, 0o600)
    with trio.fail_after(LIMIT_S):
        code, out, said = await one.carpool("setup", "--yes")
    assert code == 0, said
    assert "Please authorize" in out
    own = json.loads((one.base / ".config/carpool/carpool.json").read_text())
    assert own["mcpServers"].keys() == {"remote"}
    assert not at_home(one)
    assert (await one.carpool("setup", "--undo"))[0] == 0


@behaviour("setup:tried")
async def test_an_interrupted_trial_changes_nothing_and_leaves_nothing_running(daemon: Make) -> None:
    one: Daemon = daemon(up=False)
    del one.environ["CARPOOL_CONFIG"]
    mark = one.base / "began"
    script = f"import pathlib, time; pathlib.Path({str(mark)!r}).touch(); time.sleep(600)"
    held = {"mcpServers": {"silent": {"command": sys.executable, "args": ["-c", script]}}}
    before = put(one.base / ".claude.json", held, 0o600)
    with trio.fail_after(LIMIT_S):
        process = await trio.lowlevel.open_process(
            one.command("setup", "--yes"), env=one.environ, cwd=one.base, stdin=subprocess.DEVNULL
        )
        await until(mark.exists, "the server runs")
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 130
    assert as_it_is(one.base / ".claude.json") == before
    assert not (one.base / ".config").exists()
    assert not at_home(one)
