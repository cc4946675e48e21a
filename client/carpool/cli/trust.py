"""The verb `trust`: shows the commands of a project's own file, and records if they may run.

Owns the question and the effect of the answer. Trust is given to the bytes that were shown: a file that
changes between the question and the answer is not trusted. Works without a daemon; a running one notices by
itself. Knows nothing of: what is shown before the question (`trust_facts`).
"""

import os
import sys
from collections.abc import Callable
from typing import TypeVar

import click

from carpool.check.trust_facts import Facts, page, trust_facts
from carpool.cli.main import environment, json_option, refuse_places
from carpool.control.place import runtime_place
from carpool.terminal import display
from carpool.terminal.verb_output import EXIT_FAILED, EXIT_USAGE, fail, print_json
from carpool_protocol.bootstrap import paths, trusted_places
from carpool_protocol.bootstrap.paths import PROJECT_FILES
from carpool_protocol.config.reading.load import (
    ConfigFile,
    find_config_file,
    home_of,
    load_config,
    load_layer,
)
from carpool_protocol.config.reading.merge import merge_configs, taken_over
from carpool_protocol.config.reading.project import FoundWorkspace, find_workspace, workspace_name_at
from carpool_protocol.config.reading.trust import (
    grant_trust,
    read_listed,
    read_trust,
    revoke_trust,
    set_aside_unreadable,
    trust_of,
)
from carpool_protocol.config.reading.workspaces import roots_of
from carpool_protocol.ids import ServerName

T = TypeVar("T")


@click.command()
@click.argument("directory", required=False)
@click.option("--yes", is_flag=True, help="Do not ask: for programs that have asked the user.")
@click.option("--revoke", is_flag=True, help="Trust it no longer: its servers end.")
@click.option("--list", "listing", is_flag=True, help="Show every project file and place that is trusted.")
@click.option(
    "--place",
    is_flag=True,
    help="DIRECTORY, or a file, is yours: CARPOOL_CONFIG and its like may name it.",
)
@json_option
def trust(  # one option each
    directory: str | None, *, yes: bool, revoke: bool, listing: bool, place: bool, as_json: bool
) -> None:
    """Let the project of DIRECTORY (default: here) run the servers of its own file.

    They are commands that somebody else may have written. Trust is asked again after every change of the file
    and of what it includes.
    """
    if yes + revoke + listing > 1 or (listing and directory):
        raise click.UsageError("--yes, --revoke and --list exclude each other; --list takes no directory")
    if place and (listing or not directory):
        raise click.UsageError("--place takes a file or a directory, and not --list")
    if place:
        assert directory is not None
        _place(os.path.abspath(os.path.expanduser(directory)), yes=yes, revoke=revoke, as_json=as_json)
        return
    refuse_places()
    store = paths.trust_file(paths.state_dir(os.environ, runtime_place().directory))
    if said := _store(lambda: set_aside_unreadable(store)):
        click.echo(f"carpool: {display.printable(said)}", err=True)
    if listing:
        _list(store, as_json=as_json)
        return
    home = home_of(os.environ)
    at = os.path.abspath(os.path.expanduser(directory or "."))
    where = _users_own()
    user = load_config(where).config
    roots = {} if user is None else roots_of(user, home)
    name = workspace_name_at(at, roots)
    users = (where.path,) if user is None else user.files
    workspace = find_workspace(at, home, roots.get(name, ""), users)
    if revoke:
        _revoke(store, workspace, at, as_json=as_json)
        return
    if not workspace.file:
        _without_file(workspace, as_json=as_json)
        return
    layer = load_layer(ConfigFile(workspace.file, asked_for=True), home, project=True)
    config = layer.loaded.config
    if config is None:
        fail("\n".join(each.render() for each in layer.loaded.problems), EXIT_USAGE)
    if not config.servers and not config.unusable:
        # What else may be in it (`env_file`, `include`) is for servers of its own.
        facts = {**trust_facts(workspace, layer, config, "untrusted", user), "trust": "nothing"}
        _say(facts, as_json, "has no servers: there is nothing to trust")
        return
    now = trust_of(read_trust(store), workspace, layer.digest)
    if user is not None and name:
        user = merge_configs(user, user.workspaces[name])
    facts = trust_facts(workspace, layer, config, now, user)
    replaced: frozenset[ServerName] = frozenset() if user is None else taken_over(user, config)
    if now == "trusted" and read_listed(store, workspace).issuperset(replaced):
        _say(facts, as_json, "is trusted already")
        return
    _ask(facts, yes=yes, as_json=as_json)
    _store(lambda: grant_trust(store, workspace, layer.digest, replaced))
    _say({**facts, "trust": "trusted"}, as_json, "is trusted")


