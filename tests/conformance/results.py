"""What the official conformance suite found, read from the files it leaves.

Owns how a run is judged: each required scenario must have left a result, with at least one check that passed
and none that failed. What the suite runs without scoring it is told, and never counts. The suite's own exit
code is not used: it says nothing of a scenario without a result, or of one in which nothing was checked.
Knows nothing of: servers, processes, how the suite is started.

Formats are those of `@modelcontextprotocol/conformance` 0.2.0-alpha.12: `requirements/REVISION.yaml` names
the required scenarios, and each scenario leaves `server-NAME-TIME/checks.json`, a list of `{id, status, …}`
whose status is SUCCESS, FAILURE, WARNING (of a SHOULD), SKIPPED or INFO.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_DIRECTORY: Final = re.compile(r"server-(.+)-\d{4}-\d\d-\d\dT[\d-]+Z")
_ENTRY: Final = re.compile(r"\s+-\s+([\w./-]+)\s*(#.*)?")
NO_RESULT: Final = "left no result"
NOTHING_PASSED: Final = "nothing was checked"


class SuiteError(Exception):
    """The suite's files are not what this reader knows."""


@dataclass(frozen=True)
class SuiteScenario:
    """One scenario of one run: how many checks passed, failed and warned, and what the bad ones said."""

    name: str
    required: bool
    passed: int = 0
    failed: int = 0
    warned: int = 0
    said: tuple[str, ...] = ()
    left: bool = True
    """Whether it left a result."""

    @property
    def ok(self) -> bool:
        return self.left and not self.failed and self.passed > 0


@dataclass(frozen=True)
class SuiteRun:
    """One run of the suite, required scenarios first, in the order of the requirements."""

    scenarios: tuple[SuiteScenario, ...]

    @property
    def required(self) -> list[SuiteScenario]:
        return [each for each in self.scenarios if each.required]

    @property
    def ok(self) -> bool:
        return all(each.ok for each in self.required)

    @property
    def checks(self) -> Counter[str]:
        """How many checks of required scenarios `passed`, `failed` and `warned`."""
        checks = Counter[str]()
        for each in self.required:
            checks.update(passed=each.passed, failed=each.failed, warned=each.warned)
        return checks

    def line(self) -> str:
        """One sentence for people."""
        good = sum(each.ok for each in self.required)
        checks = self.checks
        others = [each for each in self.scenarios if not each.required]
        return (
            f"{good}/{len(self.required)} required scenarios, {checks['passed']} checks passed, "
            f"{checks['failed']} failed, {checks['warned']} warnings; "
            f"not scored: {sum(each.ok for each in others)}/{len(others)} scenarios"
        )


def required_scenarios(text: str) -> list[str]:
    """The scenarios that the text of a requirements file lists for servers.

    Raises:
        SuiteError: there are none.
    """
    names: list[str] = []
    inside = False
    for line in text.splitlines():
        if line[:1].strip() and not line.startswith("#"):
            inside = line.rstrip() == "server:"
        elif inside and (entry := _ENTRY.fullmatch(line)):
            names.append(entry[1])
    if not names:
        raise SuiteError("the requirements name no server scenario: is this version of the suite known?")
    return names


def _scenario(name: str, checks: Sequence[dict[str, str]], *, required: bool) -> SuiteScenario:
    count = Counter(check["status"] for check in checks)
    said = [
        f"{check['id']}: {check.get('errorMessage') or check['status'].lower()}"
        for check in checks
        if check["status"] in {"FAILURE", "WARNING"}
    ]
    return SuiteScenario(
        name=name,
        required=required,
        passed=count["SUCCESS"],
        failed=count["FAILURE"],
        warned=count["WARNING"],
        said=tuple(said) if said or count["SUCCESS"] else (NOTHING_PASSED,),
    )


def read(directory: Path, required: Sequence[str]) -> SuiteRun:
    """What one run left in its directory.

    Raises:
        SuiteError: a scenario left two results (of more than one run), or one cannot be read.
    """
    found: dict[str, SuiteScenario] = {}
    for file in sorted(directory.glob("server-*/checks.json")):
        named = _DIRECTORY.fullmatch(file.parent.name)
        if named is None or named[1] in found:
            raise SuiteError(f"{file.parent.name}: a directory of one run was expected")
        try:
            checks = json.loads(file.read_bytes())
            found[named[1]] = _scenario(named[1], checks, required=named[1] in required)
        except (ValueError, LookupError, TypeError) as error:
            raise SuiteError(f"{file.parent.name}: its checks cannot be read: {error!r}") from error
    first = [
        found.get(name) or SuiteScenario(name, required=True, said=(NO_RESULT,), left=False)
        for name in required
    ]
    return SuiteRun((*first, *(each for name, each in sorted(found.items()) if name not in required)))


def _verdict(scenario: SuiteScenario) -> str:
    if scenario.ok:
        return "yes"
    return "**no**" if scenario.failed else NO_RESULT if not scenario.left else NOTHING_PASSED


def table(runs: Sequence[SuiteRun]) -> str:
    """A Markdown table of runs of the same requirements: checks summed, scenarios good in how many runs."""
    rows = ["| scenario | required | passed | failed | warnings | good |", "|---|---|---:|---:|---:|---|"]
    for name in dict.fromkeys(each.name for run in runs for each in run.scenarios):
        same = [each for run in runs for each in run.scenarios if each.name == name]
        good = sum(each.ok for each in same)
        verdict = _verdict(same[0]) if len(runs) == 1 else f"{good}/{len(runs)}"
        cells = (
            name,
            "yes" if same[0].required else "",
            sum(each.passed for each in same),
            sum(each.failed for each in same),
            sum(each.warned for each in same),
            verdict,
        )
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(rows)


def summary(found: Mapping[str, Sequence[SuiteRun]]) -> str:
    """A Markdown table with one row for each requirement set: what the README shows."""
    rows = [
        "| requirement set | suites at once | required scenarios | checks passed | failed | warnings |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for revision, runs in found.items():
        checks = sum((run.checks for run in runs), Counter[str]())
        good = sum(each.ok for run in runs for each in run.required)
        wanted = sum(len(run.required) for run in runs)
        counts = " | ".join(str(checks[each]) for each in ("passed", "failed", "warned"))
        rows.append(f"| {revision} | {len(runs)} | {good}/{wanted} | {counts} |")
    return "\n".join(rows)


def complaints(runs: Iterable[SuiteRun]) -> list[str]:
    """What went wrong in required scenarios, warnings included, each once."""
    return list(
        dict.fromkeys(f"{each.name}: {said}" for run in runs for each in run.required for said in each.said)
    )
