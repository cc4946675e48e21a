"""The verb `carpool demo`: two real MCP servers, many agents, without carpool and with it.

Owns the options, what is needed beforehand, the end in every case (also Ctrl-C) and the exit code:
0 when every answer was right and nothing is left running, 1 when not, 2 when something is not installed,
130 when interrupted. Knows nothing of: what happens in between (`run`).
"""

import importlib.util
import json
import os
import shutil
import sys
import time

import click

from carpool.cli.main import json_option
from carpool.demo import report, repository
from carpool.demo.questions import MODULES
from carpool.demo.run import DemoRun
from carpool.demo.sandbox import DemoCarpool, DemoError
from carpool.demo.show import ProgressDisplay
from carpool.launcher.sandbox import PrivateCarpoolError
from carpool.terminal import end_signals
from carpool.terminal.verb_output import EXIT_FAILED, EXIT_USAGE
from carpool_protocol.bootstrap.extras import install_command, is_installed

LIMIT_S = 180.0
"""For everything but the end, which takes at worst 45 s. A busy machine with two cores has needed 90 s."""
EXIT_INTERRUPTED = 130


@click.command("demo")
@click.option(
    "--agents", type=click.IntRange(1, 60), help="How many agents; 20 if not said, 60 with --cluster."
)
@click.option(
    "--cluster", is_flag=True, help="Three nodes on this machine instead, of which one is killed, and NATS."
)
@json_option
def demo(*, agents: int | None, cluster: bool, as_json: bool) -> None:
    """Show on real servers what sharing them buys: memory, speed, and what a crash does.

    Runs mcp-server-time and mcp-server-git, first a copy for each agent, then once for all through
    carpool, and kills one in the middle. Half a minute. Uses a private directory and a carpool of its
    own, and leaves nothing behind.

    With --cluster: agents on two nodes call a server of a third, while NATS and that node are killed.
    """
    if cluster:
        sys.exit(_perform_cluster(agents or 60, as_json=as_json))
    if missing := lacking():
        click.echo(f"carpool demo: {missing}", err=True)
        sys.exit(EXIT_USAGE)
    sys.exit(perform(agents or 20, as_json=as_json))


def _perform_cluster(agents: int, *, as_json: bool) -> int:
    """The demo of three nodes. The exit code."""
    if not is_installed("cluster"):
        click.echo(f"carpool demo: the extra `cluster` is needed:\n  {install_command('cluster')}", err=True)
        return EXIT_USAGE
    from carpool.demo.cluster import perform_cluster  # late: it needs the extra

    output, problems = perform_cluster(agents, as_json=as_json)
    click.echo(output)
    if not as_json:
        for problem in problems:
            click.echo(f"carpool demo: {problem}", err=True)
    return EXIT_FAILED if problems else 0


def lacking() -> str:
    """Return the names of what is not installed and how to install it; empty if nothing is missing."""
    absent = [module.replace("_", "-") for module in MODULES.values() if not importlib.util.find_spec(module)]
    if absent:
        return (
            f"{' and '.join(absent)} must be installed first (the extra `demo`):\n  {install_command('demo')}"
        )
    if not shutil.which("git"):
        return "`git` must be installed first; the git server runs it"
    return ""


def perform(agents: int, *, as_json: bool) -> int:
    """The whole demo; says everything itself. The exit code."""
    show = ProgressDisplay()
    deadline_s = time.monotonic() + LIMIT_S
    found: report.Facts = {}
    problems: list[str] = []
    code = 0
    end_signals.interrupt()
    demo_carpool = DemoCarpool()
    try:
        run = DemoRun(demo_carpool, show, agents, deadline_s)
        if not as_json:
            click.echo(report.opening(agents))
        demo_carpool.configure()
        run.commits = repository.make(demo_carpool.base / "repo")
        show.print_step(f"made a git repository with {len(run.commits)} commits for the git server")
        show.print_step("1. WITHOUT CARPOOL: every agent starts its own servers")
        private = run.run_private()
        show.print_step("2. WITH CARPOOL: the servers are shared")
        shared = run.run_shared()
        found = report.facts(agents, run.memory_kind, os.cpu_count(), private, shared)
        problems += report.problems(found)
    except (DemoError, PrivateCarpoolError, repository.RepoError) as error:
        problems.append(str(error))
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    finally:
        end_signals.hold_off()  # the end is bounded
        show.print_step("ending everything ..." if code == 0 else "interrupted; ending everything ...")
        left = demo_carpool.close()
    found |= {"seconds": round(show.elapsed_s(), 1), "problems": problems, "left": left}
    _tell(found, interrupted=code != 0, as_json=as_json)
    return code if code and not left else EXIT_FAILED if problems or left else code


def _tell(found: report.Facts, *, interrupted: bool, as_json: bool) -> None:
    """The result, and last what is left."""
    if as_json:
        well = not interrupted and not found["problems"] and not found["left"]
        click.echo(json.dumps({"ok": well, "interrupted": interrupted, **found}, indent=2))
        return
    if "answers" in found:
        click.echo(f"\n{report.table(found)}\n")
        if not found["problems"]:
            right, took = f"{found['answers']['right']:,}", f"{found['seconds']:.0f} s"
            click.echo(f"All {right} answers were checked, and every one was right. It took {took}.")
            click.echo(report.NEXT)
    for problem in [*found["problems"], *found["left"]]:
        click.echo(f"carpool demo failed: {problem}", err=True)
    if not found["left"]:
        click.echo("Nothing is left: no process bears the demo's mark, and its directory is gone.")
