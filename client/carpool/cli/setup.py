"""The verb `setup`: move the servers of other programs into carpool, and back.

Owns the order of steps: look, show, ask, try, record, change; and the words around it. It asks separately
about the user's own files, the project's files, and trust. Works without a daemon; a running one reads
carpool.json by itself. Knows nothing of: which server goes where (`setup.plan`), what undoing does to a file
(`setup.undo`).
"""

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import click
from msgspec import Struct, structs

from carpool import launcher_lock
from carpool.check import names
from carpool.check.trust_facts import page
from carpool.cli.main import json_option, reach_broker
from carpool.cli.setup_trial import Trial, try_servers
from carpool.control.control_client import AnsweredError, ControlClientError
from carpool.control.place import runtime_place
from carpool.setup import carpool_files, diff, file_io, run_record
from carpool.setup.carpool_files import PROJECT_FILE
from carpool.setup.client_files import CLIENTS
from carpool.setup.inventory import SetupInventory, inventory
from carpool.setup.model import FileChange, KeptInPlace, SetupPlan
from carpool.setup.permission_rules import PermissionRule
from carpool.setup.plan import LENGTH
from carpool.setup.trial import TrialResult, server_key, trial_entries
from carpool.setup.undo_run import undo_all
from carpool.terminal import display
from carpool.terminal.verb_output import EXIT_FAILED, EXIT_USAGE, fail, print_json
from carpool_protocol.bootstrap import paths
from carpool_protocol.config.reading.load import find_config_file, home_of, load_config
from carpool_protocol.config.text.jsonc import parse
from carpool_protocol.runtime.node_join import node_pid

