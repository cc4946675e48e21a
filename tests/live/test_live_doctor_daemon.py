"""`carpool doctor` on a carpool in trouble: a stopped broker, failing calls, a full disk, a taken port.

The verb is told of a full disk by a `sitecustomize` in its PYTHONPATH, because no test may fill a disk.
`test_live_upgrade` has an older version that runs.
"""

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S
from tests.kit.live import Daemon, Make, kit, observer
from tests.kit.open_door import open_door
from tests.live.conftest import shared_daemon

FULL_DISK = """
import os
def full(path, real=os.statvfs):
    found = list(real(path))
    found[4] = 1  # f_bavail
    return os.statvfs_result(found)
os.statvfs = full
"""


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    yield from shared_daemon({"echo": kit("echo")})


async def problems(one: Daemon) -> list[dict[str, Any]]:
    """The problems, of which there are some."""
    code, out, said = await one.carpool("doctor", "--json")
    assert code == 1, said
    found: list[dict[str, Any]] = json.loads(out)["problems"]
    return found


@behaviour("doctor:repair")
async def test_a_disk_that_is_nearly_full_is_found(
    shared: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(FULL_DISK)
    path = os.pathsep.join([str(tmp_path), shared.environ["PYTHONPATH"]])
    monkeypatch.setitem(shared.environ, "PYTHONPATH", path)
    with trio.fail_after(LIMIT_S):
        found = await problems(shared)
        assert {each["id"] for each in found} == {"disk-full"}
        assert "0 MB are free in" in found[0]["text"]


async def problem_while_stopped(one: Daemon, pid: int) -> dict[str, Any]:
    """Return the one problem that the doctor finds while this process is stopped."""
    os.kill(pid, signal.SIGSTOP)
    try:
        with trio.fail_after(LIMIT_S):
            (problem,) = await problems(one)
    finally:
        os.kill(pid, signal.SIGCONT)
    return problem


@behaviour("doctor:repair")
async def test_a_broker_that_is_stopped_is_found_within_one_bound(shared: Daemon) -> None:
    problem = await problem_while_stopped(shared, (await shared.status())["broker"]["pid"])
    assert problem["id"] == "broker-silent"
    assert "carpool logs --daemon" in problem["repair"]


@behaviour("doctor:repair")
async def test_a_supervisor_that_is_stopped_is_found_and_is_no_silent_broker(shared: Daemon) -> None:
    facts = await shared.until(lambda facts: bool(facts["supervisors"]), "the supervisor is connected")
    problem = await problem_while_stopped(shared, facts["supervisors"][0]["pid"])
    assert problem["id"] == "supervisor-silent"
    assert "has not answered for" in problem["text"]


@behaviour("doctor:repair")
async def test_a_server_whose_calls_fail_is_named_though_it_runs(daemon: Make) -> None:
    one = daemon({"slow": observer(timeout_s=0.2), "echo": kit("echo")})
    with trio.fail_after(LIMIT_S):
        async with one.agent() as agent:
            assert (await agent.call("slow__wait", {"gate": "never"}))["isError"]
            assert await agent.text("echo__echo", {"text": "x"}) == "x"
        (problem,) = await problems(one)
        assert (problem["id"], problem["server"]) == ("calls-failing", "slow")
        assert problem["text"].startswith(
            "1 of the latest 1 calls for slow failed. The last warning in its log: "
        )


@behaviour("doctor:repair")
async def test_a_tool_whose_name_is_cut_is_named(daemon: Make) -> None:
    one = daemon({"forge": observer("--tool", "add_pull_request_review_comment_to_pending_review")})
    with trio.fail_after(LIMIT_S):
        assert (await one.carpool("start", "forge"))[0] == 0
        (problem,) = await problems(one)
        assert problem["id"] == "names-cut"
        assert "forge__add_pull" in problem["text"]
        assert "`tools_prefix`" in problem["repair"]


@behaviour("doctor:repair")
async def test_a_port_that_another_program_has_is_found(daemon: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        one = daemon({"echo": kit("echo")}, up=False, http=open_door(port))
        with trio.fail_after(LIMIT_S):
            code, _, said = await one.carpool("up", "--detach")
            assert (code, "end the program that listens there" in said) == (1, True), "scripts see it"
            (problem,) = await problems(one)
        assert problem["id"] == "door-closed"
        assert str(port) in problem["text"]
