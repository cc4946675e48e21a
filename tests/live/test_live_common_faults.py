"""What goes wrong for a new user: each fault leads to its repair, by `carpool doctor` or by its own message.

Each test makes the fault, as far as a test may: a missing program, a broken file, a taken port.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, fault_of
from tests.kit.live import Daemon, Make, kit
from tests.kit.private_daemon import until as until_now
from tests.kit.waits import until

WAITS = "import sys; sys.stdin.read()"
PRINTS = f"print('*** starting ***', flush=True); {WAITS}"
NO_TOKEN = "import sys; sys.exit('Error: ACME_TOKEN environment variable is required')"

OPEN_URL = {"url": "http://far.example/mcp", "headers": {"Authorization": "Bearer x"}}
NOWHERE = {"PATH": "/nowhere"}


def python(text: str, **settings: Any) -> dict[str, Any]:
    """A server that is this text."""
    return {"command": sys.executable, "args": ["-c", text], "restart": {"give_up_after": 1}, **settings}


async def problems(one: Daemon, *, code: int = 1) -> dict[str, tuple[str, str, str]]:
    """By server: id, text and repair of each problem; under an empty name those of none."""
    done, out, said = await one.carpool("doctor", "--json")
    assert done == code, out + said
    found = json.loads(out)["problems"]
    return {each["server"]: (each["id"], each["text"], each["repair"]) for each in found}


@behaviour("doctor:faults")
@pytest.mark.parametrize(
    ("server", "kind", "text", "repair"),
    [
        ({"command": "uvx", "env": NOWHERE}, "program-missing", "uvx", "Install uv (https://"),
        ({"command": "npx", "env": NOWHERE}, "program-missing", "npx", "Install Node.js (https://"),
        ({"command": "./scripts/db.sh"}, "program-missing", "looked for in /", "Correct the path"),
        ({"command": "/no/such/server"}, "program-missing", "/no/such/server", "Correct the path"),
        ({"command": "/etc/passwd"}, "program-missing", "executable", "Name the program that runs it"),
        ({"command": "uvx mcp-server-time"}, "program-missing", "one program", "put what follows it into"),
        ({"command": "true", "timeout": 30000}, "config-broken", "`timeout_s`", "Mend that line"),
        ({"command": "true", "comand": "x"}, "config-broken", "did you mean `command`?", "Mend that line"),
        ({"command": "true", "autoApprove": []}, "configuration-warning", "ignores it", "`carpool check`"),
        ({"python": "no module"}, "server-misconfigured", "python", "Mend the entry"),
        (OPEN_URL, "configuration-warning", "unencrypted", "See `carpool check`"),
    ],
)  # fmt: skip
async def test_an_entry_that_cannot_work_is_told_before_anything_runs(
    daemon: Make, server: dict[str, Any], kind: str, text: str, repair: str
) -> None:
    one = daemon({"mine": server}, up=False)
    with trio.fail_after(LIMIT_S):
        (found,) = (await problems(one)).values()
    assert found[0] == kind
    assert text in found[1]
    assert repair in found[2]


@behaviour("doctor:faults")
async def test_a_path_of_whoever_started_carpool_first_is_repaired_by_a_restart_from_here(
    daemon: Make,
) -> None:
    one = daemon({"echo": {**kit("echo"), "command": "mine"}}, up=False)
    (programs := one.base / "bin").mkdir()
    (programs / "mine").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (programs / "mine").chmod(0o700)
    here = one.environ["PATH"]
    one.environ["PATH"] = "/usr/bin:/bin"
    one.up()
    one.environ["PATH"] = os.pathsep.join([str(programs), here])
    with trio.fail_after(LIMIT_S):
        kind, text, repair = (await problems(one))["echo"]
        assert kind == "program-missing"
        assert f"in the PATH of this terminal ({programs / 'mine'})" in text
        assert repair.startswith("Run `carpool restart --all` here"), repair
        assert (await one.carpool("restart", "--all"))[0] == 0
        assert await problems(one, code=0) == {}
        async with one.agent() as agent:
            assert await agent.text("echo__echo", {"text": "x"}) == "x"


@behaviour("doctor:faults")
async def test_a_server_that_prints_and_never_greets_is_told_with_its_log(daemon: Make) -> None:
    one = daemon({"prints": python(PRINTS)}, list_wait_s=0.1)
    with trio.fail_after(LIMIT_S):
        async with one.agent() as agent:
            await agent.start("prints__x")
            await one.until(lambda facts: facts["servers"]["prints"]["last_error"], "its line was read")
            kind, text, repair = (await problems(one))["prints"]
        assert (kind, "prints is starting" in text) == ("stdout-noise", True)
        assert "carpool logs prints" in repair
        assert "*** starting ***" in (await one.carpool("logs", "prints"))[1]


@behaviour("doctor:faults")
async def test_a_missing_token_is_told_in_the_words_of_the_server(daemon: Make) -> None:
    one = daemon({"acme": python(NO_TOKEN)})
    with trio.fail_after(LIMIT_S):
        async with one.agent() as agent:
            result = await agent.call("acme__x")
            assert "ACME_TOKEN environment variable is required" in result["content"][0]["text"]
        kind, text, repair = (await problems(one))["acme"]
        assert kind == "server-failing"
        assert "ACME_TOKEN environment variable is required" in text
        assert "carpool logs acme" in repair


@behaviour("doctor:faults")
async def test_an_agent_is_told_at_once_that_a_program_is_missing_and_the_log_says_it(daemon: Make) -> None:
    one = daemon({"time": {"command": "uvx", "env": NOWHERE}})
    with trio.fail_after(LIMIT_S):
        async with one.agent() as agent:
            result = await agent.call("time__x")
        assert fault_of(result)["code"] == "cannot_start"
        told = result["content"][0]["text"]
        assert "install uv, which brings uvx" in told
        assert "`carpool doctor`" in told
        assert "Try again later" not in told
        code, out, _ = await one.carpool("logs", "time")
        assert (code, "install uv" in out) == (0, True)


@behaviour("doctor:faults")
async def test_a_variable_that_is_not_set_is_named(daemon: Make) -> None:
    one = daemon({"acme": {"command": "true", "env": {"KEY": "${NO_SUCH_VARIABLE_HERE}"}}}, up=False)
    with trio.fail_after(LIMIT_S):
        ((kind, text, repair),) = (await problems(one)).values()
    assert (kind, "NO_SUCH_VARIABLE_HERE" in text) == ("variable-unset", True)
    assert "put it into the `env_file`" in repair


@behaviour("doctor:faults")
async def test_a_server_of_a_project_that_cannot_start_is_named_after_its_agent_has_left(
    daemon: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = daemon({"echo": kit("echo")})
    servers = {"gone": {"command": "./no-such-program"}, "dies": python(NO_TOKEN)}
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    monkeypatch.chdir(tmp_path)
    with trio.fail_after(LIMIT_S):
        assert (await one.carpool("trust", "--yes"))[0] == 0
        async with one.shim(cwd=tmp_path) as agent:
            for name in servers:
                assert (await agent.call(f"{name}__x"))["isError"]
        await one.until(lambda facts: not facts["sessions"], "the agent has left")
        found = await problems(one)
        assert found["gone"][0] == "program-missing"
        assert f"looked for in {tmp_path}" in found["gone"][1]
        assert found["dies"][0] == "server-failing"
        assert "ACME_TOKEN environment variable is required" in found["dies"][1]
        assert "`carpool logs dies`" in found["dies"][2]


@behaviour("doctor:faults")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"mcpServers": {,}}', "expected"),
        ('{"mcpServers": {"' + "x" * 57 + '": {"command": "x"}}}', "at most 40 characters"),
    ],
)
async def test_a_broken_file_is_told_while_carpool_runs_with_the_last_good_one(
    daemon: Make, text: str, said: str
) -> None:
    one = daemon({"echo": kit("echo")})
    one.config.write_text(text)
    with trio.fail_after(LIMIT_S):
        kind, found, repair = (await problems(one))[""]
        assert (kind, said in found) == ("config-broken", True)
        assert found.startswith(f"{one.config}:1")
        assert "`carpool check`" in repair
        async with one.agent() as agent:
            assert await agent.text("echo__echo", {"text": "x"}) == "x"


LOOKED_FOR = (
    ("tools",),
    ("tools", "a__b"),
    ("call", "a__b"),
    ("call", "a__b", "--dry-run"),
    ("resources",),
    ("read", "a:b"),
    ("prompts",),
    ("prompt", "a__b"),
)
"""The verbs that look for what servers offer."""
FOR_ALL = (("start", "--all"), ("start", "a"), ("bench", "a__b"))
"""Those that take no workspace."""


@behaviour("config:broken-is-named")
async def test_who_finds_nothing_is_told_of_the_file_that_cannot_be_read_or_waits_for_trust(
    daemon: Make, tmp_path: Path
) -> None:
    one = daemon({})
    (tmp_path / ".mcp.json").write_text('{"mcpServers": {"q": {"command": "x", "disabled": true}}}')

    async def said_of(*verb: str) -> str:
        return " ".join("".join((await one.carpool(*verb))[1:]).split())

    with trio.fail_after(3 * LIMIT_S):
        said = {verb: await said_of(*verb, "--workspace", str(tmp_path)) for verb in LOOKED_FOR}
        assert [verb for verb in said if f"{tmp_path}/.mcp.json is not trusted" not in said[verb]] == []
        one.config.write_text('{\n"mcpServers": {"a": {"command": "x", "timout_s": 3}}}')
        said = {verb: await said_of(*verb) for verb in (*LOOKED_FOR, *FOR_ALL)}
        assert [verb for verb in said if f"{one.config}:2: mcpServers.a.timout_s" not in said[verb]] == []
        await until(lambda: one.facts()["config"]["problem"], "the broker has noticed")
        why = f"The user's configuration cannot be read ({one.config}:2)"
        async with one.agent(greet=False) as agent:
            instructions = (await agent.greet())["instructions"]
            assert (why in instructions, "has no MCP server yet" in instructions) == (True, False)
            for method in ("tools/call", "prompts/get", "resources/read"):
                error = (await agent.ask(method, {"name": "a__b", "uri": "a:b"}))["error"]
                assert (method, error["message"].count(why)) == (method, 1)


@behaviour("doctor:faults")
async def test_an_agent_that_meets_a_broken_file_is_told_so_where_carpool_does_not_run(daemon: Make) -> None:
    one = daemon({}, up=False)
    one.config.write_text('{"mcpServers": {,}}')
    greeting = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "a", "version": "1"},
    }
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": greeting})
    with trio.fail_after(LIMIT_S):
        _, out, _ = await one.carpool("connect", stdin=f"{line}\n".encode())
        assert str(one.config) in json.loads(out.splitlines()[0])["error"]["message"]
        assert (await problems(one))[""][0] == "config-broken"


@behaviour("doctor:faults")
async def test_carpool_killed_with_all_it_has_is_explained_and_comes_back_by_itself(daemon: Make) -> None:
    one = daemon({"echo": kit("echo")})
    with trio.fail_after(LIMIT_S):
        stopped: set[int] = set()
        while more := one.running().keys() - stopped:  # none sees another one die, and clears up
            for pid in more:
                os.kill(pid, signal.SIGSTOP)
            stopped |= more
        # Children first: the kernel continues the stopped children of a process that dies, with a hangup.
        for pid in sorted(stopped, reverse=True):
            os.kill(pid, signal.SIGKILL)
        until_now(lambda: not one.running(), "nothing of it runs")
        kind, _, repair = (await problems(one))[""]
        assert (kind, "the next start takes its place" in repair) == ("socket-stale", True)
        async with one.shim() as agent:
            assert await agent.text("echo__echo", {"text": "x"}) == "x"
        assert await problems(one, code=0) == {}


@behaviour("doctor:faults")
async def test_a_secret_written_out_in_a_file_that_all_may_read_is_told(daemon: Make) -> None:
    one = daemon({}, up=False)
    one.base.chmod(0o755)
    with trio.fail_after(LIMIT_S):
        code, _, said = await one.carpool("add", "gh", "--env", "GITHUB_TOKEN=ghp_x", "--", "true")
        assert (code, "its secrets are kept in" in said) == (0, True)
        assert "ghp_x" not in one.config.read_text()
        assert await problems(one, code=0) == {}
        one.configure({"gh": {"command": "true", "env": {"GITHUB_TOKEN": "ghp_x"}}})
        one.config.chmod(0o644)
        kind, text, repair = (await problems(one))[""]
    assert (kind, "GITHUB_TOKEN" in text) == ("secrets-readable", True)
    assert "ghp_x" not in text
    assert repair == f"Run `chmod 600 {one.config}`."


@behaviour("doctor:faults")
async def test_options_of_a_server_without_the_two_dashes_are_explained(daemon: Make) -> None:
    one = daemon({}, up=False)
    with trio.fail_after(LIMIT_S):
        code, _, said = await one.carpool("add", "gh", "npx", "-y", "some-package")
    assert code == 2
    assert "put -- before the command: `carpool add gh -- COMMAND ARGS…`" in said


@behaviour("doctor:faults")
@pytest.mark.parametrize("environ", [{"LC_ALL": "C"}, {"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
async def test_doctor_works_in_a_plain_locale_and_without_colours(
    daemon: Make, environ: dict[str, str]
) -> None:
    one = daemon({"mine": {"command": "/no/such/sérver"}}, up=False)
    one.environ |= environ
    with trio.fail_after(LIMIT_S):
        code, out, said = await one.carpool("doctor")
    assert (code, "program-missing" in out, "\x1b" in out) == (1, True, False), said


@behaviour("doctor:faults")
@pytest.mark.parametrize("redirect", ["> /dev/full", ">&-"])
def test_an_output_that_is_full_or_closed_is_no_traceback(redirect: str) -> None:
    one = Daemon({"mine": {"command": "/no/such/server"}})
    try:
        for verb in ("doctor", "status"):
            line = f"{sys.executable} -m carpool {verb} {redirect}"
            done = subprocess.run(
                ["/bin/sh", "-c", line],
                env=one.environ,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode != 0
            assert "Traceback" not in done.stderr
    finally:
        one.close()
