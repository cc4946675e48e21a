"""Many servers whose helpers escape end at once, round after round, and none of their processes lives on.

Each server has a helper in a session of its own, and that has a child in another one. The helper dies first:
its child becomes the spawner's at that very moment, while the spawner judges what other servers have left.

`CARPOOL_LEFTOVER_ROUNDS=25 pytest tests/live/test_live_leftovers.py` tries more rounds.
"""

import os
import shlex
import sys
from functools import partial

import pytest
import trio

from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, Json
from tests.kit.live import Daemon, Make, gone, observer
from tests.kit.waits import until

SERVERS = [f"s{at}" for at in range(8)]
ROUNDS = int(os.environ.get("CARPOOL_LEFTOVER_ROUNDS", "4"))
PROCESSES = 4
"""Of one server: itself, its helper, and two children of the helper, one of them in a session of its own."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="descendants are adopted on Linux only")


def with_escaped_helpers() -> dict[str, object]:
    """A good server, started by a shell that leaves a helper beside it."""
    good = observer()
    line = shlex.join([good["command"], *good["args"]])
    helper = "setsid sh -c 'setsid sleep 1000 & sleep 1000' </dev/null >/dev/null 2>&1 &"
    return {"command": "sh", "args": ["-c", f"{helper} exec {line}"], "auto_connect": True}


def of_servers(one: Daemon) -> set[int]:
    """Every running process that the servers or their helpers have started, or are."""
    return set(one.running()) - set(one.daemons())


def is_serving(facts: Json) -> bool:
    """Whether each of the servers serves."""
    return all(facts["servers"][name]["state"] == "serving" for name in SERVERS)


@behaviour("children:escaped")
async def test_no_process_of_eight_servers_that_restart_together_lives_on(daemon: Make) -> None:
    one = daemon({name: with_escaped_helpers() for name in SERVERS}, max_greeting=len(SERVERS))
    before: set[int] = set()
    wanted = PROCESSES * len(SERVERS)
    for at in range(ROUNDS + 1):
        with trio.fail_after(LIMIT_S):
            if at:
                assert [each for each in await one.operate("restart", *SERVERS) if not each["ok"]] == []
            await one.until(is_serving, "all serve")
            await until(partial(gone, before), f"round {at}: what ran before has ended")
            await until(lambda: len(of_servers(one)) == wanted, f"{wanted} processes run")
            before = of_servers(one)
