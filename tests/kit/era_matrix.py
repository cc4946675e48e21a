"""The matrix of eras: servers, what agents of either era do with them, and what may differ from the bar.

The bar of a server is an agent of the server's own era that has it to itself, without carpool. Where an
agent through carpool may see something else is data here, each with its reason. Knows nothing of daemons.
"""

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, Final, Literal

import trio
from msgspec import Struct

from tests.kit.line_agent import Json, LineAgent, spoken
from tests.kit.scripted_agents import ScriptedAgent, ScriptedHandshakeAgent, ScriptedStatelessAgent
from tests.kit.sdk_reports import without_random
from tests.kit.sdks import SERVERS, call, do, steps_of

BOTH_ERAS: Final = str(Path(__file__).parent / "servers" / "both_eras.py")
Era = Literal["handshake", "stateless"]
_LISTS: Final = ("tools", "prompts", "resources", "resourceTemplates")
_ROUND: Final = "test_input_required_result_"


class MatrixServer(Struct, frozen=True):
    """One column of the matrix: how it is started, its era, and how many may share a process of it."""

    argv: list[str]
    era: Era
    sharing: str = "serial"
    steps: Callable[[str], list[Json]] = lambda _: []

    def entry(self, **settings: Any) -> Json:
        spoken_era = "modern" if self.era == "stateless" else "legacy"
        command, *args = self.argv
        return {"command": command, "args": args, "tools_prefix": "", "era": spoken_era, **settings}


FORMS: Final = (
    *("elicitation_sep1034_defaults", "elicitation_sep1330_enums", "streaming_elicitation"),
    "input_required_result_request_state",
)
"""Tools whose forms want more than words."""


def features(name: str) -> list[Json]:
    """Every feature of `tests/kit/servers/both_eras.py` that several agents can use at once."""
    return [
        *(do(f"{family}/list") for family in ("tools", "prompts", "resources", "resources/templates")),
        *(
            call(f"test_{kind}")
            for kind in (
                *("simple_text", "image_content", "audio_content", "embedded_resource"),
                *("multiple_content_types", "missing_capability"),
            )
        ),
        {**call("test_error_handling"), "fails": True},
        *({**call(f"test_{tool}"), "form": True, "progress": True} for tool in FORMS),
        call("json_schema_2020_12_tool", contactMethod="email", address={"city": name}),
        {**call("none"), "unknown": True, "fails": True},
        call("add", a=2, b=3),
        {**call("add", a="two"), "fails": True},
        {**call("test_tool_with_progress"), "progress": True},
        call("test_sampling", prompt=f"{name} ☂\n\u2028"),
        call("test_elicitation", message=name),
        call("visit", text=name),
        *(call(f"{_ROUND}{kind}") for kind in ("elicitation", "sampling", "tampered_state", "multi_round")),
        call(f"{_ROUND}capabilities"),
        do("prompts/get", name="test_simple_prompt"),
        do("prompts/get", name="test_prompt_with_arguments", arguments={"arg1": name, "arg2": "é"}),
        {**do("prompts/get", name="test_prompt_with_arguments", arguments={"arg1": name}), "fails": True},
        do("prompts/get", name="test_prompt_with_embedded_resource", arguments={"resourceUri": "x://y"}),
        do("prompts/get", name="test_prompt_with_image"),
        do("prompts/get", name=f"{_ROUND}prompt"),
        do("resources/read", uri="test://static-text"),
        do("resources/read", uri="test://static-binary"),
        do("resources/read", uri=f"test://template/{name}/data"),
        {**do("resources/read", uri="test://none"), "unknown": True, "fails": True},
        do(
            "completion/complete",
            ref={"type": "ref/prompt", "name": "test_prompt_with_arguments"},
            argument={"name": "arg1", "value": "par"},
        ),
    ]


def _of_both_kinds(server: str) -> Callable[[str], list[Json]]:
    """The steps of `tests.kit.sdks` that agents of both eras can play."""
    only_handshake = ("resources/subscribe", "resources/unsubscribe", "logging/setLevel", "ping")

    def steps(name: str) -> list[Json]:
        return [
            {key: each for key, each in step.items() if key != "until"}
            for step in steps_of(server, name)
            if step["method"] not in only_handshake and step["params"].get("name") != "touch"
        ]

    return steps


