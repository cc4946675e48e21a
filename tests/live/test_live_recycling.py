"""Instances past a limit, and servers that broke, with real processes."""

import json
import os
import signal
from pathlib import Path

import trio

from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, Json, LineAgent, fault_of
from tests.kit.live import Daemon, Make, alive, kit, observer, undisturbed
from tests.kit.waits import until

SOON = {"first_delay_s": 0, "max_delay_s": 0, "give_up_after": 2, "open_s": 3.0}


async def pid_of(agent: LineAgent, server: str) -> int:
    pid: int = (await agent.seen(server))["pid"]
    return pid


@behaviour("recycling:limits", "recycling:costs-no-call")
async def test_instances_are_replaced_under_load_and_no_call_notices(daemon: Make) -> None:
    one = daemon({"good": observer(), "short": observer(limits={"calls": 40}, sharing="concurrent")})
    pids: set[int] = set()

    async def chat(agent: LineAgent) -> None:
        at = 0
        while len(pids) < 4:
            at += 1
            assert await agent.text("short__echo", {"text": str(at)}) == str(at)
            pids.add(await pid_of(agent, "short"))

    with trio.fail_after(LIMIT_S):
        async with undisturbed(one), one.agent() as first, one.agent() as second:
            held = await first.start("short__wait", {"gate": "g"})
            await first.inside("short", 1)
            old = await pid_of(first, "short")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(chat, first)
                nursery.start_soon(chat, second)
            assert alive(old), "its open call has not ended"
            facts = await one.status()
            [why] = [each["why"] for each in facts["servers"]["short"]["instances"] if each["pid"] == old]
            assert "limits.calls: 40" in why
            assert "limits.calls: 40" in (await one.carpool("ps"))[1]
            await first.cancel(held)
            await until(lambda: not alive(old), "it ends when nothing is open")
            assert facts["servers"]["short"]["restarts"] == 0
            assert "is to be replaced: it was given" in one.log("supervisor-sup1")


@behaviour("recycling:limits")
async def test_one_that_holds_too_much_memory_is_replaced(daemon: Make) -> None:
    one = daemon({"good": observer(), "hog": kit("hog", limits={"rss_mb": 120}, sharing="concurrent")})

    async def pids() -> list[int]:
        return await one.pids("hog")

    with trio.fail_after(LIMIT_S):
        async with undisturbed(one), one.agent() as agent:
            assert await agent.text("hog__grow", {"mib": 10}) == "10"
            [old] = await pids()
            assert await agent.text("hog__grow", {"mib": 150}) == "160"
            facts = await one.until(
                lambda facts: (
                    facts["servers"]["hog"]["instances"]
                    and old not in [each["pid"] for each in facts["servers"]["hog"]["instances"]]
                ),
                "another one serves",
            )
            assert facts["servers"]["hog"]["restarts"] == 0
            assert await agent.text("hog__grow", {"mib": 1}) == "1"


@behaviour("recycling:leases")
async def test_a_lease_on_one_that_holds_too_much_ends_and_says_why(daemon: Make) -> None:
    one = daemon({"hog": kit("hog", limits={"rss_mb": 120}, sharing="session", drain_s=0.5)})
    with trio.fail_after(LIMIT_S):
        async with one.agent() as agent:
            assert await agent.text("hog__grow", {"mib": 150}) == "150"
            await until(lambda: "is to be replaced" in one.log("supervisor-sup1"), "it is noticed")
            while True:
                result = await agent.call("hog__grow", {"mib": 0})
                if result["isError"]:
                    break
                await trio.sleep(0.05)
            fault = fault_of(result)
            assert (fault["code"], fault["delivered"]) == ("state_lost", "no")
            assert "limits.rss_mb" in result["content"][0]["text"]
            assert await agent.text("hog__grow", {"mib": 3}) == "3"


def flaky(door: Path, **settings: Json) -> Json:
    """A server that lives only while there is a file."""
    code = (
        f"import os, sys; os.path.exists({str(door)!r}) or sys.exit(7); import runpy; sys.argv = sys.argv[1:]"
    )
    whole = observer()
    path = whole["args"][-1]
    code += f"; runpy.run_path({path!r}, run_name='__main__')"
    return {**whole, "args": ["-S", "-E", "-c", code, path], **settings}


@behaviour("silence:breaker", "silence:breaker-probes", "silence:breaker-on-demand", "lists:away-and-back")
async def test_a_server_that_broke_is_tried_again_by_itself_and_comes_back(daemon: Make) -> None:
    one = daemon(up=False)
    door = one.base / "well"
    door.touch()
    one.configure({"good": observer(), "flaky": flaky(door, restart=SOON)})
    one.up()
    with trio.fail_after(LIMIT_S):
        async with undisturbed(one), one.agent() as agent:
            assert await agent.text("flaky__echo", {"text": "well"}) == "well"
            pid = await pid_of(agent, "flaky")
            door.unlink()
            os.kill(pid, signal.SIGKILL)
            await one.until(lambda facts: facts["servers"]["flaky"]["state"] == "breaker_open", "it is open")
            result = await agent.call("flaky__echo", {"text": "too soon"})
            fault = fault_of(result)
            assert (fault["code"], fault["delivered"]) == ("breaker_open", "no")
            assert 0 < fault["retry_after_s"] <= 3.0
            assert not [name for name in await agent.tools() if name.startswith("flaky")]
            # It was missed, so one start shows by itself that it is still broken.
            await until(lambda: one.log("supervisor-sup1").count("not started for 3 s") >= 2, "it was tried")
            door.touch()
            text = ""
            while text != "back":
                result = await agent.call("flaky__echo", {"text": "back"})
                text = result["content"][0]["text"]
                await trio.sleep(0.05)
            await agent.until_listed(lambda names: "flaky__echo" in names, "it is listed again")
            facts = (await one.status())["servers"]["flaky"]
            assert (facts["state"], facts["pools"][0]["breaker"]) == ("serving", "closed")


async def test_ps_and_status_show_a_breaker_that_is_open(daemon: Make) -> None:
    one: Daemon = daemon({"stillborn": kit("dies_at_start", restart={**SOON, "open_s": 60})})
    with trio.fail_after(LIMIT_S):
        async with one.agent() as agent:
            result = await agent.call("stillborn__anything")
            assert fault_of(result)["code"] == "breaker_open"
            assert "exit code 3" in result["content"][0]["text"]
        for verb in ("ps", "status"):
            assert "breaker of stillborn: open, closed to starts for" in (await one.carpool(verb))[1]
        pool = json.loads((await one.carpool("status", "--json"))[1])["servers"]["stillborn"]["pools"][0]
        assert pool["breaker"] == "open"
        assert 0 < pool["retry_after_s"] <= 60
        [told] = await one.operate("start", "stillborn")
        assert not told["ok"]
        assert "not started for 60 s after 2 failures in a row" in told["text"]
