"""The verb `doctor`: what is wrong here, and the line that repairs it.

Owns the page and the questions of `--fix`. Knows nothing of: how problems are found (`carpool.doctor`), how
they are repaired (`doctor_repairs`).
"""

import os
import sys
from collections.abc import Sequence

import click
import msgspec

from carpool.cli.doctor_facts import gather_facts
from carpool.cli.doctor_repairs import RepairResult, question, repair
from carpool.cli.first_run import has_servers, no_servers
from carpool.cli.main import environment, json_option
from carpool.doctor.diagnose import Problem, diagnose
from carpool.terminal import display
from carpool.terminal.table import Colour
from carpool.terminal.verb_output import EXIT_FAILED, print_json
from carpool_protocol.bootstrap import paths

NOTHING_FOUND = "nothing is wrong that carpool doctor knows of"


@click.command()
@click.option(
    "--fix", "fixes", is_flag=True, help="Ask before each repair that carpool can do itself, and do it."
)
@click.option("--yes", is_flag=True, help="With --fix: do not ask.")
@json_option
def doctor(*, fixes: bool, yes: bool, as_json: bool) -> None:
    """Find out what is wrong here, and say how to repair it. Exit code 1: something is wrong.

    Looks at the configuration of this directory, at the carpool that runs, and at the directories it writes
    to. Starts nothing. With --fix it looks again after its repairs, and says what is still wrong.
    """
    if yes and not fixes:
        raise click.UsageError("--yes goes with --fix")
    problems = diagnose(gather_facts())
    if not as_json:
        click.echo(doctor_page(problems))
        if not problems and (said := _no_servers()):
            click.echo(said)
    done: list[RepairResult] = []
    if fixes:
        done = _repaired(problems, asks=not yes, as_json=as_json)
    if done:
        problems = diagnose(gather_facts())
        if not as_json:
            click.echo(f"\nafter that: {doctor_page(problems)}")
    if as_json:
        facts = {"ok": not is_wrong(problems), "problems": problems, "repaired": done}
        print_json(msgspec.to_builtins(facts))
    if is_wrong(problems):
        raise click.exceptions.Exit(EXIT_FAILED)


def _no_servers() -> str:
    if has_servers(environment()):
        return ""
    return no_servers(environment(), paths.runtime_dir(os.environ, os.getuid()))


def is_wrong(problems: Sequence[Problem]) -> bool:
    """Return True unless the user may have meant all of them."""
    return not all(each.may_be_meant for each in problems)


def _repaired(problems: Sequence[Problem], *, asks: bool, as_json: bool) -> list[RepairResult]:
    """Repair what can be repaired, and return the results. Questions and results are written to stderr."""
    wanted = [each for each in problems if each.fix]
    if wanted and asks and (as_json or not sys.stdin.isatty()):
        click.echo("carpool: nothing is repaired unasked; add --yes", err=True)
        return []
    done: list[RepairResult] = []
    for problem in wanted:
        if asks and not click.confirm(display.printable(question(problem)), err=True):
            continue
        result = repair(problem)
        done.append(result)
        click.echo(display.printable(f"{result.id}: {result.text}"), err=True)
    return done


def _colour(problem: Problem) -> Colour:
    return "yellow" if problem.may_be_meant else "red"


def doctor_page(problems: Sequence[Problem]) -> str:
    """Return the problems for people."""
    if not problems:
        return NOTHING_FOUND
    parts = [
        "\n".join(
            [
                display.coloured(f"{each.id} ({each.server})" if each.server else each.id, _colour(each)),
                display.wrapped(each.text, "  ", "  "),
                display.wrapped(each.repair, "  -> ", "     "),
            ]
        )
        for each in problems
    ]
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    if not is_wrong(problems):
        count = "nothing is wrong if you mean this"
    last = display.wrapped(f"{count}; `carpool docs problems` explains each by its id")
    return "\n".join([*parts, "", last])
