"""Servers that people have reported as broken behind other proxies, each behind a real carpool."""

import trio

from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S
from tests.kit.live import Make, kit


@behaviour("progress:asked-for")
async def test_a_call_that_reports_progress_outlives_its_timeout_although_its_agent_asked_for_none(
    daemon: Make,
) -> None:
    one = daemon({"slow": kit("slow", timeout_s=4)})
    with trio.fail_after(LIMIT_S):
        async with one.shim() as agent:
            arguments = {"times": 16, "delay_s": 0.5}
            assert await agent.text("slow__progress", arguments) == "progress done"
            assert not any("notifications/progress" in str(line) for line in agent.lines), "it asked for none"
