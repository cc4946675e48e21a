"""The recorded runs: `python -m tests.programs.record [--first-turns | --bridges] NAME…` runs programs and
writes what was seen. It ends with 1 where a run failed.

Owns `record.json`: of each program its version, the verdict on each feature and the first turns; of each
place of a bridge the same without first turns. The page (`tests.programs.page`) is made from it. Without a
name every program that is installed is run.

A run that fails does not take away what was recorded before: the earlier verdicts stay, with the version that
they are of, and `failed` says why there are no new ones. `not run` says why a program was left out.

Knows nothing of: what is expected.
"""

import fcntl
import json
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.programs.agents.catalog import PROGRAMS
from tests.programs.bridge_places import PLACES, BridgePlace
from tests.programs.features import FEATURES, Feature, Verdict
from tests.programs.first_turns import KINDS, FirstTurn, measure
from tests.programs.installed import missing
from tests.programs.loopback import Loopback
from tests.programs.program import Program
from tests.programs.scenarios import SCENARIOS
from tests.programs.script import Json

FILE: Final = Path(__file__).with_name("record.json")
AGENTS: Final = "programs"
BRIDGES: Final = "bridges"
FIRST_TURNS: Final = "first turns"


@dataclass(frozen=True)
class RecordedVerdict:
    """A verdict of the record."""

    verdict: Verdict
    kept: str
    """It is of an earlier run, with this version of the program; empty where it is new."""


@dataclass(frozen=True)
class Run:
    """One run that gives a part of a record: its features or one measure, by their names."""

    name: str
    parts: tuple[str, ...]
    take: Callable[[], Mapping[str, Any]]


def read(kind: str = AGENTS) -> dict[str, Json]:
    """The records of agent programs or of places of bridges, by name."""
    found: dict[str, dict[str, Json]] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    return found.get(kind, {})


def write(kind: str, name: str, change: Callable[[Json], Json]) -> None:
    """Change the record of a program or place. Several processes may record at a time."""
    FILE.touch()
    with FILE.open("r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        whole = {AGENTS: {}, BRIDGES: {}, **json.loads(file.read() or "{}")}
        whole[kind] = dict(sorted({**whole[kind], name: change(whole[kind].get(name, {}))}.items()))
        file.seek(0)
        file.write(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")
        file.truncate()


def verdicts(record: Json) -> dict[str, RecordedVerdict]:
    """The verdict on each feature that is recorded."""
    return {
        name: RecordedVerdict(Verdict(*found[:3]), "".join(found[3:]))
        for name, found in record.get("features", {}).items()
    }


def features_of(program: Program) -> list[Feature]:
    return [each for each in FEATURES.values() if each.applies(program)]


@dataclass(frozen=True)
class Taken:
    """What some runs gave, and why others failed."""

    found: Mapping[str, Any]
    failed: Mapping[str, str]
    parts: frozenset[str]
    """What the failed runs would have given."""


def take(runs: Iterable[Run]) -> Taken:
    """Make these runs; one that fails ends no other."""
    found: Json = {}
    failed: dict[str, str] = {}
    parts: set[str] = set()
    for run in runs:
        try:
            found |= run.take()
        except Exception as error:  # noqa: BLE001  # the other runs of the program are still worth their time
            traceback.print_exc()
            print(f"{run.name}: the run failed", flush=True)
            failed[run.name] = (str(error).splitlines() or [""])[0][:200] or type(error).__name__
            parts |= set(run.parts)
    return Taken(found, failed, frozenset(parts))


def with_verdicts(record: Json, version: str, taken: Taken, order: Iterable[str]) -> Json:
    """The record with these verdicts of this version. Of runs that failed the earlier ones stay, marked."""
    was = record.get("version", version)
    features = {
        name: [*found[:3], "".join(found[3:]) or was]
        for name, found in record.get("features", {}).items()
        if name in taken.parts
    }
    features |= {name: [each.direct, each.through, each.fault] for name, each in taken.found.items()}
    changed = {
        "version": version,
        "features": {name: features[name] for name in order if name in features},
        "failed": taken.failed,
        "not run": "",
    }
    return _without_empty({**record, **changed})


def with_first_turns(record: Json, taken: Taken) -> Json:
    """The record with these first turns. Of measures that failed the earlier pairs stay."""
    turns = {**record.get(FIRST_TURNS, {}), **taken.found}
    return _without_empty({**record, FIRST_TURNS: turns, "failed first turns": taken.failed})


def _without_empty(record: Json) -> Json:
    """The record without reasons that there are none of."""
    optional = ("failed", "failed first turns", "not run")
    return {key: value for key, value in record.items() if value or key not in optional}


def agent_runs(program: Program, loopback: Loopback) -> list[Run]:
    """The runs that show every feature of this program."""
    wanted = features_of(program)
    named = {name: [each for each in wanted if each.scenario == name] for name in SCENARIOS}
    return [
        Run(name, tuple(each.name for each in judged), partial(_judge, program, loopback, name, judged))
        for name, judged in named.items()
        if judged
    ]


def _judge(program: Program, loopback: Loopback, scenario: str, judged: list[Feature]) -> dict[str, Verdict]:
    pair = SCENARIOS[scenario](program, loopback)
    return {each.name: each.judge(program, pair) for each in judged}


def _record_agent(name: str, loopback: Loopback) -> Taken:
    program = PROGRAMS[name]
    taken = take(agent_runs(program, loopback))
    order = [each.name for each in features_of(program)]
    write(AGENTS, name, lambda record: with_verdicts(record, program.version, taken, order))
    return taken


def _measure(program: Program, loopback: Loopback, kind: FirstTurn) -> dict[str, list[Json]]:
    return {kind.name: measure(program, loopback, kind)}


def _record_first_turns(name: str, loopback: Loopback) -> Taken:
    runs = [Run(each.name, (each.name,), partial(_measure, PROGRAMS[name], loopback, each)) for each in KINDS]
    taken = take(runs)
    write(AGENTS, name, lambda record: with_first_turns(record, taken))
    return taken


def bridge_runs(place: BridgePlace, loopback: Loopback) -> list[Run]:
    """The runs that show every feature of a bridge at this place."""
    return [
        Run("; ".join(each.features), each.features, partial(each.run, loopback)) for each in place.scenarios
    ]


def _record_bridge(name: str, loopback: Loopback) -> Taken:
    place = PLACES[name]
    taken = take(bridge_runs(place, loopback))
    version = place.program.version
    write(BRIDGES, name, lambda record: with_verdicts(record, version, taken, place.features))
    return taken


def _left_out(why: str, record: Json) -> Json:
    return {**record, "not run": why}


def main(words: list[str]) -> int:
    """Run what the words name; 1 where a run failed."""
    names = {each for each in words if not each.startswith("-")}
    kind, record = AGENTS, _record_first_turns if "--first-turns" in words else _record_agent
    wanted: dict[str, tuple[str, ...]] = {name: (name,) for name in PROGRAMS if not names or name in names}
    if "--bridges" in words:
        kind, record = BRIDGES, _record_bridge
        wanted = {
            each.name: each.needs for each in PLACES.values() if not names or each.program.name in names
        }
    failed = []
    with Loopback() as loopback:
        for name, needs in wanted.items():
            if why := next(filter(None, map(missing, needs)), ""):
                print(why)
                write(kind, name, partial(_left_out, why))
                continue
            taken = record(name, loopback)
            for feature, seen in taken.found.items():
                print(f"{name}: {feature}: {seen}", flush=True)
            if taken.failed:
                failed.append(name)
    if failed:
        print(f"a run failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
