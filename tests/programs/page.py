"""The page on agent programs, made from the recorded runs: `python -m tests.programs.page > docs/clients.md`.

Knows nothing of: runs.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from tests.programs.agents.catalog import PROGRAMS
from tests.programs.bridge_places import FEATURES as BRIDGE_FEATURES
from tests.programs.bridge_places import NO, PLACES
from tests.programs.features import FEATURES, NONE, YES, Verdict
from tests.programs.first_turns import KINDS, FirstTurn, judge_pairs
from tests.programs.known_differences import KNOWN, reason
from tests.programs.program import Program
from tests.programs.record import BRIDGES, FIRST_TURNS, RecordedVerdict, read, verdicts
from tests.programs.script import Json

COMMAND: Final = "/home/ann/.local/bin/carpool"
_HEAD: Final = """\
# Agent programs behind carpool

This page is made from recorded runs: `python -m tests.programs.page > docs/clients.md`.

Each program runs twice with the same script of a model: with two servers of its own (directly), and with
one entry for carpool in place of them. In both runs it has no network but loopback, and a fresh home. One
server is of many oddities: long names and instructions, 200 KB, images, structure, errors, questions, lists
that change.

Three differences are meant to be. Names of tools have the server in front (`server__tool`). A server of
your own file runs in your home directory. It gets the variables that its entry names, and a few of your
shell. The variables `CARPOOL_RUNTIME` and `CARPOOL_INSTANCE` mark carpool's servers.
"""
_LEGEND: Final = """\
`=`: as directly. `yes`: works; there is nothing to compare. `by design`: one of the differences above, or
carpool does more than the program alone. **differs**: a known fault, named below with its program. `(old)`:
of an earlier run. An empty cell: the program has nothing of the kind, or it was not run.
"""
_FIRST: Final = """\
## First turns

The tools of the quick servers that a program offers in its first request, in five pairs of runs: directly and
through carpool. They are 23, one of them only for programs that can be asked. `=`: in no pair fewer than
directly. In brackets: the last thing that carpool had answered by then. A program's patience is wall time, so
a busy machine makes these worse.
"""

_BRIDGES: Final = """\
## Bridges

