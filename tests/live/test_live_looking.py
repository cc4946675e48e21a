"""Verbs that read start no server and end none, and servers of projects outlive their sessions."""

import json
import shlex
import sys
from pathlib import Path

import trio

from tests.behaviours import behaviour
from tests.kit.line_agent import Json
from tests.kit.live import Daemon, Make, kit, observer
from tests.kit.waits import until

READING = (
    ("status",),
    ("ps",),
    ("calls",),
    ("why", "mine"),
    ("stats",),
    ("doctor",),
    ("check",),
    ("enable", "--list"),
    ("logs",),
)


def counted(starts: Path, server: Json, **more: object) -> Json:
    """The same server, which writes a line to this file whenever it starts."""
    words = " ".join(map(shlex.quote, [server["command"], *server["args"]]))
    script = f"echo start >> {shlex.quote(str(starts))}; exec {words}"
    rest = {key: value for key, value in server.items() if key not in ("command", "args")}
    return {"command": "/bin/sh", "args": ["-c", script], **rest, **more}


def count(starts: Path) -> int:
    """The starts so far."""
    return len(starts.read_text().splitlines()) if starts.exists() else 0


async def verb(one: Daemon, directory: Path, *words: str) -> tuple[int, str, str]:
    """`carpool WORDS` in a directory."""
    script = 'cd "$0" && exec "$@"'
    done = await trio.run_process(
        ["/bin/sh", "-c", script, str(directory), sys.executable, "-m", "carpool", *words],
        env=one.environ,
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@behaviour("looking:starts-nothing")
async def test_verbs_that_read_start_no_server_and_end_none(daemon: Make) -> None:
    one = daemon({}, up=False)
    project = one.base / "project"
    project.mkdir()
    own, its, kept = one.base / "own", one.base / "its", one.base / "kept"
    one.configure(
        {"mine": counted(own, observer(env={"T_KEY": "${T_KEY}"}), auto_connect=True)},
    )
    (project / ".mcp.json").write_text(
        json.dumps(
            {
                "mcpServers": {
                    "its": counted(its, observer(), auto_connect=True),
                    "kept": counted(kept, observer(), pool={"min": 1}),
                }
            }
        )
    )
    one.environ["T_KEY"] = "of-the-operator"
    one.up()
    await one.until(lambda facts: facts["servers"]["mine"]["state"] == "serving", "it is connected")
    (running,) = await one.pids("mine")
    code, _, trouble = await verb(one, project, "trust", "--yes")
    assert code == 0, trouble
    one.environ["T_KEY"] = "of-the-shell"
    for words in READING:
        await verb(one, project, *words)
    assert (count(own), count(its), count(kept)) == (1, 0, 0)
    assert await one.pids("mine") == [running]
    code, said, trouble = await verb(one, project, "tools")
    assert code == 0, trouble
    assert "its__echo" in said, "a list starts what it needs"
    await one.carpool("down")


def project_of(one: Daemon, **servers: Json) -> Path:
    """A directory whose project file has these servers."""
    directory = one.base / "project"
    directory.mkdir()
    (directory / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    return directory


@behaviour("pools:outlive-sessions")
async def test_one_shot_calls_to_a_project_s_server_share_a_process_until_it_is_idle_or_not_trusted(
    daemon: Make,
) -> None:
    one = daemon({}, up=False)
    starts = one.base / "starts"
    project = project_of(one, its=counted(starts, observer(), pool={"idle_s": 3}))
    one.up()
    assert (await verb(one, project, "trust", "--yes"))[0] == 0
    for _ in range(3):
        code, _, trouble = await verb(one, project, "call", "its__echo", "--args", '{"text": "x"}')
        assert code == 0, trouble
    assert count(starts) == 1
    await one.until(lambda facts: "its" not in facts["servers"], "it is forgotten")
    reasons = [line for line in one.log("supervisor-sup1").splitlines() if "as carpool asked it to" in line]
    assert all("pool.idle_s" in line for line in reasons), reasons
    await verb(one, project, "call", "its__echo", "--args", '{"text": "x"}')
    assert count(starts) == 2
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": {}}))
    await until(lambda: "its configuration was changed or removed" in one.log("supervisor-sup1"), "it ends")


@behaviour("pools:outlive-sessions")
async def test_the_failures_of_a_project_s_server_outlive_the_sessions_that_met_them(daemon: Make) -> None:
    one = daemon({}, up=False)
    starts = one.base / "starts"
    restart = {"first_delay_s": 0.05, "give_up_after": 3}
    project = project_of(one, bad=counted(starts, kit("dies_at_start"), restart=restart))
    one.up()
    assert (await verb(one, project, "trust", "--yes"))[0] == 0
    for _ in range(4):
        code, _, _ = await verb(one, project, "call", "bad__x")
        assert code != 0
    facts = await one.status()
    assert count(starts) == 3
    bad = facts["servers"]["bad"]
    assert (bad["state"], bad["restarts"]) == ("breaker_open", 2)
    assert "exit code 3" in bad["last_error"]


@behaviour("looking:own-view")
async def test_status_judges_a_server_by_the_variables_of_the_shell_that_asks(daemon: Make) -> None:
    one = daemon({"gh": observer(env={"GH_TOKEN": "${GH_TOKEN}"})})
    assert one.carpool_json("status")["servers"]["gh"]["state"] == "unset"
    one.environ["GH_TOKEN"] = "of-the-shell"
    assert one.carpool_json("status")["servers"]["gh"]["state"] == "cold"
    assert (await one.carpool("call", "gh__environ", "--args", '{"name": "GH_TOKEN"}'))[0] == 0
    assert one.carpool_json("status")["servers"]["gh"]["state"] == "serving"


@behaviour("lists:start-reads-again")
async def test_a_start_of_a_running_server_brings_its_new_list_without_a_new_process(daemon: Make) -> None:
    one = daemon({}, up=False)
    file = one.base / "tools"
    file.write_text("old: An old tool.\n")
    one.configure({"mine": kit("mutable", str(file))})
    one.up()
    assert "mine__old" in (await one.carpool("tools"))[1]
    (running,) = await one.pids("mine")
    file.write_text("new: A new tool.\n")
    assert "mine__new" not in (await one.carpool("tools"))[1]
    code, said, trouble = await one.carpool("start", "mine")
    assert (code, "serving" in said) == (0, True), trouble
    said = (await one.carpool("tools"))[1]
    assert "mine__new" in said
    assert "mine__old" not in said
    assert await one.pids("mine") == [running]


@behaviour("silence:greeting-told")
async def test_a_server_that_answers_nothing_to_its_greeting_is_named_to_everybody_who_waits(
    daemon: Make,
) -> None:
    one = daemon({"mute": kit("never_greets"), "good": observer()}, list_wait_s=20)
    silent = "has answered nothing to initialize for "
    code, _, trouble = await one.carpool("call", "mute__x")
    assert code != 0
    assert silent in trouble
    facts = await one.status()
    assert silent in facts["servers"]["mute"]["last_error"]
    assert silent in one.log("supervisor-sup1")
    said = (await one.carpool("doctor"))[1]
    assert f"mute is starting: {silent}" in said


@behaviour("lists:offline")
async def test_a_tools_file_alone_lists_tools_of_a_server_that_never_runs(daemon: Make) -> None:
    one = daemon({}, up=False)
    tools = [{"name": "later", "inputSchema": {"type": "object", "required": ["x"]}}]
    (one.base / "tools.json").write_text(json.dumps(tools))
    one.configure({"soon": {"tools_file": "tools.json", "auto_connect": True}, "good": observer()})
    one.up()
    assert "soon" not in (await one.carpool("doctor"))[1]
    assert "all right" in (await one.carpool("check"))[1]
    assert "soon__later" in (await one.carpool("tools"))[1]
    code, _, trouble = await one.carpool("call", "soon__later", "--args", "{}")
    assert code != 0
    assert "has nothing to run" in trouble
    assert (await one.carpool("call", "soon__later", "--dry-run", "--args", '{"x": 1}'))[0] == 0
    for _ in range(3):
        assert (await one.carpool("call", "soon__later", "--args", '{"x": 1}'))[0] != 0
    facts = one.carpool_json("status")
    assert facts["reason"] == "ok", "what is refused is no failure of the server"
    assert (await one.carpool("doctor"))[0] == 0
    code, _, trouble = await one.carpool("check", "--probe", "soon")
    assert (code, "with nothing to run" in trouble) == (2, True)
    said = (await one.carpool("why", "soon"))[1]
    assert ("nothing is shared" in said, "--probe" in said) == (True, False)
    soon = facts["servers"]["soon"]
    assert (soon["state"], soon["well"], soon["tools"], soon["lists"]["from"]) == ("offline", True, 1, "file")
    code, said, trouble = await one.carpool("start", "--all")
    assert code == 0, said + trouble
    assert "soon" not in one.log("supervisor-sup1")
