"""Variables of an explicit `carpool up`, for servers that connect when carpool starts."""

import json
import os
import signal

import pytest

from carpool_supervisor import marks
from tests.behaviours import behaviour
from tests.kit.line_agent import Json
from tests.kit.live import Daemon, Make, observer
from tests.kit.waits import until

SERVERS = {
    "auto": observer(env={"TOKEN_A": "${TOKEN_A}"}, auto_connect=True),
    "later": observer(env={"TOKEN_A": "${TOKEN_A}", "TOKEN_B": "${TOKEN_B:-none}"}),
}


def state(facts: Json, name: str) -> str:
    return str(facts["servers"][name]["state"])


async def seen(one: Daemon, server: str, name: str) -> str:
    """The variable in the server, asked by somebody who has none of them."""
    code, said, trouble = await one.carpool(
        "call", f"{server}__environ", "--args", json.dumps({"name": name})
    )
    assert code == 0, trouble
    return said.strip()


@behaviour("path:operator")
@pytest.mark.parametrize("attached", [False, True], ids=["up", "restart --all"])
async def test_an_explicit_start_connects_the_server_also_after_a_death_of_the_broker(
    daemon: Make, attached: bool
) -> None:
    one = daemon(SERVERS, up=False)
    plain = dict(one.environ)
    if attached:
        one.up()
        one.environ |= {"TOKEN_A": "of-the-operator", "TOKEN_B": "b"}
        code, _, trouble = await one.carpool("restart", "--all")
        assert code == 0, trouble
    else:
        one.environ |= {"TOKEN_A": "of-the-operator", "TOKEN_B": "b"}
        one.up()
    one.environ = plain
    facts = await one.until(lambda facts: state(facts, "auto") == "serving", "it is connected")
    assert state(facts, "later") == "unset", "no other server has them"
    assert await seen(one, "auto", "TOKEN_A") == "of-the-operator"
    broker = facts["broker"]["pid"]
    os.kill(broker, signal.SIGKILL)
    await until(lambda: not marks.is_running(broker), "the broker is dead")
    assert await seen(one, "auto", "TOKEN_A") == "of-the-operator"
    facts = await one.until(lambda facts: state(facts, "auto") == "serving", "it is connected still")
    assert state(facts, "later") == "unset"
    await one.carpool("down")


@behaviour("path:operator")
async def test_a_carpool_that_an_agent_has_started_takes_none(daemon: Make) -> None:
    one = daemon({"auto": {**SERVERS["auto"], "pool": {"idle_s": 3}}}, up=False)
    plain = dict(one.environ)
    one.environ |= {"TOKEN_A": "of-the-agent"}
    code, _, trouble = await one.carpool("tools")
    assert code == 0, trouble
    one.environ = plain
    await one.until(lambda facts: state(facts, "auto") == "unset", "its agent left long ago")
    await one.carpool("down")
