"""Tours of the official TypeScript client through bridges.

Owns the steps of a tour and what they show, and the words in answers that the bridge or carpool chooses.

Knows nothing of: how a bridge is started (`tests.programs.bridges`), what is expected.
"""

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from carpool_protocol.wire.tool_name_resolver import qualify
from tests.kit.live import alive
from tests.kit.private_daemon import until
from tests.kit.sdks import call, tour
from tests.programs.bridges import CANCEL, LISTS, PROGRESS, QUESTIONS
from tests.programs.script import Hook, Json
from tests.programs.stage import BOUND_S, ProgramStage
from tests.programs.test_sdk_clients import STEPS, as_direct

LIST_STEPS: Final = ("list grows", "grown list", "list shrinks")
_UNTOLD_S: Final = 5.0
"""The wait for what a bridge does not pass on: that nothing comes takes time to see."""
_SAID: Final = (
    # A bridge that refuses a question says it in its own words, and carpool says it for the bridge.
    (re.compile(r'"code": -326\d\d, "message": "[^"]*"'), "refused"),
    # fastmcp's proxy names the tool in the text of an error.
    (re.compile(r"'odd__(\w+)'"), r"'\1'"),
)
Name = Callable[[str], str]
through_carpool: Final[Name] = partial(qualify, "odd")


@dataclass(frozen=True)
class BridgeTour:
    """What a client saw of each step of a tour through a bridge."""

    steps: Mapping[str, Json]
    cancelled: bool
    """The cancel of a call has reached the server."""

    def passed(self) -> frozenset[str]:
        """What the bridge has passed on, of `bridges.PASSED_ON`."""
        told = any(
            method == "notifications/tools/list_changed" for method, _ in self.steps["list grows"]["notices"]
        )
        asked = any(method == "elicitation/create" for method, _ in self.steps["question"]["asks"])
        found = {
            LISTS: told and self.lists_new_tool(),
            QUESTIONS: asked and '"accept"' in text(self.steps["question"]),
            PROGRESS: bool(self.steps["progress"]["progress"]),
            CANCEL: self.cancelled,
        }
        return frozenset(name for name, there in found.items() if there)

    def lists_new_tool(self) -> bool:
        """A client that asks again gets the tool that the server has added."""
        return any(each["name"].endswith("grown_1") for each in self.steps["grown list"]["answer"]["tools"])

    def comparable(self, name: Name) -> Json:
        """The observations of the client; tools by the names that carpool gives them."""
        answers: dict[str, Any] = {}
        for feature, step in self.steps.items():
            if "list" in feature and "tools" in step.get("answer", {}):
                answers[feature] = sorted(name(each["name"]) for each in step["answer"]["tools"])
            else:
                answers[feature] = _said(as_direct(step))
        return answers


def travel(stage: ProgramStage, command: list[str], steps: list[Json]) -> list[Json]:
    """The official TypeScript client takes these steps with the server that the command is."""

    async def run() -> Json:
        with trio.fail_after(BOUND_S):
            whole = [*stage.loopback.prefix, *command]
            return await tour(
                "typescript", "tourist", whole, steps, environ=stage.shell_environ(), directory=stage.base
            )

    found: list[Json] = trio.run(run)["steps"]
    return found


def take_tour(stage: ProgramStage, command: list[str], name: Name, passes: frozenset[str]) -> BridgeTour:
    """Every step through a bridge that is said to pass on this."""
    bound = {} if LISTS in passes else {"patience_ms": _UNTOLD_S * 1000}
    steps = {feature: {**make(name), **bound} for feature, make in STEPS.items()}
    cancel = CancelledCall(stage)
    pause = Pause(stage, "cancelled", cancel.look)
    last = [cancel.step(name("slow")), pause.then(call(name("echo"), text="well"))]

    def beside_the_client() -> None:
        cancel.request()
        pause.run()

    with beside(beside_the_client):
        found = travel(stage, command, [*steps.values(), *last])
    return BridgeTour(dict(zip(steps, found[: len(steps)], strict=True)), cancel.seen)


def _said(step: Json) -> Json:
    """The step without the words that a bridge or carpool chooses."""
    for content in step.get("answer", {}).get("content", ()):
        for pattern, word in _SAID:
            if "text" in content:
                content["text"] = pattern.sub(word, content["text"])
    return step


def text(step: Json) -> str:
    """The text of an answer, or the words of an error."""
    return " ".join(each.get("text", "") for each in step.get("answer", {}).get("content", ())) or str(step)


@contextmanager
def beside(act: Callable[[], object]) -> Iterator[threading.Thread]:
    """Let this happen in a thread of its own, during the block."""
    acting = threading.Thread(target=act)
    acting.start()
    yield acting
    acting.join()


class CancelledCall:
    """A call of `slow` that the client cancels once the server has it."""

    def __init__(self, stage: ProgramStage) -> None:
        self.seen = False
        """The server has read the cancel."""
        self._stage = stage
        self._request = stage.base / "cancel-now"
        self._gate = stage.base / "slow-call-ends"

    def step(self, tool: str) -> Json:
        """The call, which this tool makes."""
        return {**call(tool, until=str(self._gate)), "cancel_at": str(self._request)}

    def request(self) -> None:
        """Let the client cancel once the call has reached the server."""
        try:
            until(self.is_called, "the slow call has reached the server", BOUND_S)
        finally:
            self._request.touch()

    def look(self) -> None:
        """Wait for the cancel at the server while the client is there, and end the call.

        A bridge may end the session of a call, and so the server's process, before it has read the cancel.
        """
        try:
            until(self._is_cancelled, "the server reads the cancel", _UNTOLD_S)
        except AssertionError:
            self.seen = False
        else:
            self.seen = True
        finally:
            self._gate.touch()

    def is_called(self) -> bool:
        """The call has reached the server."""
        return bool(self._calls())

    def _calls(self) -> list[Json]:
        return [each for each in self._stage.events("odd", "call") if each["tool"] == "slow"]

    def _is_cancelled(self) -> bool:
        calls = self._calls()
        ids = [each["id"] for each in calls]
        read = any(each["id"] in ids for each in self._stage.events("odd", "cancelled"))
        return read or not any(alive(each["pid"]) for each in calls)


class Pause:
    """A place between two steps, where something happens once the client has the answers before."""

    def __init__(self, stage: ProgramStage, name: str, act: Hook) -> None:
        self._act = act
        self._file = stage.base / f"pause-{name}"

    def then(self, step: Json) -> Json:
        """This step, once it has happened."""
        return {**step, "after": str(self._file)}

    def run(self) -> None:
        """Wait until the client has come here, and let it happen."""
        try:
            until(Path(f"{self._file}.reached").exists, "the calls before are answered", BOUND_S)
            self._act()
        finally:
            self._file.touch()
