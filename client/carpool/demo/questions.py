"""The questions of the agents of `carpool demo`, and the check of the answers.

Owns the questions to the two real servers and the check of each answer. Invariant: question K of agent N is
its own (another zone, minute or commit than its neighbours ask for), so an answer that reached the wrong
agent is a wrong answer. Zones are such that keep no summer time: their offsets need no table.

Pure, standard library only: the agents import it. Knows nothing of: processes, retries, clocks.
"""

import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

MODULES = {"time": "mcp_server_time", "git": "mcp_server_git"}
"""Server to the Python module that is it."""

ZONES: list[tuple[str, int]] = [
    ("Asia/Tokyo", 540),
    ("Asia/Kolkata", 330),
    ("America/Phoenix", -420),
    ("Africa/Nairobi", 180),
    ("Asia/Kathmandu", 345),
    ("America/Bogota", -300),
    ("Asia/Dubai", 240),
    ("Pacific/Honolulu", -600),
    ("Asia/Singapore", 480),
    ("Africa/Lagos", 60),
    ("Asia/Dhaka", 360),
    ("Australia/Brisbane", 600),
    ("Asia/Kabul", 270),
    ("Africa/Abidjan", 0),
    ("Asia/Karachi", 300),
    ("Asia/Yangon", 390),
    ("Africa/Johannesburg", 120),
    ("Pacific/Kiritimati", 840),
    ("Asia/Bangkok", 420),
    ("Pacific/Guadalcanal", 660),
]
"""IANA name and minutes east of Greenwich."""

Check = Callable[[str, datetime, datetime], bool]
"""(text of the answer, asked at, answered at; both with a zone) -> it is right."""


class DemoQuestion(NamedTuple):
    """One tool call: the tool by its server's own name, its arguments, and the check of its answer."""

    tool: str
    arguments: dict[str, Any]
    is_right: Check


def question(server: str, agent: int, number: int, repo: str, commits: Sequence[str]) -> DemoQuestion:
    """Question `number` of `agent` to `server` (`time` or `git`). `commits`: hashes, newest first."""
    if server == "time":
        return _now(agent + number) if number % 2 == 0 else _convert(agent, number)
    asked = (_log, _show, _status, _diff)[(agent + number) % 4]
    return asked(agent * 3 + number // 4, repo, commits)


def text_of(result: dict[str, Any]) -> str:
    """All text of a tool's result. Shapes that are no result give what can be had, at worst nothing."""
    content = result.get("content")
    blocks = content if isinstance(content, list) else []
    return "\n".join(str(block.get("text", "")) for block in blocks if isinstance(block, dict))


# --- the time server ------------------------------------------------------------------------------------


def _now(which: int) -> DemoQuestion:
    zone, offset = ZONES[which % len(ZONES)]

    def is_right(text: str, asked: datetime, answered: datetime) -> bool:
        said = _object(text)
        moment = _moment(said.get("datetime"))
        # The server cuts the second off.
        return (
            said.get("timezone") == zone
            and moment is not None
            and moment.utcoffset() == timedelta(minutes=offset)
            and asked - timedelta(seconds=2) <= moment <= answered + timedelta(seconds=1)
        )

    return DemoQuestion("get_current_time", {"timezone": zone}, is_right)


def _convert(agent: int, number: int) -> DemoQuestion:
    source, from_offset = ZONES[agent % len(ZONES)]
    target, to_offset = ZONES[(agent + number) % len(ZONES)]
    minute = (agent * 61 + number * 7) % 1440
    wanted = (minute + to_offset - from_offset) % 1440

    def is_right(text: str, _asked: datetime, _answered: datetime) -> bool:
        said = _object(text)
        sides = [said.get("source"), said.get("target")]
        moments = [_moment(side.get("datetime")) for side in sides if isinstance(side, dict)]
        zones = [side.get("timezone") for side in sides if isinstance(side, dict)]
        times = [each.hour * 60 + each.minute for each in moments if each is not None]
        return zones == [source, target] and times == [minute, wanted]

    arguments = {
        "source_timezone": source,
        "time": f"{minute // 60:02d}:{minute % 60:02d}",
        "target_timezone": target,
    }
    return DemoQuestion("convert_time", arguments, is_right)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _moment(text: object) -> datetime | None:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


# --- the git server: `repository` says what is in the repository -----------------------------------------


def _log(which: int, repo: str, commits: Sequence[str]) -> DemoQuestion:
    count = 1 + which % len(commits)

    def is_right(text: str, _asked: datetime, _answered: datetime) -> bool:
        # These commits and no other, and not what they changed.
        return [each for each in commits if each in text] == list(
            commits[:count]
        ) and "In chapter" not in text

    return DemoQuestion("git_log", {"repo_path": repo, "max_count": count}, is_right)


def _show(which: int, repo: str, commits: Sequence[str]) -> DemoQuestion:
    at = which % len(commits)
    chapter = len(commits) - at

    def is_right(text: str, _asked: datetime, _answered: datetime) -> bool:
        return commits[at] in text and f"Write chapter {chapter}" in text and chapter_line(chapter) in text

    return DemoQuestion("git_show", {"repo_path": repo, "revision": commits[at]}, is_right)


def _status(_which: int, repo: str, _commits: Sequence[str]) -> DemoQuestion:
    def is_right(text: str, _asked: datetime, _answered: datetime) -> bool:
        return "main" in text and "notes.txt" in text and "chapter-1.txt" not in text

    return DemoQuestion("git_status", {"repo_path": repo}, is_right)


def _diff(which: int, repo: str, commits: Sequence[str]) -> DemoQuestion:
    newest = len(commits)
    at = 1 + which % (newest - 1)  # against itself the newest has no difference, and nothing would be checked

    def is_right(text: str, _asked: datetime, _answered: datetime) -> bool:
        # All chapters that were written since, and none that was there already.
        found = [each for each in range(1, newest + 1) if f"+{chapter_line(each)}" in text]
        return found == list(range(newest - at + 1, newest + 1)) and "Author:" not in text

    return DemoQuestion("git_diff", {"repo_path": repo, "target": commits[at]}, is_right)


def chapter_line(chapter: int) -> str:
    """The line of `chapter-<chapter>.txt`, which commit `Write chapter <chapter>` adds."""
    return f"In chapter {chapter:02d} the agents share a ride."
