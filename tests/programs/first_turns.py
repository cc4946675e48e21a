"""First turns: the tools in a program's first request, beside what carpool had answered by then.

A program's patience is wall time, so no single pair is asserted: `make programs` measures pairs and records
them. `judge_pairs` makes one verdict of the pairs of a record.

Knows nothing of: single programs, later turns, differences that are known (`known_differences`).
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.programs.features import Verdict
from tests.programs.loopback import Loopback
from tests.programs.program import Program
from tests.programs.run import Observation, run_program
from tests.programs.script import Json
from tests.programs.stage import LATE, SERVER_NAMES, Arm, ProgramStage, lists_tools

PAIRS: Final = 5
_LATE_S: Final = "3"
_VERY_LATE_S: Final = "16"


@dataclass(frozen=True)
class FirstTurn:
    """One state of carpool in which a program starts."""

    name: str
    late_s: str = ""
    """A third server greets so late; empty: there is none."""
    warm: bool = False
    """carpool runs and knows its servers, but for the third."""

    @property
    def feature(self) -> str:
        """The name of its row among the differences that are known."""
        return f"first turn: {self.name}"

    def stage(self, arm: Arm, loopback: Loopback) -> ProgramStage:
        servers = (*SERVER_NAMES, LATE) if self.late_s else SERVER_NAMES
        return ProgramStage(arm, loopback, servers=servers, server_options={LATE: ("--cold-s", self.late_s)})

    def prepare(self, stage: ProgramStage) -> None:
        if self.warm and stage.arm == "carpool":
            stage.write_configuration(without=LATE)
            stage.up(without=LATE)
            stage.greet_askable_agent()
            stage.write_configuration()
            if self.late_s:
                stage.carpool("reload")


KINDS: Final = (
    FirstTurn("no carpool runs"),
    FirstTurn(f"no carpool runs, one server greets after {_LATE_S} s", late_s=_LATE_S),
    FirstTurn("carpool runs", warm=True),
    FirstTurn(f"carpool runs, one new server greets after {_VERY_LATE_S} s", late_s=_VERY_LATE_S, warm=True),
)


def measure(
    program: Program,
    loopback: Loopback,
    kind: FirstTurn,
    pairs: int = PAIRS,
    told: Callable[[str], None] = print,
) -> list[Json]:
    """Run so many pairs; of each the tools of the quick servers in the first request of both arms."""
    found: list[Json] = []
    for at in range(pairs):
        pair: Json = {}
        for arm in ("direct", "carpool"):
            with kind.stage(arm, loopback) as stage:
                kind.prepare(stage)
                seen = run_program(program, stage, [])
            pair[arm] = _offered(seen)
            if arm == "carpool":
                pair["answered"] = _answered(seen)
        told(f"{program.name}, {kind.name}, pair {at + 1}: {pair}")
        found.append(pair)
    return found


def _offered(seen: Observation) -> int | None:
    """So many tools of the quick servers were offered; None where no request came."""
    if not seen.turns:
        return None
    return sum(1 for name in seen.offered() if LATE not in name)


def _answered(seen: Observation) -> str:
    """The last thing that carpool had answered before the first request came."""
    first = seen.turns[0].at if seen.turns else float("inf")
    answered = [each for each in seen.wire if each["from"] == "server" and each["at"] < first]
    if any(map(lists_tools, answered)):
        return "tools"
    return "initialize" if answered else "nothing"


def judge_pairs(pairs: list[Json]) -> Verdict:
    """The verdict on what a program was offered at first; a fault where any pair had less through carpool."""
    counts = {arm: [each[arm] for each in pairs] for arm in ("direct", "carpool")}
    less = [each for each in pairs if (each["carpool"] or 0) < (each["direct"] or 0)]
    fault = ""
    if less:
        usual = " or ".join(dict.fromkeys(_tools(each["direct"]) for each in less))
        fewer = _in_words([each["carpool"] for each in less], len(pairs))
        fault = f"through carpool {fewer}, directly {usual}"
    return Verdict(_in_words(counts["direct"], len(pairs)), _in_words(counts["carpool"], len(pairs)), fault)


def _tools(count: int | None) -> str:
    return "no request" if count is None else f"{count} tools"


def _in_words(counts: list[int | None], of: int) -> str:
    """How many tools were offered in how many pairs, fewest first."""
    found = sorted(Counter(counts).items(), key=lambda each: -1 if each[0] is None else each[0])
    return ", ".join(f"{_tools(count)} in {pairs} of {of} pairs" for count, pairs in found)
