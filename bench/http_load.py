"""`python -m bench.http_load`: agents over HTTP through carpool's door, next to a minimal relay, in one run.

Owns which arms and scenarios are run, the rounds, where the JSON goes (`bench/out/`) and the printed tables.
Each round starts every arm afresh and takes each scenario through all arms one after the other; a ratio is
taken within a round. `1000x1 sessions` holds 1,000 sessions with a GET stream each, and all of them call.
`--profile` instead runs the door's arms alone under cProfile. Exits with 1 when any call went wrong.
Knows nothing of: how anything is measured.
"""

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import msgspec

from bench.compare import TOP, chosen_of
from bench.http_arms import ARMS, HttpArm, make_arms
from carpool.bench.agents import Load
from carpool.bench.attach import BenchError
from carpool.bench.command import DESCRIPTORS, machine, progress
from carpool.bench.report import as_json, cost_table, error_lines, markdown, speed_table, summarise
from carpool.bench.scenarios import ProcessCosts, WindowSample, sample_of
from carpool_protocol.runtime.descriptor_limit import raise_descriptor_limit

OUT = Path(__file__).with_name("out")
BASES = ("relay-http-handshake", "relay-http-stateless")


class HttpScenario(msgspec.Struct, frozen=True):
    """So many agents with one call in flight each; `streams`: with a GET stream each, sessions only."""

    name: str
    agents: int
    streams: bool = False


SCENARIOS = (
    HttpScenario("1x1", 1),
    HttpScenario("64x1", 64),
    HttpScenario("1000x1", 1000),
    HttpScenario("1000x1 sessions", 1000, streams=True),
)


def measure(
    arm: HttpArm, scenario: HttpScenario, *, seconds: float, warmup_s: float, number: int
) -> WindowSample:
    """One window of a started arm with agents of its own."""
    costs = ProcessCosts()
    crowd = arm.crowd(scenario.agents, streams=scenario.streams)
    try:
        crowd.greet()
        measured = crowd.run_load(
            arm.work(),
            Load(in_flight=1, seconds=seconds, warmup_s=warmup_s),
            at_warm=lambda: costs.watch(arm.roles()),
            at_start=costs.begin,
            at_end=costs.end,
        )
        costs.measure_memory()
        cut = crowd.cut_streams()
    finally:
        crowd.close()
    sample = sample_of(arm.name, scenario.name, number, measured, costs)
    return (
        msgspec.structs.replace(sample, errors={**sample.errors, "GET streams cut": cut}) if cut else sample
    )


def run_rounds(
    chosen: argparse.Namespace, arms: list[str], scenarios: list[HttpScenario]
) -> list[WindowSample]:
    """Every scenario through every arm, interleaved."""
    say = progress(True)
    samples = []
    for number in range(chosen.rounds):
        with ExitStack() as ending:
            made = make_arms(arms)
            made = made[number % len(made) :] + made[: number % len(made)]
            for arm in made:
                ending.callback(arm.stop)
                arm.start()
            for scenario in scenarios:
                for arm in made:
                    if scenario.streams and arm.name != "door-handshake":
                        continue  # nobody else has sessions
                    say(f"round {number + 1} of {chosen.rounds}: {scenario.name} {arm.name}")
                    samples.append(
                        measure(arm, scenario, seconds=chosen.seconds, warmup_s=chosen.warmup, number=number)
                    )
    say("")
    return samples


def profile(chosen: argparse.Namespace, arms: list[str], scenarios: list[HttpScenario]) -> int:
    """Print where carpool's processes spend their own time, for each door and scenario."""
    import pstats

    for name in arms:
        for scenario in scenarios:
            if not name.startswith("door"):
                continue
            with tempfile.TemporaryDirectory(prefix="cpp-") as directory:
                (arm,) = make_arms([name], directory)
                try:
                    arm.start()
                    measure(arm, scenario, seconds=chosen.seconds, warmup_s=0.5, number=0)
                finally:
                    arm.stop()
                for file in sorted(Path(directory).iterdir()):
                    print(f"\n## {name} {scenario.name}: {file.stem}")
                    pstats.Stats(str(file)).strip_dirs().sort_stats("tottime").print_stats(TOP)
    return 0


def options(argv: list[str]) -> argparse.Namespace:
    """The parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.http_load", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default 3)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a window (default 2)")
    parser.add_argument("--warmup", type=float, default=0.6, help="before each window (default 0.6)")
    parser.add_argument("--arms", default=",".join(ARMS), help="comma-separated (default: all)")
    parser.add_argument(
        "--scenarios", default=",".join(each.name for each in SCENARIOS), help="comma-separated"
    )
    parser.add_argument("--out", type=Path, default=OUT / "http.json", help="where the JSON is written")
    parser.add_argument("--profile", action="store_true", help="the door's arms alone, under cProfile")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """The exit code: 0, 1 when something went wrong, 2 usage."""
    chosen = options(argv)
    raise_descriptor_limit(DESCRIPTORS)
    arms = chosen_of(chosen.arms, ARMS)
    names = chosen_of(chosen.scenarios, tuple(each.name for each in SCENARIOS))
    scenarios = [each for each in SCENARIOS if each.name in names]
    try:
        if chosen.profile:
            return profile(chosen, arms, scenarios)
        samples = run_rounds(chosen, arms, scenarios)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    whole = as_json(samples, [], {**machine(), "rounds": chosen.rounds, "window_s": chosen.seconds})
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    summary = summarise(samples)
    print(", ".join(f"{key} {value}" for key, value in whole["machine"].items()))
    for table in (speed_table(summary, BASES), cost_table(summary)):
        print("\n" + markdown(table))
    wrong = error_lines(summary)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
