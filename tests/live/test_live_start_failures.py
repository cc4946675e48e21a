"""Servers that cannot start or never greet: what agents, `status` and `carpool logs SERVER` say of each."""

import os
import re
import signal
import sys
from collections.abc import Iterator

import pytest
import trio

from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, fault_of
from tests.kit.live import Daemon, kit
from tests.live.conftest import shared_daemon

HEADERS = "import sys; print('Content-Length: 2\\r\\n\\r\\n{}', flush=True); sys.stdin.read()"
BANNER = "import sys; print('*** starting up ***', flush=True); sys.stdin.read()"


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    once = {"restart": {"give_up_after": 1}}
    servers = {
        "good": kit("echo"),
        "absent": {"command": "no-such-uvx"},
        "uvx": {"command": "uvx", "env": {"PATH": "/nowhere"}},
        "astray": {"command": "./no-such", "cwd": "/"},
        "framed": {"command": sys.executable, "args": ["-c", HEADERS], **once},
        "prints": {"command": sys.executable, "args": ["-c", BANNER], "first_start_s": 300.0},
    }
    yield from shared_daemon(servers, list_wait_s=0.1)


async def refusal(shared: Daemon, server: str) -> tuple[str, str]:
    """The code of the fault that a call ends with, and its text."""
    async with shared.agent() as agent:
        result = await agent.call(f"{server}__x")
        return fault_of(result)["code"], result["content"][0]["text"]


@behaviour("start:told")
@pytest.mark.parametrize(
    ("server", "why"),
    [
        ("absent", "the command no-such-uvx was not found in the PATH of the server's environment"),
        ("uvx", "in the PATH of the server's environment; install uv, which brings uvx"),
        ("astray", "the command ./no-such does not exist (looked for from /)"),
    ],
)
async def test_a_program_that_cannot_start_is_told_at_once_and_its_log_says_why(
    shared: Daemon, server: str, why: str
) -> None:
    with trio.fail_after(LIMIT_S):
        for _ in range(2):  # the first one starts it, the second one finds it so
            code, text = await refusal(shared, server)
            assert code == "cannot_start"
            assert why in text
            assert "failed several times in a row" not in text
            assert "Try again later" not in text
        status, out, _ = await shared.carpool("logs", server)
        assert status == 0
        assert why in out


@behaviour("start:told")
async def test_a_server_that_frames_its_messages_with_headers_is_told_as_that(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        _, text = await refusal(shared, "framed")
        assert "the line is a Content-Length header" in text
        assert "one JSON message on each line" in text


@behaviour("start:told")
async def test_a_server_that_prints_and_never_greets_is_not_well_and_its_log_has_what_it_printed(
    shared: Daemon,
) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            await agent.start("prints__x")
            facts = await shared.until(
                lambda facts: facts["servers"]["prints"]["last_error"], "its line was read"
            )
            assert facts["servers"]["prints"]["state"] == "starting"
            assert facts["servers"]["prints"]["well"] is False
            assert facts["reason"] == "servers_failing"
        _, out, _ = await shared.carpool("status")
        assert "prints (it has not greeted yet)" in out
        status, out, _ = await shared.carpool("logs", "prints")
        assert status == 0
        assert re.search(r" prints #\d+ stdout \| \*\*\* starting up \*\*\*\n", out)


@behaviour("start:told", "logs:server")
async def test_the_log_of_a_silent_server_has_its_starts_and_its_end(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            await agent.text("good__echo", {"text": "x"})
        (pid,) = await shared.pids("good")
        os.kill(pid, signal.SIGKILL)
        await shared.until(lambda facts: facts["servers"]["good"]["restarts"], "its end was seen")
        status, out, _ = await shared.carpool("logs", "good")
        assert status == 0
        own = [line.partition(" supervisor | ")[2] for line in re.sub(r"#\d+", "#N", out).splitlines()]
        assert "good #N starts (generation 1)" in own
        assert "good #N has greeted (handshake era) and serves" in own
        assert "WARNING good #N was killed by SIGKILL" in own
        async with shared.agent() as agent:
            await agent.text("good__echo", {"text": "x"})
        assert (await shared.carpool("stop", "good"))[0] == 0
        status, out, _ = await shared.carpool("logs", "good")
        assert "supervisor | good: an operator asked for: stop" in out
        assert ", as carpool asked it to" in out.splitlines()[-1]
        assert "an operator" not in (await shared.carpool("logs", "good", "--level", "warning"))[1]
        status, _, err = await shared.carpool("logs", "god")
        assert status == 1
        assert "did you mean 'good'?" in err
