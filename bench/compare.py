"""`python -m bench.compare`: the whole matrix, with the minimal relay, as figures for the README.

Owns which arms and scenarios are run, where the JSON goes (`bench/out/`, not in git) and the printed
tables. `--profile` instead runs carpool alone under cProfile and prints where its processes spend their
own time. Bounded: rounds x scenarios x arms windows, each of so many seconds.
Knows nothing of: how anything is measured.
"""

import argparse
import json
import pstats
import sys
import tempfile
from pathlib import Path

from bench.arms import ARMS, make_arms
from carpool.bench.attach import BenchError
from carpool.bench.command import DESCRIPTORS, machine, progress
from carpool.bench.report import (
    as_json,
    cost_table,
    error_lines,
    first_calls,
    first_table,
    markdown,
    slower,
    speed_table,
    summarise,
)
from carpool.bench.scenarios import SCENARIOS, Scenario, run_rounds
from carpool_protocol.runtime.descriptor_limit import raise_descriptor_limit

OUT = Path(__file__).with_name("out")
BASES = ("direct", "relay-sockets", "relay-shims")
TOP = 15


def chosen_of(text: str, known: tuple[str, ...]) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"bench: no {unknown[0]!r}; there are: {', '.join(known)}")
    return names


def options(argv: list[str]) -> argparse.Namespace:
    """The parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a window (default 2)")
    parser.add_argument("--arms", default=",".join(ARMS), help="comma-separated (default: all)")
    parser.add_argument(
        "--scenarios", default=",".join(each.name for each in SCENARIOS), help="comma-separated"
    )
    parser.add_argument("--quick", action="store_true", help="one round of short windows")
    parser.add_argument("--json", action="store_true", help="print the JSON instead of tables")
    parser.add_argument("--out", type=Path, default=OUT / "compare.json", help="where the JSON is written")
    parser.add_argument("--baseline", type=Path, help="JSON of an earlier run; fail where ratios fell far")
    parser.add_argument("--band", type=float, default=0.6, help="how far is far (default 0.6 of then)")
    parser.add_argument("--profile", action="store_true", help="carpool alone, under cProfile")
    return parser.parse_args(argv)


def profile(scenarios: list[Scenario], seconds: float) -> int:
    """Run carpool with `CARPOOL_PROFILE` and print each process's top by own time."""
    found = False
    for scenario in scenarios:
        with tempfile.TemporaryDirectory(prefix="cpp-") as directory:
            # One scenario per daemon, so that a profile is of that load and little else.
            run_rounds(
                lambda where=directory: make_arms(["carpool-sockets"], where),  # type: ignore[misc]  # a default argument binds
                [scenario],
                rounds=1,
                seconds=seconds,
                warmup_s=0.2,
                say=progress(True),
            )
            for file in sorted(Path(directory).iterdir()):
                found = True
                print(f"\n## {scenario.name}: {file.stem}")
                pstats.Stats(str(file)).strip_dirs().sort_stats("tottime").print_stats(TOP)
    if not found:
        print("no profile was written: do the processes know CARPOOL_PROFILE?", file=sys.stderr)
    return 0 if found else 1


def compare(chosen: argparse.Namespace, scenarios: list[Scenario]) -> int:
    """Run the matrix, write the JSON, print the tables. 1 when any call went wrong."""
    arms = chosen_of(chosen.arms, ARMS)
    rounds, seconds = (1, 0.3) if chosen.quick else (max(1, chosen.rounds), chosen.seconds)
    say = progress(True)
    samples, firsts = run_rounds(
        lambda: make_arms(arms),
        scenarios,
        rounds=rounds,
        seconds=seconds,
        warmup_s=min(0.5, seconds),
        say=say,
    )
    say("")
    whole = as_json(samples, firsts, {**machine(), "rounds": rounds, "window_s": seconds})
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    summary = summarise(samples)
    if chosen.json:
        print(json.dumps(whole, indent=1))
    else:
        bases = [base for base in BASES if base in arms]
        print(", ".join(f"{key} {value}" for key, value in whole["machine"].items()))
        for table in (speed_table(summary, bases), cost_table(summary), first_table(first_calls(firsts))):
            print("\n" + markdown(table))
    wrong = error_lines(summary)
    if chosen.baseline is not None:
        wrong += slower(summary, json.loads(chosen.baseline.read_text(encoding="utf-8")), chosen.band)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def main(argv: list[str]) -> int:
    """The exit code: 0, 1 when something went wrong, 2 usage."""
    chosen = options(argv)
    raise_descriptor_limit(DESCRIPTORS)
    names = chosen_of(chosen.scenarios, tuple(each.name for each in SCENARIOS))
    scenarios = [each for each in SCENARIOS if each.name in names]
    try:
        if chosen.profile:
            return profile(scenarios, chosen.seconds)
        return compare(chosen, scenarios)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
