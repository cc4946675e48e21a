"""The verb `doctor`: what is wrong here, and the line that repairs it.

Owns the page and `--fix`. Knows nothing of: how problems are found (`carpool.doctor`).
"""

import sys
from collections.abc import Sequence

import click
import msgspec

from carpool.cli.doctor_facts import gather_facts
from carpool.cli.main import json_option
from carpool.doctor.diagnose import Problem, diagnose
from carpool.terminal import display
from carpool.terminal.verb_output import EXIT_FAILED, print_json

NOTHING_FOUND = "nothing is wrong that carpool doctor knows of"


@click.command()
@click.option("--fix", "fixes", is_flag=True, help="Ask, and then repair what is safe to repair.")
@json_option
@click.pass_context
def doctor(ctx: click.Context, *, fixes: bool, as_json: bool) -> None:
    """Find out what is wrong here, and say how to repair it. Exit code 1: something was found.

    Looks at the configuration of this directory, at the carpool that runs, and at the directories it writes
    to. Starts nothing.
    """
    problems = diagnose(gather_facts())
    if as_json:
        print_json({"ok": not problems, "problems": [msgspec.to_builtins(each) for each in problems]})
    else:
        click.echo(doctor_page(problems))
    if fixes and any(each.fix == "restart" for each in problems):
        _restart(ctx)
    if problems:
        raise click.exceptions.Exit(EXIT_FAILED)


def doctor_page(problems: Sequence[Problem]) -> str:
    """Return the problems for people."""
    if not problems:
        return NOTHING_FOUND
    parts = [
        f"{display.coloured(each.id, 'red')}\n  {display.printable(each.text, lines=True)}"
        f"\n  -> {display.printable(each.repair)}"
        for each in problems
    ]
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return "\n".join([*parts, f"\n{count}; `carpool docs problems` explains each by its id"])


def _restart(ctx: click.Context) -> None:
    """Replace the running carpool, if the user agrees. Does nothing without a terminal."""
    from carpool.cli.daemon import restart  # late: few runs need it

    if sys.stdin.isatty() and click.confirm("restart carpool now with the installed version?"):
        ctx.invoke(restart, servers=(), everything=True, as_json=False)
