"""The verb `setup`: move the servers of other programs into carpool, and back.

Owns the order of things: look, show, ask once, write down, change; and the words around it. Works without a
daemon; one that runs reads carpool.json by itself.

Knows nothing of: which server goes where (`setup.plan`), what undoing does to a file (`setup.undo`).
"""

import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence

import click

from carpool import display
from carpool.cli import EXIT_FAILED, EXIT_USAGE, fail, json_option, print_json, the_place
from carpool.setup import disk, ours, record, show
from carpool.setup.back import undo_all
from carpool.setup.clients import CLIENTS, candidates
from carpool.setup.model import Change, Left, Plan
from carpool.setup.plan import make_plan
from carpool.trust_question import page
from carpool_protocol import paths
from carpool_protocol.config.edit import CannotEditError
from carpool_protocol.config.load import home_of


@click.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@click.option(
    "--client",
    "named",
    multiple=True,
    type=click.Choice([each.id for each in CLIENTS]),
    help="Only this program, which gets the entry even without servers; with --undo, only its files. May be "
    "said again.",
)
@click.option("--user-only", is_flag=True, help="Leave the files of the project alone.")
@click.option("--trust", is_flag=True, help="With --yes: trust the project's servers as well.")
@click.option("--undo", is_flag=True, help="Put everything back as it was.")
@click.option("--force", is_flag=True, help="With --undo: take carpool's entry out even where it was edited.")
@json_option
def setup(
    *,
    yes: bool,
    dry_run: bool,
    named: tuple[str, ...],
    user_only: bool,
    trust: bool,
    undo: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Have your programs share their MCP servers: found, moved into carpool, and back with --undo.

    Each program keeps one entry, `carpool connect`. Secrets go into a file that only you may read. You see
    every change first and are asked once.
    """
    if force and not undo:
        raise click.UsageError("--force goes with --undo")
    if undo and (user_only or trust):
        raise click.UsageError("--undo goes with --client, --force and --dry-run only")
    store = f"{paths.state_dir(os.environ, the_place().directory)}/setup"
    try:
        paths.ensure_private(store, paths.STATE_VARIABLE)  # copies of secrets will lie there
        with record.alone(store):
            if undo:
                undo_all(store, named=named, dry_run=dry_run, force=force, as_json=as_json)
            else:
                _setup(
                    store, named, yes=yes, dry_run=dry_run, user_only=user_only, trust=trust, as_json=as_json
                )
    except paths.NotPrivateError as error:
        fail(str(error), EXIT_USAGE)
    except OSError as error:
        fail(f"{error.filename or store} cannot be used ({error.strerror})")


def _setup(
    store: str,
    named: tuple[str, ...],
    *,
    yes: bool,
    dry_run: bool,
    user_only: bool,
    trust: bool,
    as_json: bool,
) -> None:
    home = home_of(os.environ)
    project = "" if user_only else ours.project_of(home)
    chosen = [
        each
        for each in candidates(os.environ, home, sys.platform, project)
        if not named or each.client.id in named
    ]
    sources, untouched = disk.found(chosen, named)
    own, secrets = ours.own_files(home)
    try:
        plan = make_plan(
            sources,
            own,
            ours.project_file(project) if project else None,
            secrets,
            ours.command,
            home=home,
            alive=os.path.isdir,
            starts=lambda program: shutil.which(program) is not None,
            named=named,
            remote=importlib.util.find_spec("mcp") is not None,
        )
    except CannotEditError as error:
        fail(f"nothing is changed: {error}", EXIT_USAGE)
    stays = (*untouched, *plan.left)
    if not plan.changes:
        _nothing(plan, stays, bool(sources or untouched), as_json=as_json)
        return
    if not as_json:
        click.echo(show.page(plan) + "\n")
        if untouched:
            click.echo(show.left(tuple(untouched)) + "\n")
    after = {each.role: each.after for each in plan.changes}
    before = ours.sure_of(project) if "project" in after and (trust or not yes) else None
    question = ours.asked(project, after.get("own"), after["project"]) if before is not None else {}
    if question and not as_json:
        click.echo(page(question) + "\n")
    if dry_run:
        _tell(plan, stays, [], as_json=as_json, done=False)
        return
    if not yes:
        _ask(project if question else "")
    failures = _apply(store, plan, before)
    if before is not None and not failures:
        said = ours.trust_now(project, after["project"], before, question["taken_over"])
        failures += [said] if said else []
    _tell(
        plan,
        stays,
        failures,
        as_json=as_json,
        done=True,
        untrusted=project if "project" in after and (before is None or failures) else "",
    )
    if failures:
        raise click.exceptions.Exit(EXIT_FAILED)


def _ask(project: str) -> None:
    if not sys.stdin.isatty():
        fail("nobody is there to be asked: look at it and say `carpool setup --yes`", EXIT_USAGE)
    also = f", and may the servers of {project} run for you" if project else ""
    if not click.confirm(f"Change these files{also}?", err=True):
        click.echo("nothing is changed", err=True)
        raise click.exceptions.Exit(EXIT_FAILED)


def _apply(store: str, plan: Plan, trusted: ours.Before | None) -> list[str]:
    """Change the files, ours first. What could not be done; programs whose file failed have their servers
    still. `trusted`: of the project, if its file is to be trusted as it will be.
    """
    known = () if trusted is None else trusted.listed
    run = record.begin(store, plan.changes, None if trusted is None else trusted.digest, known)
    failures: list[str] = []
    for entry, change in zip(run.record.entries, plan.changes, strict=True):
        mode = 0o600 if change.role == "secrets" else entry.mode
        try:
            if disk.bytes_of(change.path) != change.before:
                failures.append(
                    f"{change.path} was changed this very moment, and stays as it is; say it again"
                )
            else:
                disk.sweep_parts(change.path)
                disk.write(change.path, change.after, _new_mode(change, mode))
                continue
        except OSError as error:
            failures.append(f"{change.path} cannot be written ({error.strerror})")
        if change.role != "client":
            break  # a program's servers leave it only once carpool has them
    return failures


def _new_mode(change: Change, mode: int) -> int:
    return 0o644 if change.role == "project" and change.before is None else mode


def _nothing(plan: Plan, stays: Sequence[Left], found: bool, *, as_json: bool) -> None:
    if as_json:
        print_json({**show.facts(plan, stays, done=False), "failures": [], "next": []})
        return
    if stays:
        click.echo(show.left(tuple(stays)))
    what = (
        "no program has a server that could go to carpool"
        if found
        else "no program with MCP servers was found"
    )
    click.echo(f"{what}; nothing is changed")
    if not found:
        click.echo("`carpool add` adds a server, and `carpool setup --client NAME` gives a program the entry")


def _tell(
    plan: Plan, stays: Sequence[Left], failures: list[str], *, as_json: bool, done: bool, untrusted: str = ""
) -> None:
    said = next_steps(plan, untrusted) if done else ["carpool setup"]
    if as_json:
        print_json({**show.facts(plan, stays, done=done), "failures": failures, "next": said})
        return
    for each in failures:
        click.echo(f"carpool: {display.printable(each)}", err=True)
    click.echo("\n".join(map(display.printable, said)) if done else "nothing is changed: it was a dry run")


def next_steps(plan: Plan, untrusted: str) -> list[str]:
    """What a person does now, at most six lines."""
    titles = list(dict.fromkeys(each.client for each in plan.moved))
    said = [f"Done. Restart {', '.join(titles)}; carpool starts by itself." if titles else "Done."]
    if untrusted:
        said.append(f"carpool trust {untrusted}     lets the project's servers run")
    logins = list(dict.fromkeys(each.name for each in plan.moved if each.login and not each.under))
    if logins:
        more = f" (also {', '.join(logins[1:])})" if len(logins) > 1 else ""
        said.append(f"carpool login {logins[0]}     if that server wants one{more}")
    return [
        *said,
        "carpool status           who is there, which servers run, what is saved",
        "carpool tools            what agents see",
        "carpool setup --undo     everything back as it was",
    ]
