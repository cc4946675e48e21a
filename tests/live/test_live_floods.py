"""Servers that write to stdout without end, beside a good one."""

import pytest
import trio

from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S
from tests.kit.live import Make, kit, observer
from tests.kit.waits import until


@behaviour("flood:stdout")
@pytest.mark.parametrize("how", [(), ("--log",)], ids=["junk", "log messages"])
async def test_a_server_that_never_stops_writing_is_read_slowly_and_goes_on_answering(
    daemon: Make, how: tuple[str, ...]
) -> None:
    one = daemon({"good": observer(), "babbling": kit("babbling", *how)})
    with trio.fail_after(LIMIT_S):
        async with one.agent() as agent, one.agent() as other:
            assert await agent.text("babbling__echo", {"text": "first"}) == "first"
            await until(
                lambda: "it is read slowly" in one.log("server-babbling"), "the log tells of it", LIMIT_S
            )
            for at in range(5):
                assert await other.text("good__echo", {"text": str(at)}) == str(at)
            assert await agent.text("babbling__echo", {"text": "last"}) == "last"
