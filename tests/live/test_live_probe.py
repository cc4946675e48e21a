"""The divergence probe on real servers: what it finds, who hears of it, and that nothing is left of it."""

import json
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from carpool.launcher import processes
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, WAIT_S
from tests.kit.live import Daemon, Make, kit
from tests.kit.waits import until


@pytest.fixture
def place() -> Iterator[Path]:
    """Where the probe makes its directory. Short: there will be sockets in it."""
    with tempfile.TemporaryDirectory(prefix="cp-", dir="/tmp") as name:
        yield Path(name)


def left(place: Path) -> list[str]:
    """What is in the probe's place, and every process that was told of it."""
    found = [str(each) for each in place.iterdir()]
    told = processes.with_environment(lambda environ: any(str(place) in entry for entry in environ))
    return found + [command for _, command in told]


async def why(daemon: Daemon, server: str) -> tuple[str, str]:
    """The mode and what decided it; of a server with one pool."""
    code, said, err = await daemon.carpool("why", server, "--json")
    assert code == 0, err
    [pool] = json.loads(said)["pools"]
    return pool["mode"], pool["source"]


@behaviour("modes:probe")
async def test_a_counter_diverges_and_is_given_to_one_agent_at_a_time_from_then_on(
    daemon: Make, place: Path
) -> None:
    with trio.fail_after(LIMIT_S):
        one = daemon({"counter": kit("counter")})
        one.environ["TMPDIR"] = str(place)
        async with one.agent() as agent:
            assert await agent.text("counter__read", {}) == "0"
            assert await why(one, "counter") == ("concurrent", "assumed")
            code, said, err = await one.carpool(
                "check", "--probe", "counter", "--call", "increment", "--json"
            )
            assert code == 0, err
            found = json.loads(said)
            assert (found["result"], found["recorded"]) == ("diverged", True), found["note"]
            assert found["calls"] == [{"tool": "increment", "outcome": "diverged"}]
            assert left(place) == []
            await until_why(one, "counter", ("session", "evidence"))
            # The probe ran on instances of its own.
            assert await agent.text("counter__read", {}) == "0"
        code, said, _ = await one.carpool("why", "counter")
        assert code == 0
        assert "diverged: increment" in said


async def until_why(daemon: Daemon, server: str, expected: tuple[str, str]) -> None:
    """The supervisor may hear of it a moment later."""
    with trio.fail_after(WAIT_S):
        while await why(daemon, server) != expected:
            await trio.lowlevel.checkpoint()


async def test_a_clock_is_not_counted_and_a_calculation_agrees(daemon: Make) -> None:
    pytest.importorskip("mcp_server_time")
    with trio.fail_after(LIMIT_S):
        one = daemon({"time": {"command": sys.executable, "args": ["-m", "mcp_server_time"]}})
        noon = '{"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}'
        code, said, err = await one.carpool(
            *("check", "--probe", "time", "--json"),
            *("--call", "get_current_time", "--args", '{"timezone": "UTC"}'),
            *("--call", "convert_time", "--args", noon),
        )
        assert code == 0, err
        found = json.loads(said)
        assert found["result"] == "agreed"
        assert [each["outcome"] for each in found["calls"]] == ["not_deterministic", "agreed"]


async def test_a_server_that_links_to_its_own_resources_agrees(daemon: Make) -> None:
    with trio.fail_after(LIMIT_S):
        one = daemon({"full": kit("full", "F")})
        code, said, err = await one.carpool("check", "--probe", "full", "--json", "--call", "rich")
        assert code == 0, err
        found = json.loads(said)
        assert found["calls"] == [{"tool": "rich", "outcome": "agreed"}], found


async def test_an_interrupted_probe_leaves_nothing(place: Path) -> None:
    with trio.fail_after(LIMIT_S):
        one = Daemon({"slow": kit("counter")})
        one.environ["TMPDIR"] = str(place)
        said = place.parent / f"{place.name}.said"
        try:
            with said.open("wb") as out:
                process = await trio.lowlevel.open_process(
                    one.command("check", "--probe", "slow", *(["--call", "increment"] * 2000)),
                    env=one.environ,
                    stdout=out,
                    stderr=out,
                )
            await until(lambda: b"instance 1, round 1 of 2" in said.read_bytes(), "calls are made", LIMIT_S)
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 130
            assert left(place) == []
        finally:
            said.unlink(missing_ok=True)
            one.close()
