"""The verb `trust`: look at what a project's own file would run, and say whether it may.

Owns the question and what is shown before it. What is trusted are the bytes that were shown: a file that
changes between the question and the answer is not. Works without a daemon; one that runs notices by itself.
Arguments are shown as written, before expansion; of environments only the names.
"""

import os
import re
import sys
from collections.abc import Callable
from typing import Any, TypeVar
from unicodedata import bidirectional

import click

from carpool import display
from carpool.cli import EXIT_FAILED, EXIT_USAGE, fail, json_option, print_json, the_place
from carpool_protocol import paths
from carpool_protocol.capability import capability
from carpool_protocol.config.expand import PLACES, references
from carpool_protocol.config.load import ConfigFile, Layer, find_config_file, home_of, load_config, load_layer
from carpool_protocol.config.merge import merge, shadowed
from carpool_protocol.config.model import Config, ServerConfig
from carpool_protocol.config.named import roots_of
from carpool_protocol.config.project import PROJECT_FILES, Workspace, find_workspace, named_at
from carpool_protocol.config.trust import (
    Trust,
    give_trust,
    mend,
    read_listed,
    read_trust,
    take_trust,
    trust_of,
)

T = TypeVar("T")
Facts = dict[str, Any]
_HERE = "${workspace}"
"""Where a project's servers run unless its file says otherwise."""
_DECIDING = re.compile(
    r"PATH|HOME|(LD|DYLD|PYTHON|NODE|NPM|UV|PIP|PERL|RUBY|JAVA|JDK|GIT|XDG)_?[A-Z0-9_]*|_JAVA_OPTIONS"
    r"|BASH_ENV|ENV|SHELL|(HTTPS?|ALL)_PROXY|SSL_CERT_(FILE|DIR)",
    re.IGNORECASE,
)
"""Variables by which a program that is named is another one, or is made to run or fetch something else. Their
values are not shown, as no variable's is.
"""
_BACKWARDS = {"R", "AL", "AN"}


@click.command()
@click.argument("directory", required=False)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--revoke", is_flag=True, help="Trust it no longer: its servers end.")
@click.option("--list", "listing", is_flag=True, help="Show every project file that is trusted.")
@json_option
def trust(directory: str | None, *, yes: bool, revoke: bool, listing: bool, as_json: bool) -> None:
    """Let the project of DIRECTORY (default: here) run the servers of its own file.

    They are commands that somebody else may have written. Trust is asked again after every change of the file
    and of what it includes.
    """
    if yes + revoke + listing > 1 or (listing and directory):
        raise click.UsageError("--yes, --revoke and --list exclude each other; --list takes no directory")
    store = paths.trust_file(paths.state_dir(os.environ, the_place().directory))
    if said := _store(lambda: mend(store)):
        click.echo(f"carpool: {display.printable(said)}", err=True)
    if listing:
        _list(store, as_json=as_json)
        return
    home = home_of(os.environ)
    at = os.path.abspath(os.path.expanduser(directory or "."))
    user = load_config(_users_own()).config
    roots = {} if user is None else roots_of(user, home)
    name = named_at(at, roots)
    workspace = find_workspace(at, home, roots.get(name, ""))
    if not workspace.file:
        fail(f"no project file from {workspace.root} upwards ({', '.join(PROJECT_FILES)})", EXIT_USAGE)
    if revoke:
        was = _store(lambda: take_trust(store, workspace))
        _say({"file": workspace.file, "trust": "untrusted", "was": was}, as_json, "is trusted no longer")
        return
    layer = load_layer(ConfigFile(workspace.file, asked_for=True), home, project=True)
    config = layer.loaded.config
    if config is None:
        fail("\n".join(each.render() for each in layer.loaded.problems), EXIT_USAGE)
    if not config.servers and not config.unusable:
        # What else may be in it (`env_file`, `include`) is for servers of its own.
        facts = {**described(workspace, layer, config, "untrusted", user), "trust": "nothing"}
        _say(facts, as_json, "has no servers: there is nothing to trust")
        return
    now = trust_of(read_trust(store), workspace, layer.digest)
    if user is not None and name:
        user = merge(user, user.workspaces[name])
    facts = described(workspace, layer, config, now, user)
    replaced = [] if user is None else sorted(config.servers.keys() & user.servers.keys())
    if now == "trusted" and read_listed(store, workspace).issuperset(replaced):
        _say(facts, as_json, "is trusted already")
        return
    _ask(facts, yes=yes, as_json=as_json)
    _store(lambda: give_trust(store, workspace, layer.digest, replaced))
    _say({**facts, "trust": "trusted"}, as_json, "is trusted")


