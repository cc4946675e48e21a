"""Agents of the official SDKs at the HTTP door: they see there what each sees on its own."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Final

import pytest
import trio

from tests.behaviours import behaviour
from tests.kit.era_matrix import MATRIX, features
from tests.kit.line_agent import LIMIT_S, Json
from tests.kit.live import Daemon, Make
from tests.kit.open_door import open_door
from tests.kit.private_daemon import until
from tests.kit.sdk_reports import compare, plain, same_announcement
from tests.kit.sdks import ASKABLE, SERVERS, call, entry, lone_steps_of, require_peers, steps_of, tour
from tests.live.test_live_sdks import NAMES, direct_tours

TRANSPORTS: Final = ("streamable", "sse")


@pytest.fixture(autouse=True)
def _peers() -> None:
    require_peers()


def url_of(daemon: Daemon, transport: str, server: str) -> str:
    """Where agents go. The transport of 2024-11-05 has all servers at one place."""
    file = daemon.directory / "http.json"
    until(file.exists, "the door listens")
    url: str = json.loads(file.read_text())["url"]
    return f"{url.removesuffix('/mcp')}/sse" if transport == "sse" else f"{url}/s/{server}"


@behaviour("features:as-direct")
@pytest.mark.parametrize("server", ["sdk2", "everything"])
async def test_agents_of_all_sdks_see_over_http_what_each_sees_on_its_own(daemon: Make, server: str) -> None:
    sharing = "concurrent" if server == "sdk2" else "serial"
    settings: Json = {"sharing": sharing, "pool": {"max": 1}, "wait_s": 30}
    one = daemon({server: entry(server, **settings)}, http=open_door())
    with trio.fail_after(3 * LIMIT_S):
        direct = await direct_tours(server, one)
        async with one.agent(greet=False) as first:
            # To the very first agent carpool announces what may be there; it has not met the server yet.
            await first.greet("2025-11-25", ASKABLE)
            await first.tools()
        wrong: list[str] = []
        for transport in TRANSPORTS:
            reports, own = await tours_over(one, transport, server), deepcopy(direct)  # `plain` changes it
            for kind, name in NAMES.items():
                found = same_announcement(kind, own[kind]["init"], reports[kind]["init"])
                found += compare(
                    kind, steps_of(server, name), plain(kind, own[kind]), plain(kind, reports[kind])
                )
                wrong += [f"{transport}: {each}" for each in found]
            await one.until(lambda status: not status["sessions"], "their sessions have ended with them")
        assert not wrong, "\n".join(wrong)


async def tours_over(one: Daemon, transport: str, server: str) -> dict[str, Json]:
    """An agent of each SDK at once, over HTTP; their reports."""
    url = url_of(one, transport, server)
    reports: dict[str, Json] = {}

    async def go(kind: str) -> None:
        reports[kind] = await tour(
            kind,
            NAMES[kind],
            SERVERS[server],
            steps_of(server, NAMES[kind]),
            environ=one.environ,
            directory=Path(one.base),
            url=url,
            transport=transport,
        )

    async with trio.open_nursery() as nursery:
        for kind in NAMES:
            nursery.start_soon(go, kind)
    return reports


async def test_logs_and_updates_reach_the_only_agent_over_http(daemon: Make) -> None:
    one = daemon({"sdk2": entry("sdk2")}, http=open_door())
    with trio.fail_after(2 * LIMIT_S):
        for transport in TRANSPORTS:
            report = await tour(
                "python1",
                "anna",
                SERVERS["sdk2"],
                lone_steps_of("sdk2"),
                environ=one.environ,
                directory=Path(one.base),
                url=url_of(one, transport, "sdk2"),
                transport=transport,
            )
            told = [[method for method, _ in step["notices"]] for step in report["steps"]]
            assert ["notifications/message"] in told, (transport, told)
            await one.until(lambda status: not status["sessions"], "its session has ended with it")


async def test_the_official_client_sees_over_http_what_it_sees_over_stdio_in_the_stateless_era(
    daemon: Make,
) -> None:
    column = "sdk2-modern"
    one = daemon(
        {column: MATRIX[column].entry(sharing="concurrent", pool={"max": 1})},
        http=open_door(),
    )
    steps = [step for step in features("anna") if not step.get("form")]
    reports = []
    with trio.fail_after(LIMIT_S):
        for more in ({}, {"url": url_of(one, "streamable", column)}):
            directory = Path(one.base) / f"mode{len(more)}"
            directory.mkdir()
            reports.append(
                await tour(
                    "python2",
                    "anna",
                    one.command("connect"),
                    steps,
                    environ=one.environ,
                    directory=directory,
                    mode="auto",
                    **more,
                )
            )
    assert reports[0]["init"]["version"] == reports[1]["init"]["version"] == "2026-07-28"
    assert not compare("python2", steps, plain("python2", reports[0]), plain("python2", reports[1])), (
        "over HTTP it is the same"
    )


async def test_each_agent_over_http_names_its_own_roots(daemon: Make) -> None:
    one = daemon({"sdk2": entry("sdk2", roots="agent")}, http=open_door())
    found: dict[str, list[str]] = {}

    async def go(kind: str) -> None:
        report = await tour(
            kind,
            NAMES[kind],
            SERVERS["sdk2"],
            [call("roots")],
            environ=one.environ,
            directory=Path(one.base),
            url=url_of(one, "streamable", "sdk2"),
            roots=[f"file:///tmp/{kind}"],
        )
        told = json.loads(report["steps"][0]["answer"]["content"][0]["text"])
        found[kind] = [each["uri"] for each in told]

    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            for kind in NAMES:
                nursery.start_soon(go, kind)
    assert found == {kind: [f"file:///tmp/{kind}"] for kind in NAMES}
