"""Agents and servers of the official SDKs side by side: directly, and several at once through carpool.

What an agent saw of every feature of a server must be the same both ways. Where it may differ is data here,
each with its reason.
"""

import base64
import json
import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from msgspec import Struct

from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, Json
from tests.kit.live import Daemon, Make
from tests.kit.sdks import AGENTS, ASKABLE, SERVERS, entry, lone_steps_of, require_peers, steps_of, tour

NAMES: Final = {"python2": "anna", "python1": "bert", "typescript": "cleo"}
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_CLOCK = re.compile(r"\d{1,2}:\d{2}:\d{2} [AP]M")
_LISTS: Final = ("tools", "prompts", "resources", "resourceTemplates")


@pytest.fixture(autouse=True)
def _peers() -> None:
    require_peers()


class SdkDifference(Struct, frozen=True):
    """What may differ, and how it is taken out of a report of both sides."""

    reason: str
    remove: Callable[[Json], None]
    agents: tuple[str, ...] = tuple(AGENTS)


def _steps(report: Json) -> list[Json]:
    found: list[Json] = report["steps"]
    return found


def _without_list_changed(report: Json) -> None:
    for step in _steps(report):
        step["notices"] = [each for each in step["notices"] if not each[0].endswith("/list_changed")]


def _without_logs(report: Json) -> None:
    for step in _steps(report):
        step["notices"] = [each for each in step["notices"] if each[0] != "notifications/message"]


def _sorted_lists(report: Json) -> None:
    for step in _steps(report):
        for family in _LISTS:
            if family in step.get("answer", {}):
                step["answer"][family].sort(key=lambda it: str(it["name"]))


def _without_execution(report: Json) -> None:
    for step in _steps(report):
        for tool in step.get("answer", {}).get("tools", []):
            tool.pop("execution", None)


def _own_files_only(report: Json) -> None:
    for step in _steps(report):
        if "resources" in step.get("answer", {}):
            mine = [it for it in step["answer"]["resources"] if "/session/" not in it["uri"]]
            step["answer"]["resources"] = mine


def _without_random(report: Json) -> None:
    report["steps"] = _drawn_anew(_steps(report))


def _drawn_anew(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _blob(it) if key == "blob" else _drawn_anew(it) for key, it in value.items()}
    if isinstance(value, list):
        return [_drawn_anew(it) for it in value]
    return _CLOCK.sub("TIME", _UUID.sub("UUID", value)) if isinstance(value, str) else value


def _blob(value: str) -> str:
    plain_bytes = base64.b64decode(value)
    return value if b"created at" not in plain_bytes else str(_drawn_anew(plain_bytes.decode()))


def _without_progress(report: Json) -> None:
    for step in _steps(report):
        step["progress"] = []


def _without_waiting(report: Json) -> None:
    for step in _steps(report):
        step["progress"] = [told for told in step["progress"] if not _says_it_waits(told)]


def _says_it_waits(told: list[Any]) -> bool:
    return told[0] < 0 and str(told[2]).startswith("Waiting for an instance")


DIFFERENCES: Final = (
    SdkDifference("ids and times that the server draws anew each time", _without_random),
    SdkDifference(
        "an agent hears that a list has changed once and only when it had listed it; a server that others "
        "use as well changes its lists for reasons of theirs",
        _without_list_changed,
    ),
    SdkDifference(
        "a log message says of no call whose it is: nobody's, with several in flight", _without_logs
    ),
    SdkDifference("carpool lists in one stable order, the same after every restart", _sorted_lists),
    SdkDifference("carpool drives tasks itself, so to agents no tool needs one", _without_execution),
    SdkDifference("the server offers what any agent has gzipped to all", _own_files_only),
    SdkDifference(
        "an agent hears that it waits for an instance which serves one at a time", _without_waiting
    ),
    SdkDifference(
        "the TypeScript client drops what progress it reads together with the answer, on a busy machine all",
        _without_progress,
        agents=("typescript",),
    ),
)

ANNOUNCED_OTHERWISE: Final = {
    "tasks": "carpool drives tasks itself and offers agents none",
    "experimental": "empty, and nothing that carpool could carry",
}


def plain(kind: str, report: Json) -> list[Json]:
    """A report of such an agent without what may differ."""
    for difference in DIFFERENCES:
        if kind in difference.agents:
            difference.remove(report)
    return _steps(report)


def compare(kind: str, steps: list[Json], direct: list[Json], through: list[Json]) -> list[str]:
    """What is not the same."""
    wrong = []
    for todo, expected, found in zip(steps, direct, through, strict=True):
        # What nobody offers carpool refuses in its own words: SDKs answer a tool's error for an unknown
        # tool, and codes of their own for an unknown resource.
        unknown = todo.get("unknown") and _failed(expected) and _failed(found)
        if not unknown and expected != found:
            what = f"{todo['method']} {todo['params'].get('name') or todo['params'].get('uri') or ''}"
            wrong.append(f"{kind}: {what}\n  direct  {_short(expected)}\n  through {_short(found)}")
    return wrong


def _failed(step: Json) -> bool:
    return "error" in step or step["answer"].get("isError") is True


def _short(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return text if len(text) < 1500 else f"{text[:1500]}…"


def same_announcement(kind: str, direct: Json, through: Json) -> list[str]:
    """What the greeting through carpool lacks."""
    wrong = []
    expected = {
        name: value for name, value in direct["capabilities"].items() if name not in ANNOUNCED_OTHERWISE
    }
    found = through["capabilities"]
    if set(expected) != set(found):
        wrong.append(f"{kind}: announced {sorted(found)}, not {sorted(expected)}")
    if expected["resources"].get("subscribe", False) != found["resources"].get("subscribe", False):
        wrong.append(f"{kind}: subscribe is {found['resources']}")
    if direct["instructions"].strip() not in through.get("instructions", ""):
        wrong.append(f"{kind}: instructions are {through.get('instructions', '')[:300]!r}")
    return wrong


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
            for step in _steps(report)
        ]

    kinds = [{method for step in told(report) for method, _ in step} for report in reports]
    assert "notifications/message" in kinds[0], "directly there are logs"
    if server == "sdk2":
        assert told(reports[1]) == told(reports[0])
    else:
        assert kinds[1] == kinds[0] == {"notifications/message", "notifications/resources/updated"}
    answers = [[step.get("answer", step.get("error")) for step in _steps(report)] for report in reports]
    assert answers[1] == answers[0]
