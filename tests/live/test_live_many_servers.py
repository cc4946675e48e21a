"""A configuration with hundreds of servers that end at once: carpool comes up, and nobody is silent."""

import trio

from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S
from tests.kit.live import Make, observer

MANY = 900


@behaviour("supervisor:many")
async def test_nine_hundred_servers_that_end_at_once_keep_nobody_from_a_good_one(
    daemon: Make,
) -> None:
    broken = {f"broken{number}": {"command": "/bin/false", "sharing": "session"} for number in range(MANY)}
    one = daemon({"good": observer(), **broken})
    with trio.fail_after(2 * LIMIT_S):
        async with one.agent() as agent:
            for at in range(10):
                assert await agent.text("good__echo", {"text": str(at)}) == str(at)
                await trio.sleep(0.2)
            await one.until(
                lambda facts: sum(each["restarts"] > 0 for each in facts["servers"].values()) > MANY // 10,
                "many of the others were tried",
            )
            assert await agent.text("good__echo", {"text": "last"}) == "last"
        launcher = one.log("launcher")
        assert "ready" in launcher, "the log is there"
        assert "is silent" not in launcher, launcher
        assert "SIGKILL" not in launcher, launcher
