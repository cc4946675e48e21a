"""SIGSTOP of each of our own parts, and SIGCONT: a frozen peer is not a dead one, and loses nothing.

What is frozen is so for as long as others wait for something that it must do; nobody sleeps here.
That a longer silence changes nothing is the vigil's and the peers' (tests/client/launcher/test_launcher.py,
tests/protocol/link/test_peer.py).
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import trio

from carpool_supervisor import marks
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, Json, LineAgent
from tests.kit.live import Daemon, Make, observer


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def launcher(one: Daemon, _: Json) -> int:
    [pid] = [pid for pid, line in one.running().items() if "carpool.launcher" in line]
    return pid


def broker(_: Daemon, facts: Json) -> int:
    pid: int = facts["broker"]["pid"]
    return pid


def supervisor(_: Daemon, facts: Json) -> int:
    pid: int = facts["supervisors"][0]["pid"]
    return pid


def spawner(one: Daemon, facts: Json) -> int:
    [pid] = [child for child in one.running() if marks.parent_of(child) == supervisor(one, facts)]
    return pid


def instance(_: Daemon, facts: Json) -> int:
    pid: int = facts["servers"]["good"]["instances"][0]["pid"]
    return pid


PARTS = [launcher, broker, supervisor, spawner, instance]
Part = Callable[[Daemon, Json], int]

SERVING: dict[Part, str] = {
    launcher: "good__echo", spawner: "good__echo", instance: "other__echo", broker: "", supervisor: "",
}  # fmt: skip
"""A tool that is answered while this part is frozen."""


async def answered(agent: LineAgent, ids: list[bytes], text: str) -> None:
    for id_ in ids:
        assert (await agent.answer(id_))["result"]["content"][0]["text"] == text


@behaviour("faults:frozen")
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
async def test_a_part_that_was_frozen_goes_on_where_it_was(daemon: Make, part: Part) -> None:
    one = daemon({"good": observer(), "other": observer()})
    with trio.fail_after(LIMIT_S):
        async with one.agent() as agent, one.shim() as behind:
            both = (agent, behind)
            held = [await each.start("good__wait", {"gate": "held"}) for each in both]
            await agent.inside("good", 2)
            await agent.seen("other")
            before = await one.status()
            with frozen(part(one, before)):
                asked = [await each.start("good__echo", {"text": "on"}) for each in both]
                if SERVING[part]:
                    assert await agent.text(SERVING[part], {"text": "meanwhile"}) == "meanwhile"
            for each, echo, wait in zip(both, asked, held, strict=True):
                await answered(each, [echo], "on")
                await agent.call("good__open", {"gate": "held"})
                await answered(each, [wait], "opened")
            after = await one.status()
            assert [each(one, after) for each in PARTS] == [each(one, before) for each in PARTS]


@behaviour("faults:frozen")
async def test_a_frozen_shim_holds_up_its_own_agent_only_and_loses_nothing(daemon: Make) -> None:
    one = daemon({"good": observer()})
    with trio.fail_after(LIMIT_S):
        async with one.agent() as agent, one.shim() as behind:
            held = await behind.start("good__wait", {"gate": "held"})
            await agent.inside("good", 1)
            with frozen(behind.pid):
                echo = await behind.start("good__echo", {"text": "on"})
                await agent.call("good__open", {"gate": "held"})
                assert await agent.text("good__echo", {"text": "meanwhile"}) == "meanwhile"
                assert len((await one.status())["sessions"]) == 2
            await answered(behind, [held], "opened")
            await answered(behind, [echo], "on")
