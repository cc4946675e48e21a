"""The figures of `carpool demo`, computed from its measurements.

Owns the arithmetic: from the calls that agents report (`agent`) and from memory readings to what the
report shows. Pure: the same calls, the same figures. Seconds and bytes throughout; times are on the one
monotonic clock of the machine. A figure that nothing was measured for is `None`, never zero.
Knows nothing of: how it is laid out, processes.
"""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

import msgspec

Try = tuple[float, float, str]
"""(sent, answered, outcome)."""

VICTIM, OTHER = "git", "time"
"""The server whose process is killed, and the one that must not notice."""


class DemoCall(msgspec.Struct, frozen=True, array_like=True):
    """One call of an agent with all its tries; the last one's outcome is the call's."""

    server: str
    tool: str
    tries: list[Try]

    @property
    def outcome(self) -> str:
        return self.tries[-1][2]


class SpeedFigures(msgspec.Struct, frozen=True):
    """Good answers of one server in a window."""

    calls: int
    per_s: float
    p50_s: float | None
    p99_s: float | None


class PrivateMemory(msgspec.Struct, frozen=True):
    """Memory of private copies: measured for the first agents, scaled for all of them."""

    measured_bytes: list[int]
    """All server processes of 1, 2, 3 ... agents."""
    each_further_bytes: int
    """The memory of one more agent's copies: the mean growth per agent, first to last measurement."""
    scaled_bytes: int
    """For all agents."""


class KillFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The effects that the agents saw of the kill of a server process."""

    open_calls: int
    """Sent before the kill and answered after it (or never)."""
    lost: int
    """Of these: ended as `Lost`, delivered maybe."""
    lost_within_s: float | None
    """From the kill to the last of these answers."""
    refused: int
    """Calls that carpool ended as not delivered, while the server was away."""
    repeated_well: int
    """Calls ended as lost or not delivered that the agent made again, with a right answer."""
    back_after_s: float | None
    """From the kill to the first right answer of the new process."""
    others_meanwhile: int
    """Right answers of the other servers in that time."""
    others_slowest_s: float | None
    """The slowest of these."""


class AnswerCounts(msgspec.Struct, frozen=True):
    """All calls of a demo, by their end."""

    right: int
    wrong: int
    failed: int
    """Ended as the server's own error, or as lost or unavailable for good."""

    @property
    def all_right(self) -> bool:
        return self.right > 0 and not self.wrong and not self.failed


class PrivateFigures(msgspec.Struct, frozen=True):
    """The private copies."""

    memory: PrivateMemory
    firsts_s: list[float]
    """For each agent: from starting its servers to an answer of both."""
    lap: list[DemoCall]


class SharedFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The same work through carpool."""

    shim_bytes: int
    own: dict[str, int]
    """carpool's own processes, shims left out: role and pid, and memory in bytes."""
    instances: dict[str, int]
    """Server to memory in bytes of its one process."""
    instance_count: int
    first_s: float
    """The first agent, for which the servers were started: from starting its shim to an answer of both."""
    later_s: list[float]
    """The same for each later agent; all these attached at once."""
    lap: list[DemoCall]
    steady: list[DemoCall]
    """Of all agents, from `from_s` to `to_s`, undisturbed."""
    from_s: float
    to_s: float
    struck: list[DemoCall]
    """Of all agents, later; with the kill at `killed_s`."""
    killed_s: float
    pid: int
    new_pid: int
    sessions: int
    """Sessions of agents after the kill."""


def calls_of(said: Iterable[Sequence[Any]]) -> list[DemoCall]:
    """Calls as agents report them. Raises `msgspec.ValidationError` for another shape."""
    return msgspec.convert(list(said), list[DemoCall])


def quantile(values: Sequence[float], share: float) -> float | None:
    """The value below which `share` of `values` lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def middle(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def private(measured_bytes: list[int], agents: int) -> PrivateMemory:
    """Scale. `measured_bytes` has at least one entry and at most `agents`."""
    last = len(measured_bytes)
    first_to_last = measured_bytes[-1] - measured_bytes[0]
    further = first_to_last // (last - 1) if last > 1 else measured_bytes[0]
    return PrivateMemory(measured_bytes, further, measured_bytes[-1] + (agents - last) * further)


def speed(calls: Iterable[DemoCall], server: str, from_s: float, to_s: float) -> SpeedFigures:
    """Of the good answers of `server` that came in the window."""
    took = [
        answered - sent
        for call in calls
        for sent, answered, outcome in call.tries
        if call.server == server and outcome == "ok" and from_s <= answered < to_s
    ]
    return SpeedFigures(len(took), len(took) / (to_s - from_s), quantile(took, 0.5), quantile(took, 0.99))


def alone(calls: Iterable[DemoCall], server: str) -> float | None:
    """Median seconds of a good answer of `server`."""
    return middle(
        [
            call.tries[-1][1] - call.tries[-1][0]
            for call in calls
            if call.server == server and call.outcome == "ok"
        ]
    )


def answers(calls: Iterable[DemoCall]) -> AnswerCounts:
    outcomes = [call.outcome for call in calls]
    right, wrong = outcomes.count("ok"), outcomes.count("wrong")
    return AnswerCounts(right, wrong, len(outcomes) - right - wrong)


def kill(calls: Sequence[DemoCall], server: str, killed_s: float) -> KillFigures:
    """Return the effects of the kill of the one instance of `server` at `killed_s`."""
    struck = [call for call in calls if call.server == server]
    tries = [each for call in struck for each in call.tries]
    caught = [each for each in tries if each[0] < killed_s <= each[1]]
    lost = [answered for _, answered, outcome in caught if outcome == "lost"]
    again = [call for call in struck if len(call.tries) > 1]
    back = min(
        (answered for sent, answered, outcome in tries if sent >= killed_s and outcome == "ok"), default=None
    )
    others = [
        answered - sent
        for call in calls
        if call.server != server
        for sent, answered, outcome in call.tries
        if outcome == "ok" and back is not None and killed_s <= answered < back
    ]
    return KillFigures(
        open_calls=len(caught),
        lost=len(lost),
        lost_within_s=max(lost) - killed_s if lost else None,
        refused=sum(outcome == "unavailable" for _, _, outcome in tries),
        repeated_well=sum(call.outcome == "ok" for call in again),
        back_after_s=None if back is None else back - killed_s,
        others_meanwhile=len(others),
        others_slowest_s=max(others, default=None),
    )
