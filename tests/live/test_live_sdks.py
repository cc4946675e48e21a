"""Agents and servers of the official SDKs side by side: directly, and several at once through carpool.

What an agent saw of every feature of a server must be the same both ways (`tests/kit/sdk_reports.py` has what
may differ).
"""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, Json
from tests.kit.live import Daemon, Make
from tests.kit.sdk_reports import compare, plain, same_announcement, steps_in
from tests.kit.sdks import AGENTS, ASKABLE, SERVERS, entry, lone_steps_of, require_peers, steps_of, tour

NAMES: Final = {"python2": "anna", "python1": "bert", "typescript": "cleo"}


@pytest.fixture(autouse=True)
def _peers() -> None:
    require_peers()


async def tours(
    command_of: Callable[[str], list[str]], daemon: Daemon, steps_for: Callable[[str], list[Json]], where: str
) -> dict[str, Json]:
    """An agent of each SDK at once; their reports."""
    reports: dict[str, Json] = {}
    directory = Path(daemon.base) / where
    directory.mkdir(exist_ok=True)

    async def go(kind: str) -> None:
        reports[kind] = await tour(
            kind,
            NAMES[kind],
            command_of(kind),
            steps_for(NAMES[kind]),
            environ=daemon.environ,
            directory=directory,
        )

    async with trio.open_nursery() as nursery:
        for kind in AGENTS:
            nursery.start_soon(go, kind)
    return reports


_direct: dict[str, dict[str, Json]] = {}


async def direct_tours(server: str, daemon: Daemon) -> dict[str, Json]:
    """Reports of agents that each have this server to themselves, without carpool: it is toured once."""
    if server not in _direct:
        found = await tours(lambda _: SERVERS[server], daemon, lambda name: steps_of(server, name), "direct")
        _direct[server] = found
    return deepcopy(_direct[server])


@behaviour("features:as-direct")
@pytest.mark.parametrize("server", list(SERVERS))
async def test_agents_of_all_sdks_at_once_see_on_one_process_what_each_sees_on_its_own(
    daemon: Make, server: str
) -> None:
    settings: Json = {"sharing": "concurrent" if server == "sdk2" else "serial", "pool": {"max": 1}}
    one = daemon({server: entry(server, wait_s=30, **settings)})
    with trio.fail_after(2 * LIMIT_S):
        direct = await direct_tours(server, one)
        async with one.agent(greet=False) as first:
            # To the very first agent carpool announces what may be there; it has not met the server yet.
            await first.greet("2025-11-25", ASKABLE)
            await first.tools()
        through = await tours(
            lambda _: one.command("connect"), one, lambda name: steps_of(server, name), "through"
        )
        facts = await one.status()
        wrong: list[str] = []
        for kind, name in NAMES.items():
            wrong += same_announcement(kind, direct[kind]["init"], through[kind]["init"])
            wrong += compare(
                kind, steps_of(server, name), plain(kind, direct[kind]), plain(kind, through[kind])
            )
        assert not wrong, "\n".join(wrong)
        assert len(facts["servers"][server]["instances"]) == 1, "one process has served them all"


@pytest.mark.parametrize("server", ["sdk2", "everything"])
async def test_logs_and_updates_reach_the_only_agent_as_they_do_directly(daemon: Make, server: str) -> None:
    one = daemon({server: entry(server)})
    steps = lone_steps_of(server)
    with trio.fail_after(LIMIT_S):
        (one.base / "lone").mkdir()
        reports = [
            await tour("python1", "anna", command, steps, environ=one.environ, directory=one.base / "lone")
            for command in (SERVERS[server], one.command("connect"))
        ]

    def told(report: Json) -> list[Any]:
        """Which notices came in each step; the server writes what it likes into a log line."""
        return [
            [
                [method, params if server != "everything" or "uri" in params else {}]
                for method, params in step["notices"]
                if not method.endswith("list_changed")
            ]
            for step in steps_in(report)
        ]

    kinds = [{method for step in told(report) for method, _ in step} for report in reports]
    assert "notifications/message" in kinds[0], "directly there are logs"
    if server == "sdk2":
        assert told(reports[1]) == told(reports[0])
    else:
        assert kinds[1] == kinds[0] == {"notifications/message", "notifications/resources/updated"}
    answers = [[step.get("answer", step.get("error")) for step in steps_in(report)] for report in reports]
    assert answers[1] == answers[0]
