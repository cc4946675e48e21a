"""The logs of a carpool that runs for long: each of its processes begins a new file by itself."""

import os
import signal
from collections.abc import Callable
from functools import partial

import trio

from carpool_protocol.files.log_rotation import LOG_BYTES
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, WAIT_S
from tests.kit.live import Daemon, kit
from tests.kit.open_door import open_door
from tests.kit.waits import until

LOGS = ("broker", "supervisor-sup1", "http", "launcher")


def is_logged(daemon: Daemon, name: str, text: str) -> bool:
    return text in daemon.log(name)


@behaviour("logs:bounded")
async def test_each_process_of_carpool_renames_its_long_log_and_goes_on_in_a_new_one(
    daemon: Callable[..., Daemon],
) -> None:
    one = daemon({"echo": kit("echo")}, http=open_door())
    one.note_fds()
    for name in LOGS:
        with (one.logs / f"{name}.log").open("a", encoding="utf-8") as log:
            log.write("x" * LOG_BYTES + "\n")
    with trio.fail_after(LIMIT_S):
        await until(
            lambda: all((one.logs / f"{name}.log.1").exists() for name in LOGS),
            "four logs are renamed",
            WAIT_S,
        )
        facts = await one.status()
        for pid in (facts["broker"]["pid"], facts["supervisors"][0]["pid"]):
            os.kill(pid, signal.SIGKILL)
        async with one.shim() as agent:
            assert await agent.text("echo__echo", {"text": "on"}) == "on"
        for name, text in (("broker", "serves"), ("supervisor-sup1", "serves"), ("launcher", "SIGKILL")):
            await until(partial(is_logged, one, name, text), f"{name} writes to its new log", WAIT_S)
        assert all((one.logs / f"{name}.log").stat().st_size < LOG_BYTES for name in LOGS)
