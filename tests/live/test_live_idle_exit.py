"""A carpool that an agent has started ends when nobody has used it for `idle_exit_s`."""

from typing import Any

import pytest
import trio

from carpool.control.control_client import ControlClient
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S
from tests.kit.live import Daemon, Make, kit


async def ended(one: Daemon) -> None:
    """Wait until nothing of this carpool runs."""
    while True:
        if not one.running():
            return
        await trio.sleep(0.05)


@behaviour("start:idle")
async def test_it_ends_after_its_last_agent_and_comes_back_with_the_next(daemon: Make) -> None:
    one = daemon({"echo": kit("echo")}, up=False, idle_exit_s=0.3)
    with trio.fail_after(LIMIT_S):
        for text in ("a", "b"):
            async with one.shim() as agent:
                assert await agent.text("echo__echo", {"text": text}) == text
            await ended(one)


@behaviour("start:idle")
async def test_an_operator_who_watches_does_not_keep_it_running(daemon: Make) -> None:
    one = daemon({"echo": kit("echo")}, up=False, idle_exit_s=0.3)
    with trio.fail_after(LIMIT_S):
        async with one.shim() as agent:
            assert await agent.text("echo__echo", {"text": "a"}) == "a"
            watching = ControlClient(str(one.directory), control=True)
        with watching:
            await ended(one)


@behaviour("start:idle")
async def test_a_node_of_a_cluster_ends_too_although_its_own_process_asks_the_broker(daemon: Make) -> None:
    one = daemon({}, up=False)
    cluster = {"url": f"ipc://{one.base}/node", "node": "alpha"}
    one.configure({"echo": kit("echo")}, idle_exit_s=0.3, cluster=cluster)
    with trio.fail_after(LIMIT_S):
        async with one.shim() as agent:
            assert await agent.text("echo__echo", {"text": "a"}) == "a"
        await ended(one)


@behaviour("start:idle")
@pytest.mark.parametrize(
    ("server", "settings"),
    [
        ({"pool": {"min": 1}}, {}),
        ({"auto_connect": True}, {}),
        ({}, {"http": {"port": 0}}),
        ({}, {"idle_exit_s": 0}),
    ],
    ids=["pool.min", "auto_connect", "http", "0"],
)
async def test_one_that_serves_without_agents_goes_on(
    daemon: Make, server: dict[str, Any], settings: dict[str, Any]
) -> None:
    one = daemon({"echo": {**kit("echo"), **server}}, up=False, **{"idle_exit_s": 0.2, **settings})
    with trio.fail_after(LIMIT_S):
        async with one.shim() as agent:
            assert await agent.text("echo__echo", {"text": "x"}) == "x"
        first = await one.until(lambda facts: not facts["sessions"], "the agent has left")
        later = await one.until(
            lambda facts: facts["broker"]["uptime_s"] > first["broker"]["uptime_s"] + 2.5, "time passes"
        )
        assert later["broker"]["pid"] == first["broker"]["pid"]
