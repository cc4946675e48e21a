"""Bugs planted into carpool on purpose: proof that the simulated world finds bugs of their kind.

Owns how a bug is kept (a file of data in `tests/world/planted`: which text of which source file becomes which
other), and the search for a seed that shows it. As a program it tries seeds in a process of its own and
prints, as a line of JSON, the one that finds the bug soonest:

    python -m tests.world.planted_bugs NAME [SEED ...]       these seeds, or the first MOST_SEEDS
    python -m tests.world.planted_bugs --record [NAME ...]   some quick seeds of each, written down

Knows nothing of: what a storm is, who breaks which promise.
"""

import contextlib
import json
import math
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct

from carpool_protocol.faults.fault_answers import Bug
from tests.kit.source_graft import SourceGraft

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests/world/planted"
MOST_SEEDS = 40
"""A bug that so many storms do not find is not found."""
KEPT_SEEDS = 3
"""The number of seeds that a bug keeps. A change of carpool changes its storms, and rarely all of these."""
QUICK_S = 1.0
"""The search for seeds to keep ends when so many find the bug within this CPU time each. Storms that are
short without the bug are tried first.
"""
LIMIT_S = 300.0
"""Enough for all seeds on a busy machine: those that are kept may no longer find the bug."""


class Plant(Struct, frozen=True, forbid_unknown_fields=True):
    """One bug."""

    what: str
    """What goes wrong, as a sentence."""
    file: str
    """Of the project, from its root."""
    old: str
    """Whole lines that are in the file exactly once. They begin behind the line with the quotes."""
    new: str
    seeds: list[int]
    """Storms that find it, and pass without it, the one that is shortest without it first."""
    storm: str = "plain"
    """Of which kind that is (`storms`)."""


class Found(Struct, frozen=True):
    """The storm that found a bug, and what it said."""

    seed: int
    said: str
    after_s: float


class Misfit(Exception):  # noqa: N818 - it is what it says
    """The source has changed: this bug cannot be planted any more."""


def names() -> list[str]:
    """All planted bugs."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(name: str) -> Plant:
    """Read one."""
    return msgspec.convert(tomllib.loads((FOLDER / f"{name}.toml").read_text()), Plant)


def source_of(name: str) -> str:
    """The source file with the bug in it. Misfit unless its old text is there exactly once."""
    plant = load(name)
    source = (ROOT / plant.file).read_text()
    old = "\n" + plant.old
    if source.count(old) != 1:
        raise Misfit(
            f"planted bug {name}: its old text is {source.count(old)} times in {plant.file}, not once. "
            f"Write down what it became in {FOLDER.name}/{name}.toml, then `--record` its seeds."
        )
    return source.replace(old, "\n" + plant.new)


def look_for(name: str, seeds: Iterable[int]) -> Found | None:
    """Plant the bug in a process of its own and try these seeds there."""
    words = [sys.executable, "-m", "tests.world.planted_bugs", name, *map(str, seeds)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise AssertionError(done.stderr)
    said = json.loads(done.stdout)
    return None if said is None else msgspec.convert(said, Found)


def _try_seeds(name: str, seeds: Sequence[int], *, wanted: int, within_s: float = math.inf) -> list[Found]:
    """Return the seeds that find the bug: quick ones in the given order, then slow ones, the quickest first.
    The search ends after so many quick ones.
    """
    graft = SourceGraft(str(ROOT / load(name).file), source_of(name))
    graft.put_in()
    from tests.world.sim.storms import EVERY

    storm = EVERY[load(name).storm]
    found: list[Found] = []
    for seed in seeds:
        began = time.process_time()
        try:
            storm(seed)
        except (AssertionError, Bug) as wrong:  # anything else is a plant that does not even run
            took_s = time.process_time() - began
            found.append(Found(seed, f"{type(wrong).__name__}: {wrong}"[:400], took_s))
        assert graft.used, f"{name}: no storm of this kind imports the module, or it was imported before"
        if sum(each.after_s < within_s for each in found) == wanted:
            break
    return sorted(found, key=lambda each: max(each.after_s, within_s))


def _record(name: str, seeds: Sequence[int]) -> None:
    """Write down some of these seeds. As a process of its own: a bug cannot be taken out again."""
    found = _try_seeds(name, seeds, wanted=KEPT_SEEDS, within_s=QUICK_S)[:KEPT_SEEDS]
    if not found:
        raise SystemExit(f"{name}: {len(seeds)} storms do not find it")
    path = FOLDER / f"{name}.toml"
    kept = [each.seed for each in found]
    path.write_text(re.sub(r"(?m)^seeds = .*$", f"seeds = {kept}", path.read_text(), count=1))
    times = ", ".join(f"{each.after_s:.2f} s" for each in found)
    print(f"{name}: seeds {kept} after {times}: {found[0].said}")


@cache
def _shortest_first(kind: str) -> list[int]:
    """The seeds of storms of this kind that pass, the shortest storm first."""
    from tests.world.sim.storms import EVERY

    took_s: dict[int, float] = {}
    for seed in range(MOST_SEEDS):
        began = time.process_time()
        with contextlib.suppress(AssertionError, Bug):
            EVERY[kind](seed)
            took_s[seed] = time.process_time() - began
    return sorted(took_s, key=lambda seed: took_s[seed])


def main(words: Sequence[str]) -> None:
    """See the module."""
    if words[0] == "--record" and len(words) > 2 and words[2].isdigit():
        _record(words[1], [int(word) for word in words[2:]])
        return
    if words[0] == "--record":
        missed: list[str] = []
        for name in words[1:] or names():
            seeds = map(str, _shortest_first(load(name).storm))
            own = [sys.executable, "-m", "tests.world.planted_bugs", "--record", name, *seeds]
            if subprocess.run(own, cwd=ROOT, check=False).returncode:
                missed.append(name)
        if missed:
            raise SystemExit(f"no seed was written for {', '.join(missed)}")
        return
    found = _try_seeds(words[0], [int(word) for word in words[1:]] or range(MOST_SEEDS), wanted=1)
    print(json.dumps(msgspec.to_builtins(found[0] if found else None)))


if __name__ == "__main__":
    main(sys.argv[1:])