What each bridge passes on without carpool and with it, at each place where it can stand. `=`: as directly.
`no`: the bridge does not pass it on, in neither arm. `yes`: works; there is nothing to compare. `by design`:
with carpool it passes on more than alone. **differs**: a known fault, named below. An empty cell: there is
nothing of the kind. A bridge may answer one error after a death and greet again after that.
"""


def _cell(found: RecordedVerdict | None) -> str:
    if found is None:
        return ""
    direct, through = found.verdict.direct, found.verdict.through
    if found.verdict.fault:
        word = "**differs**"
    elif direct == NONE:
        word = YES if through == YES else "by design" if not through else YES
    else:
        word = NO if direct == through == NO else "=" if direct == through else "by design"
    return f"{word} (old)" if found.kept else word


def _table(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(each.replace("|", "\\|") for each in row) + " |"


def _matrix(heads: list[str], features: Iterable[str], records: list[Json]) -> Iterator[str]:
    found = [verdicts(each) for each in records]
    rows = [[name, *(_cell(each.get(name)) for each in found)] for name in features]
    yield from _table(["", *heads], rows)


def first_turn_verdicts(record: Json) -> dict[FirstTurn, Verdict]:
    """The verdict on each state of carpool that was measured."""
    measured = record.get(FIRST_TURNS, {})
    return {kind: judge_pairs(measured[kind.name]) for kind in KINDS if kind.name in measured}


def _first_turns(programs: list[Program], records: dict[str, Json]) -> Iterator[str]:
    yield _FIRST
    found = {each.name: first_turn_verdicts(records[each.name]) for each in programs}
    rows = []
    for kind in KINDS:
        cells = [_first_turn(records[name], kind, verdict.get(kind)) for name, verdict in found.items()]
        rows.append([kind.name, *cells])
    yield from _table(["", *(each.title for each in programs)], rows)
    yield ""


def _first_turn(record: Json, kind: FirstTurn, verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    answered = Counter(each["answered"] for each in record[FIRST_TURNS][kind.name])
    said = ", ".join(answered)
    return f"**differs** ({said})" if verdict.fault else f"= ({said})"


def _bridges(records: dict[str, Json]) -> Iterator[str]:
    yield _BRIDGES
    places = [each for each in PLACES.values() if each.name in records]
    heads = [f"{each.program.title} {each.program.version} {each.place}" for each in places]
    yield from _matrix(heads, BRIDGE_FEATURES, [records[each.name] for each in places])
    yield ""
    faults = {each.name: _faults(records[each.name]) for each in places}
    for known in KNOWN:
        shown: dict[str, list[str]] = {}
        for name, features in faults.items():
            for feature in features:
                if reason(name, feature) == known.reason:
                    shown.setdefault(feature, []).append(name)
        if shown:
            rows = "; ".join(f"{feature}: {', '.join(names)}" for feature, names in shown.items())
            yield f"- **Differs** ({rows}): {known.reason}."
    for each in places:
        yield from _not_run(records[each.name], f"{each.name}: ")
    yield ""


def _faults(record: Json) -> list[str]:
    return [name for name, each in verdicts(record).items() if each.verdict.fault]


def _not_run(record: Json, head: str = "") -> Iterator[str]:
    """Why the record lacks what it lacks."""
    if why := record.get("not run"):
        yield f"- **Not run** {head}{why}."
    for scenario, why in {**record.get("failed", {}), **record.get("failed first turns", {})}.items():
        yield f"- **Not run** {head}({scenario}): {why}."


def _program(program: Program, record: Json) -> Iterator[str]:
    yield f"## {program.title} {program.version}"
    yield ""
    yield f"Package: {program.package}. The entry:"
    yield ""
    yield "```"
    yield program.entry.replace("{command}", COMMAND).rstrip()
    yield "```"
    yield ""
    found = verdicts(record)
    faults = _faults(record)
    yield f"{len(found) - len(faults)} of {len(found)} features work as they should."
    yield from _not_run(record)
    for each in KNOWN:
        shown = [name for name in faults if reason(program.name, name) == each.reason]
        if shown:
            yield f"- **Differs** ({'; '.join(shown)}): {each.reason}."
    yield from _first_turn_sentences(program, record)
    for note in program.notes:
        yield f"- {note}"
    other = [
        [name, each.verdict.direct, each.verdict.through]
        for name, each in found.items()
        if each.verdict.direct not in (each.verdict.through, NONE)
    ]
    if other:
        yield ""
        yield from _table(["", "directly", "through carpool"], other)
    yield ""


def _first_turn_sentences(program: Program, record: Json) -> Iterator[str]:
    """What the program offers at first; each difference with its numbers and its reason."""
    found = first_turn_verdicts(record)
    if not found:
        return
    faults = {kind: verdict for kind, verdict in found.items() if verdict.fault}
    for kind, verdict in faults.items():
        why = _sentence(reason(program.name, kind.feature))
        yield f"- **Differs** ({kind.feature}): {verdict.fault}. {why}"
    more = {kind: each for kind, each in found.items() if not each.fault and each.direct != each.through}
    for kind, each in more.items():
        said = f"through carpool {each.through}, directly {each.direct}"
        yield f"- More than directly ({kind.feature}): {said}."
    if len(found) == len(KINDS) and not faults | more:
        yield "- Its first request has the same tools as directly, whatever state carpool is in."


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def page() -> str:
    """The whole page."""
    records = read()
    programs = [each for each in PROGRAMS.values() if each.name in records]
    heads = [f"{each.title} {each.version}" for each in programs]
    matrix = _matrix(heads, FEATURES, [records[each.name] for each in programs])
    lines = [_HEAD, "## Features", "", _LEGEND, *matrix, ""]
    lines += _first_turns(programs, records)
    lines += _bridges(read(BRIDGES))
    for each in programs:
        lines += _program(each, records[each.name])
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    print(page(), end="")