TRYING = "Starting each server once. One that does not work stays where it is; Ctrl-C changes nothing."


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
@click.option(
    "--project/--user-only",
    "wants_project",
    default=None,
    help="Change the files of the project, too, or leave them alone. Default: asked; with --yes they are "
    "changed unless git tracks one of them.",
)
@click.option(
    "--separate/--share-all",
    default=None,
    help="Each program keeps the servers it had, by a profile, or sees all of them. Default: asked; with "
    "--yes each keeps its own.",
)
@click.option(
    "--try/--no-try",
    "tries",
    default=None,
    help="Start each server once before it moves; one that does not work stays in its file. Default: --try.",
)
@click.option("--trust", is_flag=True, help="With --yes: trust the project's servers as well.")
@click.option("--undo", is_flag=True, help="Put everything back as it was.")
@click.option("--force", is_flag=True, help="With --undo: take carpool's entry out even where it was edited.")
@json_option
def setup(
    *,
    yes: bool,
    dry_run: bool,
    named: tuple[str, ...],
    wants_project: bool | None,
    separate: bool | None,
    tries: bool | None,
    trust: bool,
    undo: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Have your programs share their MCP servers: found, moved into carpool, and back with --undo.

    Each program keeps one entry, `carpool connect`. Secrets go into a file that only you may read. You see
    every change first and are asked: for your own files, and for those of the project that you are in.
    """
    if force and not undo:
        raise click.UsageError("--force goes with --undo")
    if undo and (wants_project is not None or separate is not None or tries is not None or trust):
        raise click.UsageError("--undo goes with --client, --force and --dry-run only")
    store = f"{paths.state_dir(os.environ, runtime_place().directory)}/setup"
    try:
        paths.ensure_private(store, paths.STATE_VARIABLE)  # copies of secrets will lie there
        with run_record.setup_lock(store):
            if undo:
                undo_all(store, named=named, dry_run=dry_run, force=force, as_json=as_json)
            else:
                asks = SetupDialog(
                    yes=yes, dry_run=dry_run, as_json=as_json, trust=trust, tries=tries is not False
                )
                _setup(store, named, asks, wants_project=wants_project, separate=separate)
    except paths.NotPrivateError as error:
        fail(str(error), EXIT_USAGE)
    except OSError as error:
        fail(f"{error.filename or store} cannot be used ({error.strerror})")


class SetupDialog(Struct, frozen=True, kw_only=True):
    """The options of the verb that say how questions are answered, and in which form the output is."""

    yes: bool
    dry_run: bool
    as_json: bool
    trust: bool
    tries: bool = True
    """True if each server is started once before it is moved."""

    def show(self, text: str) -> None:
        """Print a text for people."""
        if text and not self.as_json:
            click.echo(text + "\n")

    def is_person(self) -> bool:
        """True if questions are asked."""
        return not self.yes and not self.dry_run

    def ask(self, question: str, *, default: bool | None = None) -> bool:
        """Ask a question."""
        if not sys.stdin.isatty():
            fail("nobody is there to be asked: look at it and say `carpool setup --yes`", EXIT_USAGE)
        return click.confirm(question, default=default, err=True)


def _setup(
    store: str,
    named: tuple[str, ...],
    asks: SetupDialog,
    *,
    wants_project: bool | None,
    separate: bool | None,
) -> None:
    home = home_of(os.environ)
    found = inventory(named, "" if wants_project is False else carpool_files.project_of(home), home)
    if separate is None:
        separate = _separate(found, asks)
    alone, whole = (found.plan(project=each, separate=separate) for each in (False, True))
    stays = (*found.untouched, *whole.left)
    if not whole.changes:
        _nothing_to_do(found, whole, stays, as_json=asks.as_json)
        return
    plan, lost = _chosen(found, alone, whole, asks, wants_project)
    if not plan.changes and asks.is_person():
        _unchanged()
    before = _trusted(found.project, plan, asks)
    after = {each.role: each.after for each in plan.changes}
    told = {**_told(found, whole, lost, changed="project" in after), "started": []}
    if asks.dry_run:
        _print_result(plan, stays, [], told, as_json=asks.as_json, done=False)
        return
    needs: list[str] = []
    if asks.tries and plan.changes:
        trial = _tried(found, plan, asks, is_trusted=before is not None)
        tried_plan = found.plan(project=plan is whole, separate=separate, tried=trial.results)
        kept = tuple(each for each in tried_plan.left if each not in plan.left)
        asks.show("\n".join(filter(None, [diff.kept_lines(kept), diff.summary(tried_plan) if kept else ""])))
        plan, stays = tried_plan, (*stays, *kept)
        after = {each.role: each.after for each in plan.changes}
        told |= _told(found, whole, found.rules_of(plan), changed="project" in after)
        told["started"] = [structs.asdict(each) for each in trial.starts]
        needs = [
            f"{each.name} {note}"
            for each in plan.moved
            if (note := trial.results.get(server_key(each), TrialResult()).note)
        ]
    failures = _apply(store, plan, before)
    if before is not None and "project" in after and not failures:
        said = carpool_files.trust_now(found.project, after["project"], before)
        failures += [said] if said else []
    untrusted = found.project if "project" in after and (before is None or failures) else ""
    _print_result(
        plan,
        stays,
        failures,
        told,
        as_json=asks.as_json,
        done=True,
        untrusted=untrusted,
        needs=dict.fromkeys(needs),
    )
    if failures:
        raise click.exceptions.Exit(EXIT_FAILED)


def _told(
    found: SetupInventory,
    whole: SetupPlan,
    lost: Sequence[PermissionRule],
    *,
    changed: bool,
) -> dict[str, Any]:
    """Return the facts for programs that are not part of the plan. `changed`: the project's file is, too."""
    return {
        "project": diff.project_facts(found.project, whole, found.known, changed=changed),
        "rules": diff.rule_facts(lost),
        "not_looked_into": diff.other_facts(found.others),
    }


def _tried(found: SetupInventory, plan: SetupPlan, asks: SetupDialog, *, is_trusted: bool) -> Trial:
    """Start each server of the plan once. `is_trusted`: the project's servers may run."""
    own, secrets = carpool_files.own_files(found.home)
    entries = trial_entries(
        plan, lambda moved: is_trusted or moved.to != os.path.join(found.project, PROJECT_FILE), found.project
    )
    changed = {each.role: each.after.decode() for each in plan.changes}
    value = parse(own.text or "{}", own.path).value
    if entries:
        asks.show(f"\n{TRYING}")
    return try_servers(
        entries,
        {*plan.hidden, *secrets.values.values()},
        value if isinstance(value, dict) else {},
        changed.get("secrets", secrets.text or ""),
        quiet=asks.as_json,
    )


def _chosen(
    found: SetupInventory, alone: SetupPlan, whole: SetupPlan, asks: SetupDialog, wants_project: bool | None
) -> tuple[SetupPlan, list[PermissionRule]]:
    """Show the plan and ask about it.

    Returns the plan with or without the files of the project, and the rules that it affects.
    """
    lost = found.rules_of(alone)
    if alone.changes:
        asks.show(diff.page(alone))
    asks.show(diff.kept_lines(tuple(found.untouched)))
    asks.show("\n".join(diff.other_program_lines(found.others)))
    asks.show("\n".join(_shortened_names(whole)))
    if alone.changes:
        asks.show("\n".join(diff.rule_lines(lost)))
        if asks.is_person():
            asks.show(diff.summary(alone))
        if asks.is_person() and not asks.ask(_question("Change these files?", lost)):
            _unchanged()
    project = diff.plan_difference(whole, alone)
    if not project.changes:
        return alone, lost
    more = [each for each in found.rules_of(whole) if each not in lost]
    asks.show(diff.page(project))
    asks.show("\n".join(diff.rule_lines(more)))
    asks.show("\n".join(diff.git_lines(found.project, whole, found.known)))
    if _takes_project(found, whole, asks, wants_project, more):
        return whole, [*lost, *more]
    return alone, lost


def _shortened_names(plan: SetupPlan) -> list[str]:
    """Return lines about tool names that are cut for programs which put a prefix before them."""
    place = runtime_place()
    config = load_config(find_config_file(os.environ)).config
    if config is None or not any(
        LENGTH in each.after.decode() for each in plan.changes if each.role == "client"
    ):
        return []
    tools: list[dict[str, Any]] = []
    if launcher_lock.holder(place.directory) is not None:
        with (
            contextlib.suppress(ControlClientError, AnsweredError, ValueError),
            reach_broker(place, control=True) as door,
        ):
            answer = json.loads(bytes(door.request("carpool/tools", {"offline": True})))
            tools = answer.get("tools") or []
    found = [each for each in names.shortened(tools, config) if each["length"] == names.PREFIXED_CHARS]
    later = "Once servers have run, `carpool check` names the tools that are cut to "
    return [*names.name_lines(found), f"{later}{names.PREFIXED_CHARS} characters"]


def _separate(found: SetupInventory, asks: SetupDialog) -> bool:
    """True if programs keep the servers they had. The user is asked only if that makes a difference."""
    if not asks.is_person():
        return True
    apart, together = (found.plan(project=True, separate=each).given for each in (True, False))
    if apart == together:
        return True
    asks.show("\n".join(f"{each.title} had {each.had} of {each.of} servers." for each in apart))
    return asks.ask("Shall each program keep the servers it had? Else all of them see all", default=True)


def _question(text: str, lost: Sequence[PermissionRule]) -> str:
    count = sum(each.protects for each in lost)
    if not count:
        return text
    some = "rule that keeps a tool back does" if count == 1 else "rules that keep tools back do"
    return f"{text} {count} {some} not hold until you change it"


def _takes_project(
    found: SetupInventory,
    whole: SetupPlan,
    asks: SetupDialog,
    wanted: bool | None,
    lost: Sequence[PermissionRule],
) -> bool:
    """True if the project's files are changed. The default is no if others get the change through git."""
    default = not found.known.tracked & {each.path for each in whole.changes} if wanted is None else wanted
    if not asks.is_person():
        return default
    text = f"Change these files of the project {found.project}, too?"
    return asks.ask(_question(text, lost), default=default)


def _trusted(project: str, plan: SetupPlan, asks: SetupDialog) -> carpool_files.EarlierTrust | None:
    """Return the earlier trust in the project if its servers may run from now on, else None."""
    after = {each.role: each.after for each in plan.changes}
    if "project" not in after or (asks.yes and not asks.trust):
        return None
    before = carpool_files.check_trustable(project)
    if before is None:
        return None
    question = carpool_files.trust_question_facts(project, after.get("own"), after["project"])
    asks.show(page(question))
    if asks.is_person() and not asks.ask(f"May the servers of {project} run for you?"):
        return None
    return structs.replace(before, taken_over=question["taken_over"])


_IN_CLUSTER = (
    "This machine is in a cluster: agents of other nodes get these servers, too, and a server there gets no "
    "roots of its agents. One that works in its agent's directory stays here (`carpool cluster status` says "
    "which and why)."
)


def _unchanged() -> NoReturn:
    click.echo("nothing is changed", err=True)
    raise click.exceptions.Exit(EXIT_FAILED)


def _apply(store: str, plan: SetupPlan, trusted: carpool_files.EarlierTrust | None) -> list[str]:
    """Change the files, carpool's own first. Returns the failures.

    A program whose file could not be changed still has its servers. `trusted`: the earlier trust in the
    project, if its file is to be trusted as changed.
    """
    known = () if trusted is None else trusted.listed
    run = run_record.begin_run(store, plan.changes, None if trusted is None else trusted.digest, known)
    failures: list[str] = []
    for entry, change in zip(run.record.entries, plan.changes, strict=True):
        mode = 0o600 if change.role == "secrets" else entry.mode
        try:
            if file_io.bytes_of(change.path) != change.before:
                failures.append(
                    f"{change.path} was changed this very moment, and stays as it is; say it again"
                )
            else:
                file_io.sweep_parts(change.path)
                file_io.write(change.path, change.after, _new_mode(change, mode))
                continue
        except OSError as error:
            failures.append(f"{change.path} cannot be written ({error.strerror})")
        if change.role != "client":
            break  # a program's servers leave it only once carpool has them
    return failures


def _new_mode(change: FileChange, mode: int) -> int:
    return 0o644 if change.role == "project" and change.before is None else mode


def _nothing_to_do(
    found: SetupInventory, plan: SetupPlan, stays: Sequence[KeptInPlace], *, as_json: bool
) -> None:
    if as_json:
        told = {
            "project": None,
            "rules": [],
            "not_looked_into": diff.other_facts(found.others),
            "started": [],
        }
        print_json({**diff.facts(plan, stays, done=False), **told, "failures": [], "next": []})
        return
    if stays:
        click.echo(diff.kept_lines(tuple(stays)))
    for line in diff.other_program_lines(found.others):
        click.echo(line)
    programs = found.sources or found.untouched
    what = (
        "no program has a server that could go to carpool"
        if programs
        else "no program with MCP servers was found"
    )
    click.echo(f"{what}; nothing is changed")
    if not programs:
        next_steps = (
            "`carpool add` adds a server, and `carpool setup --client NAME` gives a program the entry"
        )
        click.echo(display.wrapped(next_steps))


def _print_result(
    plan: SetupPlan,
    stays: Sequence[KeptInPlace],
    failures: list[str],
    told: Mapping[str, Any],
    *,
    as_json: bool,
    done: bool,
    untrusted: str = "",
    needs: Iterable[str] = (),
) -> None:
    done = done and bool(plan.changes)
    said = next_steps(plan, untrusted) if done else ["carpool setup"]
    project = told["project"]
    more = list(needs)
    if count := sum(each["protects"] for each in told["rules"]):
        more.append(f"Rules that keep nothing back until you change them: {count} (see above)")
    if project is not None and not project["changed"]:
        more.append("carpool setup --project  changes the files of the project, too")
    if done and node_pid(runtime_place().directory):
        more.append(_IN_CLUSTER)
    if as_json:
        found = diff.facts(plan, stays, done=done)
        print_json({**found, **told, "failures": failures, "next": [*said, *more]})
        return
    for each in failures:
        click.echo(f"carpool: {display.printable(each)}", err=True)
    if not done:
        said = ["nothing is changed: it was a dry run" if plan.changes else "nothing is changed"]
    click.echo("\n".join(map(display.printable, [*said, *more])))


def next_steps(plan: SetupPlan, untrusted: str) -> list[str]:
    """Return the next steps for a person, at most six lines."""
    changed = {each.client for each in plan.changes}
    named = (each.title for each in CLIENTS if each.id in changed)
    titles = list(dict.fromkeys((*(each.client for each in plan.moved), *named)))
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