MATRIX: Final[dict[str, MatrixServer]] = {
    "sdk2-legacy": MatrixServer(
        [sys.executable, BOTH_ERAS, "--era", "legacy"], "handshake", "concurrent", features
    ),
    "sdk2-modern": MatrixServer(
        [sys.executable, BOTH_ERAS, "--era", "modern"], "stateless", "concurrent", features
    ),
    "sdk1": MatrixServer(SERVERS["sdk1"], "handshake", steps=_of_both_kinds("sdk1")),
    "everything": MatrixServer(SERVERS["everything"], "handshake", steps=_of_both_kinds("everything")),
}


# --- what may differ -----------------------------------------------------------------------------------


def _anew(seen: Json) -> None:
    seen.update(without_random(seen))


def _in_order(seen: Json) -> None:
    for family in _LISTS:
        if family in seen.get("answer", {}):
            seen["answer"][family].sort(key=lambda it: str(it["name"]))


def _no_execution(seen: Json) -> None:
    for tool in seen.get("answer", {}).get("tools", []):
        tool.pop("execution", None)


def _own_files(seen: Json) -> None:
    if "resources" in seen.get("answer", {}):
        mine = [it for it in seen["answer"]["resources"] if "/session/" not in it["uri"]]
        seen["answer"]["resources"] = mine


def _no_waiting(seen: Json) -> None:
    seen["progress"] = [told for told in seen["progress"] if told[0] >= 0]


def _told_again(seen: Json) -> None:
    if seen["asks"]:
        seen["progress"] = [message for _, _, message in seen["progress"]]


class MatrixDifference(Struct, frozen=True):
    """What may differ from the bar, and how it is taken out of both sides."""

    reason: str
    remove: Callable[[Json], None]


DIFFERENCES: Final = (
    MatrixDifference("ids, times and blobs of them that the server draws anew each time", _anew),
    MatrixDifference("carpool lists in one stable order", _in_order),
    MatrixDifference("carpool drives tasks itself, so to agents no tool needs one", _no_execution),
    MatrixDifference("the server offers what any agent has gzipped to all", _own_files),
    MatrixDifference("an agent hears that it waits for an instance that serves one at a time", _no_waiting),
    MatrixDifference(
        "what is told again in a later round of a call has a higher value through carpool", _told_again
    ),
)


def differences(who: str, steps: list[Json], bar: list[Json], seen: list[Json]) -> list[str]:
    """What an agent saw otherwise than the bar."""
    wrong = []
    for step, expected, found in zip(steps, deepcopy(bar), deepcopy(seen), strict=True):
        values = [told[0] for told in found["progress"]]
        assert values == sorted(set(values)), (step, "its progress does not rise", values)
        for each in DIFFERENCES:
            each.remove(expected)
            each.remove(found)
        if step.get("unknown") and failed(expected) and failed(found):
            continue
        if expected != found:
            what = f"{step['method']} {step['params'].get('name') or step['params'].get('uri') or ''}"
            wrong.append(f"{who}: {what}\n  bar   {_short(expected)}\n  found {_short(found)}")
    return wrong


def failed(seen: Json) -> bool:
    return "error" in seen or seen["answer"].get("isError") is True


def _short(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return text if len(text) < 1200 else f"{text[:1200]}…"


# --- players -------------------------------------------------------------------------------------------


@asynccontextmanager
async def alone_with(argv: list[str]) -> AsyncIterator[LineAgent]:
    """A server of one's own, over its pipes; it ends with its stdin."""
    process = await trio.lowlevel.open_process(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with spoken(process.stdin, process.stdout, process.pid) as agent:
            yield agent
        with trio.move_on_after(10):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


async def player(agent: LineAgent, era: Era, name: str, *, through: bool) -> ScriptedAgent:
    """An agent of this era, ready to play."""
    if era == "stateless":
        return ScriptedStatelessAgent(agent, name, through=through)
    one = ScriptedHandshakeAgent(agent, name, through=through)
    await one.greet()
    return one


async def play(one: ScriptedAgent, steps: list[Json]) -> list[Json]:
    return [await one.do(step) for step in steps]


_bars: dict[tuple[str, ...], list[Json]] = {}


async def bar_of(server: MatrixServer, name: str) -> list[Json]:
    """What an agent of the server's own era sees that has it to itself. It has it once."""
    key = (*server.argv, name)
    if key not in _bars:
        async with alone_with(server.argv) as agent:
            _bars[key] = await play(await player(agent, server.era, name, through=False), server.steps(name))
    return deepcopy(_bars[key])
