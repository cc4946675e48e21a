"""The servers whose calls have mostly failed in the last minutes.

Owns which ends of a call count as a failure of its server or of carpool, and the rule (docs/counters.md): of
the calls to a server that have ended in the last two to four minutes at least half, and at least three, have
failed. It compares the sums of now with those of an earlier moment, so that it keeps two numbers for each
server. Pure: time is a parameter. Refuses to know: what `status` makes of it.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from carpool_protocol.counters.call_counts import OTHER, UNKNOWN, CallCounts
from carpool_protocol.counters.snapshot import CounterRow
from carpool_protocol.faults.kinds import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    KINDS,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    RESOURCE_NOT_FOUND,
)

STEP_S: Final = 120.0
"""The age at which the newer of the two earlier moments takes the place of the older one."""

FEWEST_FAILURES: Final = 3
"""A server with fewer failed calls is not named as failing."""
CAUSED_BY_OTHERS: Final = frozenset(
    {
        "agent_away", "answer_denied", "answer_hook_failed", "closing", "cut_off", "disabled", "draining",
        "hook_failed", "needs_url", "offline", "operator_cancelled", "operator_cancelled_unsent", "paused",
        "stopped", "too_many_a_minute", "unread_answers", "url_declined",
    }
)  # fmt: skip
"""Faults that say nothing of a server: an operator, a hook, a limit of the agent's profile or the agent
itself causes them, or there is nothing to run (`offline`).
"""
_WRONG_REQUESTS: Final = frozenset(
    map(str, (PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, RESOURCE_NOT_FOUND))
)
"""Codes with which a server says that the request was wrong."""


class RecentCalls(Struct, frozen=True):
    """The calls to one server that have ended lately."""

    ended: int = 0
    """Those that ended with an answer or failed."""
    failed: int = 0

    @property
    def mostly_failed(self) -> bool:
        """True if at least half of the calls failed, and enough of them to tell."""
        return self.failed >= max(FEWEST_FAILURES, self.ended - self.failed)

    def minus(self, earlier: "RecentCalls") -> "RecentCalls":
        """Return what came after an earlier moment."""
        return RecentCalls(self.ended - earlier.ended, self.failed - earlier.failed)


Sums = Mapping[str, RecentCalls]
_NOTHING: Final = RecentCalls()


class RecentFailures:
    """The sums of two earlier moments."""

    def __init__(self, now: float) -> None:
        self._older: tuple[float, Sums] = (now, {})
        self._newer: tuple[float, Sums] = (now, {})

    def is_due(self, now: float) -> bool:
        """True if the sums of now are wanted as the newer earlier moment."""
        return now - self._newer[0] >= STEP_S

    def note(self, sums: Sums, now: float) -> None:
        """Keep the sums of now, and forget the oldest ones."""
        self._older, self._newer = self._newer, (now, sums)

    def recent(self, sums: Sums) -> dict[str, RecentCalls]:
        """Return the calls since the older moment, by server; only servers that had some."""
        before = self._older[1]
        found = {server: each.minus(before.get(server, _NOTHING)) for server, each in sums.items()}
        return {server: each for server, each in found.items() if each.ended}

    def window_s(self, now: float) -> float:
        """Return the seconds since that moment."""
        return now - self._older[0]


def sums_by_server(rows: Iterable[CounterRow]) -> dict[str, RecentCalls]:
    """Return how many calls have ended and failed so far, without rows of no server."""
    sums: dict[str, list[int]] = {}
    for row in rows:
        if row.server in (UNKNOWN, OTHER):
            continue
        failed = failures(row.counts)
        found = sums.setdefault(row.server, [0, 0])
        found[0] += row.counts.answers + failed
        found[1] += failed
    return {server: RecentCalls(*found) for server, found in sums.items()}


def failures(counts: CallCounts) -> int:
    """Return how many of these calls have failed because of their server or of carpool."""
    ends = (*counts.errors.items(), *counts.refusals.items())
    return sum(count for code, count in ends if _is_failure(code))


def _is_failure(code: str) -> bool:
    kind = KINDS.get(code)
    if kind is None:
        return code not in _WRONG_REQUESTS
    return kind.family != "refused" and code not in CAUSED_BY_OTHERS
