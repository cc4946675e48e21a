"""What the machine does to carpool: directories that vanish, descriptors that run out, a disk that is full.

Each fault is made on purpose in a carpool of the test's own; nobody who is connected may notice, and whoever
cannot be served gets a sentence.
"""

import json
import os
import resource
import shutil
import signal

import trio

from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, WAIT_S, fault_of
from tests.kit.live import Daemon, Make, kit, observer
from tests.kit.open_door import open_door
from tests.kit.waits import until

ENDS = {("cut_off", "maybe"), ("instance_died", "maybe"), ("closing", "no")}
"""What is said of a call that ends with carpool: by the broker, or by the supervisor if that is quicker."""


@behaviour("faults:runtime-directory")
async def test_a_runtime_directory_that_vanishes_comes_back_and_agents_notice_nothing(daemon: Make) -> None:
    one = daemon({"good": observer()}, up=False, http=open_door())
    one.environ["CARPOOL_STATE_DIR"] = str(one.base / "state")
    one.up()
    with trio.fail_after(LIMIT_S):
        async with one.agent() as agent:
            pid = (await agent.seen("good"))["pid"]
            before = await one.status()
            door = (one.directory / "http.json").read_text()
            shutil.rmtree(one.directory)
            assert await agent.text("good__echo", {"text": "on"}) == "on"
            files = {"agents.sock", "http.json", "link.sock", "lock"}
            await until(
                lambda: one.directory.exists() and set(os.listdir(one.directory)) >= files,
                "it is back",
                WAIT_S,
            )
            assert json.loads((one.directory / "http.json").read_text()) == json.loads(door)
            async with one.shim() as late:
                assert (await late.seen("good"))["pid"] == pid
            after = await one.status()
            assert after["broker"]["pid"] == before["broker"]["pid"]
            code, _, said = await one.carpool("up")
            assert (code, "already runs" in said) == (2, True), said
            # The new link socket serves: a supervisor that comes now finds the broker.
            old = after["supervisors"]
            os.kill(old[0]["pid"], signal.SIGKILL)
            await one.until(lambda facts: facts["supervisors"] not in ([], old), "a new supervisor is linked")
            assert await agent.text("good__echo", {"text": "anew"}) == "anew"


def fill_the_disk(one: Daemon, *, full: bool = True) -> None:
    """No file that a process of this carpool writes may have a byte, as on a disk that is full."""
    for pid in one.running():
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0 if full else hard, hard))


@behaviour("faults:full-disk")
async def test_a_full_disk_costs_logs_and_nothing_else(daemon: Make) -> None:
    one = daemon({"good": observer(restart={"first_delay_s": 0}), "noisy": kit("noisy")})
    with trio.fail_after(LIMIT_S):
        async with one.agent() as agent:
            before = (await agent.seen("good"))["pid"]
            fill_the_disk(one)
            await agent.call("noisy__echo", {"text": "x"})
            assert "noisy" in (await one.carpool("why", "noisy"))[1]
            os.kill(before, signal.SIGKILL)
            await one.until(lambda facts: facts["servers"]["good"]["restarts"], "its death was seen")
            assert (await agent.seen("good"))["pid"] != before
            facts = await one.status()
            os.kill(facts["supervisors"][0]["pid"], signal.SIGKILL)
            old = facts["supervisors"]
            await one.until(lambda facts: facts["supervisors"] not in ([], old), "a new supervisor is linked")
            assert await agent.text("good__echo", {"text": "on"}) == "on"
            os.kill((await one.status())["broker"]["pid"], signal.SIGKILL)
            await agent.ended.wait()
        async with one.shim() as agent:
            assert await agent.text("good__echo", {"text": "anew"}) == "anew"
            code, _, said = await one.carpool("status")
            assert code == 0, said


def no_descriptor(pid: int) -> None:
    """Leave the process none, whichever of its numbers are free."""
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]))


def any_descriptor(pid: int) -> None:
    """Leave the process as many as it wants."""
    hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))


@behaviour("faults:descriptors")
async def test_a_broker_out_of_descriptors_serves_who_is_there_and_lets_others_in_later(daemon: Make) -> None:
    one = daemon({"good": observer()})
    with trio.fail_after(LIMIT_S):
        async with one.agent() as agent:
            await agent.text("good__echo", {"text": "before"})
            broker = (await one.status())["broker"]["pid"]
            no_descriptor(broker)
            async with one.shim(greet=False) as late:
                ping = await late.request("ping")
                await until(
                    lambda: "no connection can be accepted" in one.log("broker"), "it says so", WAIT_S
                )
                assert await agent.text("good__echo", {"text": "meanwhile"}) == "meanwhile"
                any_descriptor(broker)
                assert (await late.answer(ping))["result"] == {}
        assert one.log("broker").count("no connection can be accepted") == 1


@behaviour("faults:own-shortage")
async def test_a_supervisor_out_of_descriptors_says_so_and_starts_servers_again_when_it_can(
    daemon: Make,
) -> None:
    quick = {"restart": {"first_delay_s": 0.2, "max_delay_s": 0.2, "give_up_after": 100}}
    one = daemon({"good": observer(**quick), "other": observer()})
    with trio.fail_after(LIMIT_S):
        async with one.agent() as agent:
            first = (await agent.seen("good"))["pid"]
            supervisor = (await one.status())["supervisors"][0]["pid"]
            no_descriptor(supervisor)
            os.kill(first, signal.SIGKILL)
            waiting = await agent.start("good__seen")
            await until(lambda: "good waits: it could not" in one.log_text(), "the reason is logged", WAIT_S)
            good = (await one.status())["servers"]["good"]
            assert good["state"] != "breaker_open"
            assert "Too many open files" not in good["last_error"], "the server is not to blame"
            any_descriptor(supervisor)
            assert "result" in await agent.answer(waiting)
            assert await agent.text("other__echo", {"text": "later"}) == "later"
            assert (await one.status())["supervisors"][0]["pid"] == supervisor


@behaviour("stop:answers")
async def test_down_during_load_answers_every_open_call_and_leaves_nothing(daemon: Make) -> None:
    one = daemon({"good": observer()})
    with trio.fail_after(LIMIT_S):
        async with one.shim() as agent, one.agent() as other, one.agent() as onlooker:
            # More than a session may have open: the rest waits in the broker.
            ids = {
                each: [await each.start("good__wait", {"gate": "never"}) for _ in range(70)]
                for each in (agent, other)
            }
            await onlooker.inside("good", 128)
            assert (await one.carpool("down"))[0] == 0
            for each, asked in ids.items():
                faults = [fault_of((await each.answer(id_))["result"]) for id_ in asked]
                assert {(fault["code"], fault["delivered"]) for fault in faults} <= ENDS, faults
                await each.ended.wait()
        assert not one.running()
