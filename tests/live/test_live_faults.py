"""What the machine does to carpool: directories that vanish, descriptors that run out, a disk that is full.

Each fault is made on purpose in a carpool of the test's own; nobody who is connected may notice, and whoever
cannot be served gets a sentence.
"""

import json
import os
import shutil
import signal

import trio

from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, WAIT_S
from tests.kit.live import Make, observer
from tests.kit.waits import until


@behaviour("faults:runtime-directory")
async def test_a_runtime_directory_that_vanishes_comes_back_and_agents_notice_nothing(daemon: Make) -> None:
    one = daemon({"good": observer()}, up=False, http={"port": 0})
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
