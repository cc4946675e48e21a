"""Readings for tests and the picture of `carpool top`, as a broker with three servers answers.

`python -m tests.kit.top_readings > docs/top.svg` makes the picture.
"""

import asyncio
import re
import sys
from math import sin
from typing import Any

from carpool.readings.live_view import Reading
from carpool.top.app import TopApp
from carpool.top.feed import BrokerFeed
from carpool_protocol.counters.call_counts import CallCounts
from carpool_protocol.counters.snapshot import CountedAgent, CounterRow, CountersSnapshot

AGENT = CountedAgent("coder", "", "", "shim")


def instance(number: int, **more: Any) -> dict[str, Any]:
    found = {"id": number, "pid": 4700 + number, "state": "serving", "in_flight": 0, "calls": 7, "holder": ""}
    return {**found, "pss_bytes": 30 << 20, "cpu_percent": 3.0, **more}


def server(state: str, *instances: dict[str, Any], **more: Any) -> dict[str, Any]:
    found = {
        "state": state,
        "sharing": "concurrent",
        "tools": 5,
        "restarts": 0,
        "waiting": 0,
        "paused": False,
    }
    return {**found, "last_error": "", "well": state == "serving", "instances": list(instances), **more}


def session(name: str, **more: Any) -> dict[str, Any]:
    found = {"id": name, "agent": "coder", "carrier": "shim", "principal": "", "pid": 99, "in_flight": 0}
    return {**found, "calls": 12, **more}


def status_of(**servers: dict[str, Any]) -> dict[str, Any]:
    known = servers or {
        "browser": server("serving", instance(3, holder="s2", in_flight=1), sharing="session"),
        "git": server("serving", instance(1, in_flight=2), instance(2), waiting=1),
        "jira": server("breaker_open", last_error="ended with exit code 1: JIRA_TOKEN is not set"),
    }
    return {
        "servers": known,
        "sessions": [session("s1", in_flight=2), session("s2", agent="tester", in_flight=1)],
        "totals": {"sessions": 2, "instances": 3, "in_flight": 3, "memory_saved_bytes": 420 << 20},
    }


def counted(run: str, age_s: float, calls: dict[tuple[str, str], int], errors: int = 0) -> CountersSnapshot:
    rows = []
    for (name, tool), number in calls.items():
        counts = CallCounts(calls=number, answers=number - errors, errors={"timed_out": errors})
        for _ in range(counts.answers):
            counts.total.observe(0.012)
        rows.append(CounterRow(AGENT, name, tool, counts))
    return CountersSnapshot(enabled=True, run=run, since="", age_s=age_s, rows=rows)


THERE: dict[str, Any] = {
    "node": "alpha", "state": "reached", "opened": 2, "served": 1, "open_calls": 4, "load": 7,
    "labels": ["gpu"], "version": "0.1.0", "servers": ["git", "browser"], "latency_s": 0.012,
    "clock_ahead_s": -0.5,
}  # fmt: skip
HERE: dict[str, Any] = {
    "node": "beta", "state": "this one", "open_calls": 0, "load": 1, "labels": [], "version": "0.1.0",
    "servers": [],
}  # fmt: skip
CLUSTER: dict[str, Any] = {
    "name": "garage",
    "node": "beta",
    "url": "nats://127.0.0.1:4222",
    "is_up": True,
    "problem": "",
    "is_draining": False,
    "has_namesake": False,
    "own": HERE,
    "nodes": [THERE],
    "silent": [{"node": "gamma", "for_s": 90.0}],
    "servers": {"git-alpha": ["alpha"]},
}
"""The section `cluster` of `carpool status --json`, with another node and a silent one."""


def call(name: str, **more: Any) -> dict[str, Any]:
    found = {"call": name, "state": "running", "age_s": 3.2, "server": "git", "tool": "log", "session": "s1"}
    return {**found, "agent": "coder", "instance": 1, "waits_for": "", **more}


def reading(
    at: float,
    calls: int,
    *,
    run: str = "r",
    status: dict[str, Any] | None = None,
    open_calls: list[dict[str, Any]] | None = None,
) -> Reading:
    """A reading at a time, after so many calls of one tool."""
    counters = counted(run, at, {("git", "log"): calls})
    return Reading(status or status_of(), counters, open_calls or [call("c17")], 0.004)


class PictureFeed(BrokerFeed):
    """The first reading of the picture in the README."""

    def __init__(self) -> None:
        super().__init__("/nowhere", "/nowhere")

    def read(self) -> Reading:
        return _busy(1)


def _busy(second: int) -> Reading:
    """The reading of a second in which three servers are called, one of them in waves."""
    calls = {
        ("git", "log"): 40 * second + round(300 * sin(second / 6)),
        ("git", "diff"): 11 * second,
        ("browser", "open"): 2 * second,
        ("jira", "search"): 0,
    }
    return Reading(status_of(), counted("r", float(second), calls), [call("c17")], 0.004)


async def picture() -> str:
    """Return the picture of the view as SVG."""
    app = TopApp(PictureFeed(), lambda _: "serving; not well: jira", interval_s=3600.0)
    async with app.run_test(size=(80, 20)) as pilot:
        while app.view.now is None:
            await pilot.pause(0.01)
        for second in range(2, 62):
            app.show_reading(_busy(second))
        await pilot.press("down")
        await pilot.pause()
        drawn = app.export_screenshot(title="carpool top")
    return re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)  # nothing is fetched from elsewhere


if __name__ == "__main__":
    sys.stdout.write(asyncio.run(picture()))
