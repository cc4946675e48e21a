"""Reports of agents on the official SDKs, compared: what one saw directly and what one saw through carpool.

Owns what may differ, as data, each with its reason. Knows nothing of: how agents and carpools run.
"""

import base64
import json
import re
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from tests.kit.line_agent import Json
from tests.kit.sdks import AGENTS

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_CLOCK = re.compile(r"(?<=created at )[^\n]+")  # in the form of the locale
_LISTS: Final = ("tools", "prompts", "resources", "resourceTemplates")


class SdkDifference(Struct, frozen=True):
    """A difference that is allowed. `remove` takes it out of a report, of both sides alike."""

    reason: str
    remove: Callable[[Json], None]
    agents: tuple[str, ...] = tuple(AGENTS)


def steps_in(report: Json) -> list[Json]:
    """Return the steps of a report."""
    found: list[Json] = report["steps"]
    return found


def _without_list_changed(report: Json) -> None:
    for step in steps_in(report):
        step["notices"] = [each for each in step["notices"] if not each[0].endswith("/list_changed")]


def _without_logs(report: Json) -> None:
    for step in steps_in(report):
        step["notices"] = [each for each in step["notices"] if each[0] != "notifications/message"]


def _sorted_lists(report: Json) -> None:
    for step in steps_in(report):
        for family in _LISTS:
            if family in step.get("answer", {}):
                step["answer"][family].sort(key=lambda it: str(it["name"]))


def _without_execution(report: Json) -> None:
    for step in steps_in(report):
        for tool in step.get("answer", {}).get("tools", []):
            tool.pop("execution", None)


def _own_files_only(report: Json) -> None:
    for step in steps_in(report):
        if "resources" in step.get("answer", {}):
            mine = [it for it in step["answer"]["resources"] if "/session/" not in it["uri"]]
            step["answer"]["resources"] = mine


def _without_random(report: Json) -> None:
    report["steps"] = without_random(steps_in(report))


def without_random(value: Any) -> Any:
    """Return the value with one word in place of each time, and of each id that is drawn anew."""
    if isinstance(value, dict):
        return {key: _blob(it) if key == "blob" else without_random(it) for key, it in value.items()}
    if isinstance(value, list):
        return [without_random(it) for it in value]
    return _CLOCK.sub("TIME", _UUID.sub("UUID", value)) if isinstance(value, str) else value


def _blob(value: str) -> str:
    plain_bytes = base64.b64decode(value)
    return value if b"created at" not in plain_bytes else str(without_random(plain_bytes.decode()))


def _without_progress(report: Json) -> None:
    for step in steps_in(report):
        step["progress"] = []


def _without_waiting(report: Json) -> None:
    for step in steps_in(report):
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
    """Return the steps of a report without what may differ for an agent of this kind. Changes the report."""
    for difference in DIFFERENCES:
        if kind in difference.agents:
            difference.remove(report)
    return steps_in(report)


def compare(kind: str, steps: list[Json], direct: list[Json], through: list[Json]) -> list[str]:
    """Return a line for each step that is not the same."""
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
    """Return a line for each thing that the greeting through carpool lacks."""
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
