"""Sums of audit lines by agent, tool or outcome.

Owns which lines make a group and how each outcome counts; the words are those of the counters: an answer, an
error after the call was sent, a refusal of carpool that reached no server. Pure. Refuses to know: files, how
a summary is shown.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any, Literal

from carpool_protocol.faults.kinds import KINDS, LOSSES
from carpool_protocol.faults.outcomes import ANSWERED

Line = Mapping[str, Any]
Grouping = Literal["agent", "tool", "outcome"]


class CallGroup:
    """The calls of one agent, tool or outcome."""

    def __init__(self, key: Mapping[str, str]) -> None:
        self.key = key
        """What the calls have in common, by key of an audit line."""
        self.calls = 0
        self.counts = dict.fromkeys(("answers", "tool_errors", "errors", "refusals", "cancelled"), 0)
        """`tool_errors` are results in which the tool says that it failed, and no `answers`."""
        self.bytes_in = self.bytes_out = 0
        self._durations_s: list[float] = []

    def add(self, line: Line) -> None:
        """Count one call."""
        self.calls += 1
        self.counts[count_of(str(line.get("outcome", "")))] += 1
        self.bytes_in += _whole(line.get("bytes_in"))
        self.bytes_out += _whole(line.get("bytes_out"))
        duration_s = line.get("duration_s")
        if isinstance(duration_s, int | float):
            self._durations_s.append(duration_s)

    def duration_s(self, fraction: float) -> float | None:
        """Return the duration that this fraction of the calls does not exceed; None if none is known."""
        ordered = sorted(self._durations_s)
        return ordered[max(ceil(len(ordered) * fraction), 1) - 1] if ordered else None


class AuditSummary:
    """All groups, and the number of calls that the audit could not write."""

    def __init__(self, lines: Iterable[Line], by: Grouping) -> None:
        self.missed = 0
        groups: dict[tuple[str, ...], CallGroup] = {}
        seen: defaultdict[str, set[str]] = defaultdict(set)
        for line in lines:
            if "missed" in line:
                self.missed += _whole(line["missed"])
                continue
            if "act" in line:
                continue  # an operator's act is no call
            run, call = str(line.get("run", "")), str(line.get("id", ""))
            if line.get("duration_s") is None and call in seen[run]:
                continue  # of a broker that died before its agent had the answer, and of the next one
            seen[run].add(call)
            key = group_key(line, by)
            group = groups.get((*key.values(),)) or groups.setdefault((*key.values(),), CallGroup(key))
            group.add(line)
        self.groups = sorted(groups.values(), key=lambda group: (-group.calls, *group.key.values()))
        """The group with the most calls first."""


def group_key(line: Line, by: Grouping) -> dict[str, str]:
    """Return what a line has in common with the others of its group."""
    if by == "tool":
        method = str(line.get("method", ""))
        name = str(line.get("name") or "") if method == "tools/call" else f"({method})"
        return {"server": str(line.get("server") or ""), "tool": name}
    return {by: str(line.get(by) or "")}


def count_of(outcome: str) -> str:
    """Return the count that an outcome belongs to."""
    if outcome in ANSWERED:
        return "answers"
    if outcome == "tool_error":
        return "tool_errors"
    if outcome in {"cancelled", "unclaimed"}:
        return "cancelled"
    kind = KINDS.get(outcome)
    is_refusal = kind is not None and kind.delivered == "no" and outcome not in LOSSES
    return "refusals" if is_refusal else "errors"


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