def described(workspace: Workspace, layer: Layer, config: Config, now: Trust, user: Config | None) -> Facts:
    """What the question is about. `user`: what lies under the project's file; None: that cannot be read."""
    return {
        "workspace": workspace.root,
        "file": workspace.file,
        "files": list(layer.files),
        "trust": now,
        "servers": [
            {
                "name": name,
                "command": _command(server),
                "env": list(server.env),
                "uses": sorted(
                    {n for _, text in server.login_templates() for n in references(text)} - PLACES
                ),
                "cwd": server.cwd,
                "disabled": server.disabled,
            }
            for name, server in config.servers.items()
        ],
        "unusable": dict(config.unusable),
        "replaces": [each.where for each in shadowed(user, config)] if user is not None else [],
        "covered": {} if user is None else covered(user, config),
        "shadowed": list(workspace.shadowed),
        "warnings": [each.render() for each in layer.loaded.warnings],
    }


def covered(user: Config, project: Config) -> dict[str, list[str]]:
    """Which of the user's profiles let their agents use anything of each of these servers, by its name or its
    tags. Those that are about servers of any name are not counted.
    """
    found: dict[str, list[str]] = {}
    for name, server in project.servers.items():
        for profile in user.profiles.values():
            granted = (it for it in map(capability, profile.allow) if not it.is_general)
            if any(it.is_of(name, server.tags) for it in granted):
                found.setdefault(name, []).append(profile.name)
    return found


def _command(server: ServerConfig) -> list[str]:
    """What is run, as it is written."""
    if server.url is not None:
        return [server.transport or "url", server.url, *(f"{name}:" for name in server.headers)]
    if server.python is not None:
        return [server.interpreter or "python", "-m", "carpool.pymodule", server.python]
    return [server.command, *server.args] if server.command is not None else []


def _users_own() -> ConfigFile:
    return find_config_file(os.environ)


def page(facts: Facts) -> str:
    """The same for people."""
    file, root = display.spelled(facts["file"]), display.spelled(facts["workspace"])
    said = [f"{file} would run, in {root}:"]
    if facts["trust"] == "changed":
        said[0] = f"{file} has changed since you trusted it. It would run, in {root}:"
    elif facts["trust"] == "trusted":
        said[0] = f"{file} is trusted; and takes the place of a server that you had not. It runs, in {root}:"
    rows = [
        [
            each["name"],
            " ".join(map(_word, each["command"])) + (" (disabled)" if each["disabled"] else ""),
            display.spelled(", ".join(each["env"])) or "-",
        ]
        for each in facts["servers"]
    ]
    said.append(
        display.columns(["SERVER", "COMMAND", "VARIABLES"], rows) or "nothing that can be run as it is"
    )
    notes = [f"{each['name']} runs in {each['cwd']}" for each in facts["servers"] if each["cwd"] != _HERE]
    notes += [
        f"{each['name']} is given your {', '.join(each['uses'])}" for each in facts["servers"] if each["uses"]
    ]
    notes += [
        f"{each['name']} has another {', '.join(deciding)}: look at the file, for that decides what is run"
        for each in facts["servers"]
        if (deciding := list(filter(_DECIDING.fullmatch, each["env"])))
    ]
    notes += [f"{each} belongs to it" for each in facts["files"][1:]]
    notes += [f"{name} takes the place of your own server of this name" for name in facts["replaces"]]
    notes += [
        f"agents with your profile {' or '.join(profiles)} may use {name}"
        for name, profiles in facts["covered"].items()
    ]
    notes += [f"{each} is not read: {facts['file']} shadows it" for each in facts["shadowed"]]
    notes += [*facts["unusable"].values(), *facts["warnings"]]
    said += ["\n".join(map(display.spelled, notes))] if notes else []
    return "\n\n".join(said)


def _word(text: str) -> str:
    plain = text and not set(text) & set(" \t\"'\\()")
    if any(bidirectional(char) in _BACKWARDS for char in text):  # its neighbours would be shown out of order
        return ascii(text)
    return display.spelled(text if plain else repr(text))


def _ask(facts: Facts, *, yes: bool, as_json: bool) -> None:
    if not as_json:
        click.echo(page(facts))
    if yes:
        return
    if not sys.stdin.isatty():
        fail("nobody is there to be asked: look at it and say `carpool trust --yes`", EXIT_USAGE)
    if not click.confirm("\nMay these servers run for you?", err=True):
        click.echo("nothing is trusted", err=True)
        raise click.exceptions.Exit(EXIT_FAILED)


def _list(store: str, *, as_json: bool) -> None:
    trusted = sorted(read_trust(store))
    if as_json:
        print_json([{"file": file, "exists": os.path.exists(file)} for file in trusted])
    else:
        click.echo("\n".join(map(display.printable, trusted)) or "no project is trusted")


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
