"""Every mix of eras: agents of both on one process of a server of either see what its own agent sees."""

import sys
from pathlib import Path
from typing import Final

import pytest
import trio

from tests.behaviours import behaviour
from tests.kit.era_matrix import BOTH_ERAS, MATRIX, Era, bar_of, differences, failed, features, play, player
from tests.kit.line_agent import LIMIT_S, Json
from tests.kit.live import Make
from tests.kit.scripted_agents import plain
from tests.kit.sdks import require_peers, tour

AGENTS: Final[dict[str, Era]] = {
    "anna": "handshake",
    "bert": "stateless",
    "cleo": "handshake",
    "dora": "stateless",
}


@pytest.fixture(autouse=True)
def _peers() -> None:
    require_peers()


@behaviour("eras:every-mix", "asks:own-agent")
@pytest.mark.parametrize("column", list(MATRIX))
async def test_agents_of_both_eras_at_once_see_on_one_process_what_its_own_agent_sees(
    daemon: Make, column: str
) -> None:
    server = MATRIX[column]
    entry = server.entry(sharing=server.sharing, pool={"max": 1}, wait_s=30)
    one = daemon({column: entry})
    wrong: list[str] = []

    async def go(name: str) -> None:
        steps = server.steps(name)
        bar = await bar_of(server, name)
        for step, expected in zip(steps, bar, strict=True):
            assert server.steps is not features or failed(expected) == step.get("fails", False), expected
        async with one.shim(greet=False) as agent:
            seen = await play(await player(agent, AGENTS[name], name, through=True), steps)
        wrong.extend(differences(f"{name} ({AGENTS[name]})", steps, bar, seen))

    with trio.fail_after(2 * LIMIT_S):
        async with trio.open_nursery() as nursery:
            for name in AGENTS:
                nursery.start_soon(go, name)
        facts = await one.status()
    assert not wrong, "\n".join(wrong)
    assert len(facts["servers"][column]["instances"]) == 1, "one process has served them all"


@behaviour("eras:match", "eras:every-mix", "asks:own-agent")
async def test_with_default_settings_each_agent_sees_of_a_server_of_both_eras_what_it_sees_directly(
    daemon: Make,
) -> None:
    bars = {MATRIX[column].era: MATRIX[column] for column in ("sdk2-legacy", "sdk2-modern")}
    one = daemon({"both": {"command": sys.executable, "args": [BOTH_ERAS], "tools_prefix": ""}})
    wrong: list[str] = []

    async def go(name: str, era: Era) -> None:
        steps, bar = features(name), await bar_of(bars[era], name)
        async with one.shim(greet=False) as agent:
            seen = await play(await player(agent, era, name, through=True), steps)
        wrong.extend(differences(f"{name} ({era})", steps, bar, seen))

    with trio.fail_after(2 * LIMIT_S):
        async with trio.open_nursery() as nursery:
            for name, era in AGENTS.items():
                nursery.start_soon(go, name, era)
        facts = await one.status()
    assert not wrong, "\n".join(wrong)
    eras = [each["era"] for each in facts["servers"]["both"]["instances"]]
    assert eras.count("stateless") == 1, "one process serves all stateless agents"


# --- the official client in each of its modes ------------------------------------------------------------

MODES: Final = {"legacy": "2025-11-25", "auto": "2026-07-28", "2026-07-28": "2026-07-28"}
"""Mode of the SDK's client to the version that it speaks with carpool."""


def _as_seen(mode: str, step: Json, seen: Json) -> Json:
    """A step of the SDK's report in the words of a player's."""
    report: Json = {"asks": sorted(seen["asks"], key=str), "progress": seen["progress"]}
    for _, params in report["asks"]:
        params.pop("elicitationId", None)
    if "error" in seen:
        return {**report, "error": seen["error"]["code"]}
    if mode == "legacy":  # the SDK's models have the members of the later era, with their defaults
        own = ("resultType", "ttlMs", "cacheScope")
        return {**report, "answer": {key: each for key, each in seen["answer"].items() if key not in own}}
    return {**report, "answer": plain(step["method"], seen["answer"], own=True)}


@pytest.mark.parametrize("column", ["sdk2-legacy", "sdk2-modern"])
async def test_the_official_client_in_each_mode_sees_what_the_servers_own_agent_sees(
    daemon: Make, column: str
) -> None:
    server = MATRIX[column]
    one = daemon({column: server.entry(sharing="concurrent", pool={"max": 1})})
    # The peers' agent writes words into every field.
    every = features("anna")
    wanted = [not step.get("fails") and not step.get("form") for step in every]
    steps = [step for step, want in zip(every, wanted, strict=True) if want]
    wrong: list[str] = []
    directory = Path(one.base) / "clients"
    directory.mkdir()
    with trio.fail_after(2 * LIMIT_S):
        async with one.agent() as first:
            await first.tools()
        bar = [seen for seen, want in zip(await bar_of(server, "anna"), wanted, strict=True) if want]
        for mode, version in MODES.items():
            report = await tour(
                "python2",
                "anna",
                one.command("connect"),
                steps,
                environ=one.environ,
                directory=directory,
                mode=mode,
            )
            assert report["init"]["version"] == version
            seen = [_as_seen(mode, step, each) for step, each in zip(steps, report["steps"], strict=True)]
            wrong += differences(f"the client in mode {mode}", steps, bar, seen)
    assert not wrong, "\n".join(wrong)
