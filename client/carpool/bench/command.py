"""The verb `carpool bench`: load a tool through the running broker, or compare carpool with a direct pipe.

Owns the options, what is printed and the exit code. With TOOL it uses the daemon that runs and starts
nothing but agents; without, it starts a private daemon with the echo server and ends it again.
Knows nothing of: how agents drive a load (`agents`), how figures are made (`report`).
"""

import json
import math
import os
import platform
import sys
from collections.abc import Callable
from typing import Any

import click
import msgspec

from carpool.bench import report
from carpool.bench.agents import BenchAgents
from carpool.bench.arms import Arm, DirectArm, PrivateCarpoolArm, RunningCarpoolArm
from carpool.bench.attach import BenchError
from carpool.bench.scenarios import SCENARIOS, Scenario, WindowSample, measure, run_rounds
from carpool.bench.work import ToolWorkload, error_kind
from carpool.check.file_faults import faults_behind
from carpool.control.control_client import NOT_RUNNING, AnsweredError, text_for_people
from carpool_protocol.bootstrap import paths
from carpool_protocol.runtime.descriptor_limit import raise_descriptor_limit

EXIT_FAILED, EXIT_NO_BROKER = 1, 69
MOST_AGENTS = 500
DESCRIPTORS = 4 * MOST_AGENTS
"""As many as the agents need, and more."""
_FIRST_START_S = 300.0
"""The first call may have to wait for npx or uvx to install the server (rule 2)."""


def machine() -> dict[str, Any]:
    """Return facts of this machine that put the figures in context; none of them names the machine."""
    return {
        "cpus": os.cpu_count(),
        "arch": platform.machine(),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "load_1m": round(os.getloadavg()[0], 2),
    }


def progress(wanted: bool) -> Callable[[str], None]:
    """Shows what is being done on one line of stderr, where somebody may look at it."""

    def say(text: str) -> None:
        if wanted and sys.stderr.isatty():
            click.echo(f"\r\x1b[K{text}", nl=False, err=True)

    return say


def load_tool(
    arm: Arm, work: ToolWorkload, scenario: Scenario, seconds: float, *, say: Callable[[str], None]
) -> WindowSample:
    """Try the tool once, then load it. Raises `BenchError` when the name or the arguments are refused."""
    tool = work.tool
    say(f"{tool}: the first call")
    try:
        crowd = BenchAgents(arm.attach(1), patience_s=_FIRST_START_S)
        try:
            crowd.greet()
            reply = crowd.request("tools/call", {"name": tool, "arguments": json.loads(work.arguments)})
        finally:
            crowd.close()
    finally:
        arm.detach()
    if "error" in reply:
        # Our own refusals and the server's: both are about the request, and every call would get them.
        said = str(reply["error"].get("message", ""))
        error = AnsweredError(msgspec.Raw(msgspec.json.encode(reply["error"])), said)
        text = text_for_people(error, tool) or f"{error_kind(reply)}: {said}"
        raise BenchError("\n".join(filter(None, (text, faults_behind(error)))))
    return measure(
        arm,
        scenario,
        seconds=seconds,
        warmup_s=min(1.0, seconds / 4),
        work=work,
        tick=lambda done, elapsed_s: say(f"{tool}: {done:,} calls, {elapsed_s:.0f} of {seconds:g} s"),
    )


def _bench_tool(work: ToolWorkload, scenario: Scenario, seconds: float, *, shims: bool, as_json: bool) -> int:
    directory = paths.runtime_dir(os.environ, os.getuid())
    arm = RunningCarpoolArm(directory, shims=shims)
    say = progress(not as_json)
    if not arm.reachable():
        click.echo(f"carpool: {NOT_RUNNING}", err=True)
        return EXIT_NO_BROKER
    try:
        sample = load_tool(arm, work, scenario, seconds, say=say)
    finally:
        arm.stop()
        say("")
    if as_json:
        click.echo(json.dumps(report.finite(report.builtins(sample)), indent=2))
    else:
        click.echo(f"{work.tool} through {arm.name}, {scenario.name} (agents x in flight)")
        click.echo(report.plain(report.one_sample(sample)))
    return EXIT_FAILED if math.isnan(sample.p50_s) else 0  # not one good answer


def _bench_echo(scenarios: list[Scenario], seconds: float, rounds: int, *, shims: bool, as_json: bool) -> int:
    say = progress(not as_json)
    try:
        samples, firsts = run_rounds(
            lambda: [DirectArm(), PrivateCarpoolArm(shims=shims)],
            scenarios,
            rounds=rounds,
            seconds=seconds,
            warmup_s=min(0.4, seconds),
            say=say,
        )
    finally:
        say("")
    summary = report.summarise(samples)
    if as_json:
        click.echo(json.dumps(report.as_json(samples, firsts, machine()), indent=2))
    else:
        first = report.first_calls(firsts)
        tables = [
            report.speed_table(summary, ["direct"]),
            report.cost_table(summary),
            report.first_table(first),
        ]
        click.echo("\n\n".join(report.plain(table) for table in tables))
        for line in report.error_lines(summary):
            click.echo(line)
    return EXIT_FAILED if report.error_lines(summary) else 0


def _object(_context: click.Context, _parameter: click.Parameter, value: str) -> bytes:
    """`--args` as one JSON object, on one line."""
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise click.BadParameter('the arguments of a tool are one JSON object, such as \'{"text": "hi"}\'')
    return json.dumps(parsed, separators=(",", ":")).encode()


@click.command("bench")
@click.argument("tool", required=False)
@click.option(
    "--args", "arguments", default="{}", callback=_object, metavar="JSON", help="Arguments of TOOL."
)
@click.option("--agents", type=click.IntRange(1, MOST_AGENTS), help="How many agents. [8 with TOOL]")
@click.option("--in-flight", type=click.IntRange(1, 256), help="Open calls of each agent. [1]")
@click.option("--seconds", type=click.FloatRange(0.1, 600), help="Length of a window. [5 with TOOL, else 1]")
@click.option(
    "--shims", is_flag=True, help="Each agent through its own `carpool connect`, not on the socket."
)
@click.option("--quick", is_flag=True, help="Without TOOL: one round instead of three.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def bench(
    *,
    tool: str | None,
    arguments: bytes,
    agents: int | None,
    in_flight: int | None,
    seconds: float | None,
    shims: bool,
    quick: bool,
    as_json: bool,
) -> None:
    """Load TOOL through the running carpool and tell calls/s, latencies, errors and CPU.

    TOOL is any name that `carpool tools` shows. Without TOOL, an echo server is compared
    over a direct pipe and through a private carpool, which is ended afterwards.
    """
    raise_descriptor_limit(DESCRIPTORS)
    shape = Scenario(name=f"{agents or 8}x{in_flight or 1}", agents=agents or 8, in_flight=in_flight or 1)
    try:
        if tool is not None:
            sys.exit(
                _bench_tool(
                    ToolWorkload(tool, arguments), shape, seconds or 5.0, shims=shims, as_json=as_json
                )
            )
        if arguments != b"{}":
            raise click.UsageError("--args needs a TOOL")
        scenarios = [each for each in SCENARIOS if each.name in {"1x1", "1x64", "64x1"}]
        if agents or in_flight:
            scenarios = [shape]
        sys.exit(_bench_echo(scenarios, seconds or 1.0, 1 if quick else 3, shims=shims, as_json=as_json))
    except BenchError as error:
        click.echo(f"carpool bench: {error}", err=True)
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        click.echo("stopped", err=True)
        sys.exit(130)


if __name__ == "__main__":
    bench()