def _without_file(workspace: FoundWorkspace, *, as_json: bool) -> None:
    """Report that there is nothing to trust: the user's own configuration is in force already."""
    if not workspace.own:
        fail(f"no project file from {workspace.root} upwards ({', '.join(PROJECT_FILES)})", EXIT_USAGE)
    facts = {"workspace": workspace.root, "file": workspace.own, "trust": "own"}
    _say(facts, as_json, "is your own configuration: its servers are in force, there is nothing to trust")


def _revoke(store: str, workspace: FoundWorkspace, at: str, *, as_json: bool) -> None:
    """Revoke the trust in all project files of this directory.

    A file that is missing, or shadowed by another, would still be trusted when it is back.
    """
    root = workspace.root if workspace.file or workspace.own else at
    files = [FoundWorkspace(root, os.path.join(root, name)) for name in PROJECT_FILES]
    was = any(_store(lambda: [revoke_trust(store, each) for each in files]))
    facts = {"file": workspace.file or root, "trust": "untrusted", "was": was}
    _say(facts, as_json, "is trusted no longer" if was else "was not trusted")


def _users_own() -> ConfigFile:
    return find_config_file(environment())


def _ask(facts: Facts, *, yes: bool, as_json: bool) -> None:
    if not as_json:
        click.echo(page(facts))
    _confirm("May these servers run for you?", yes=yes)


def _confirm(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        fail(
            "nobody is there to be asked: the user can run `carpool trust` in a terminal "
            "(--yes is for programs that have asked the user)",
            EXIT_USAGE,
        )
    if not click.confirm(f"\n{question}", err=True):
        click.echo("nothing is trusted", err=True)
        raise click.exceptions.Exit(EXIT_FAILED)


def _place(path: str, *, yes: bool, revoke: bool, as_json: bool) -> None:
    """Allow or forbid the environment to name this place."""
    if revoke:
        was = _store(lambda: trusted_places.revoke_place(os.environ, path))
        facts = {"place": path, "trust": "untrusted", "was": was}
        said = "is trusted no longer" if was else "was not trusted"
    else:
        if not as_json:
            click.echo(
                f"What lies in {display.spelled(path)} would count as your own configuration or state: "
                "it may run any command, and nobody asks again when it changes."
            )
        _confirm("May the environment name this place?", yes=yes)
        _store(lambda: trusted_places.trust_place(os.environ, path))
        facts, said = {"place": path, "trust": "trusted"}, "is trusted as a place"
    if as_json:
        print_json(facts)
    else:
        click.echo(f"{display.spelled(path)} {said}")


def _list(store: str, *, as_json: bool) -> None:
    trusted, places = sorted(read_trust(store)), trusted_places.read_places(os.environ)
    if as_json:
        found = [{"file": file, "exists": os.path.exists(file)} for file in trusted]
        print_json([*found, *({"place": each, "exists": os.path.exists(each)} for each in places)])
    else:
        rows = [*map(display.printable, trusted), *(f"place {display.printable(each)}" for each in places)]
        click.echo("\n".join(rows) or "no project is trusted")


def _say(facts: Facts, as_json: bool, what: str) -> None:
    if as_json:
        print_json(facts)
    else:
        click.echo(f"{display.spelled(facts['file'])} {what}")


def _store(change: Callable[[], T]) -> T:
    try:
        return change()
    except OSError as error:
        fail(f"the file of trust cannot be written: {error.strerror or error}")
