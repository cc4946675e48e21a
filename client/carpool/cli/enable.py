"""The verbs `enable` and `disable`: for all agents or for one, until carpool stops or in the file.

Owns the choice of the file for `--save`, and the words about what is in force. Without `--save` the running
carpool does all of it (`carpool/switch`). Knows nothing of: what becomes of connected agents, how a file
says it (`config.set_enabled`).
"""

import os
from collections.abc import Callable
from typing import Any

import click

from carpool.check.layers import CheckedLayers, read_layers, working_directory
from carpool.cli.edit import config_option, edit_file
from carpool.cli.main import (
    broker_request_or_fail,
    environment,
    fail_at,
    json_option,
    open_session,
    reach_broker,
    with_server_name,
)
from carpool.control.control_client import ControlClientError
from carpool.control.place import runtime_place
from carpool.terminal import display
from carpool.terminal.verb_output import EXIT_FAILED, EXIT_USAGE, fail, print_json
from carpool_protocol.bootstrap import paths
from carpool_protocol.config.edit.enable import set_enabled
from carpool_protocol.config.schema.model import Config, ServerConfig
from carpool_protocol.config.text.problems import no_such_server
from carpool_protocol.files.overrides_file import forget_server
from carpool_protocol.ids import ServerName

Facts = dict[str, Any]
Verb = Callable[..., None]


def _options(verb: Verb) -> Verb:
    """Add the options that both verbs have."""
    for option in (
        json_option,
        config_option,
        click.option("--save", is_flag=True, help="In the file it is written in, so for good."),
        click.option(
            "--session",
            metavar="ID",
            default="",
            help="For this one alone, until it ends; `carpool status` shows the ids.",
        ),
        click.argument("servers", nargs=-1, required=True),
    ):
        verb = option(verb)
    return verb


@click.command()
@_options
def enable(servers: tuple[str, ...], *, session: str, save: bool, file: str | None, as_json: bool) -> None:
    """Switch SERVERS on, whatever their files say: for all agents, until carpool stops.

    Nothing is switched where one of them cannot be.
    """
    _switch(servers, on=True, session=session, save=save, file=file, as_json=as_json)


@click.command()
@_options
def disable(servers: tuple[str, ...], *, session: str, save: bool, file: str | None, as_json: bool) -> None:
    """Switch SERVERS off: for all agents and in every workspace, until carpool stops.

    Their tools leave every list, calls that are open finish, and their processes end. Nothing is switched
    where one of them cannot be.
    """
    _switch(servers, on=False, session=session, save=save, file=file, as_json=as_json)


def _switch(
    servers: tuple[str, ...], *, on: bool, session: str, save: bool, file: str | None, as_json: bool
) -> None:
    if save and session:
        raise click.UsageError("--save is for all agents; --session ends with its session: say one of them")
    if file and not save:
        raise click.UsageError("--config says where --save writes")
    names = list(dict.fromkeys(servers))
    if save:
        _save(names, on=on, file=file, as_json=as_json)
        return
    asked = [{"server": name, "on": on, "session": session} for name in names]
    with open_session(control=True) as door:
        if len(asked) > 1:
            _refused(
                [
                    broker_request_or_fail(door, "carpool/switch", {**each, "only_check": True})
                    for each in asked
                ]
            )
        found = [broker_request_or_fail(door, "carpool/switch", each) for each in asked]
    if as_json and not any("refused" in each for each in found):
        print_json(found)
        return
    for facts in found:
        if "refused" not in facts:
            click.echo(display.wrapped_lines([switch_text(facts)]))
    _refused(found)


def _refused(found: list[Facts]) -> None:
    """End the verb if the broker has refused anything."""
    if refused := [with_server_name(each["server"], each["refused"]) for each in found if "refused" in each]:
        fail("\n".join(refused))


def switch_text(facts: Facts) -> str:
    """Return the sentence about the state in force now, and its end."""
    server, session = facts["server"], facts["session"]
    what = "enabled" if facts["enabled"] else "disabled"
    whose = f" for session {session}" if session else ""
    files = " and ".join(facts["disabled_in"])
    match facts["until"]:
        case "":
            where = f", as in {files}" if files and not facts["enabled"] else ""
            return f"{server} is {what}{whose}{where}"
        case until:
            back = " (--save makes it so for good)" if not session else ""
            if facts["enabled"] and files:
                back = f"; it is disabled in {files}{back}"
            return f"{server} is {what}{whose} until {until}{back}"


# --- in the file ----------------------------------------------------------------------------------------


def _save(names: list[str], *, on: bool, file: str | None, as_json: bool) -> None:
    store = paths.trust_file(paths.state_dir(os.environ, paths.runtime_dir(os.environ, os.getuid())))
    named = os.path.expanduser(file) if file else None
    found = read_layers(environment(), named, working_directory(), store)
    if found.config is None or found.problems:
        fail("\n".join(each.render() for each in found.problems), EXIT_USAGE)
    written = [_written(found, name) for name in names]
    saved = [_saved(server, on=on) for server in written]
    if as_json:
        print_json(saved)
    else:
        for facts, server in zip(saved, written, strict=True):
            _show(facts, server, found, on=on)
    if any(facts["problems"] for facts in saved):
        raise click.exceptions.Exit(EXIT_FAILED)


def _saved(server: ServerConfig, *, on: bool) -> Facts:
    changed = edit_file(
        server.file,
        lambda text: set_enabled(text, server.file, server.under, on=on, name=server.name),
        project=server.project,
    )
    running = _drop_override(server.name)
    return {
        "server": server.name,
        "session": "",
        "enabled": running["enabled"] if running else on,
        "until": "",
        "disabled_in": running["disabled_in"] if running else [] if on else [server.written_in],
        "problems": [str(each) for each in running.get("problems", ())] if running else [],
        "file": server.file,
        "changed": changed,
        "running": running is not None,
    }


def _written(found: CheckedLayers, name: str) -> ServerConfig:
    """Return the server in force here with this name. Ends the verb if there is none."""
    assert found.config is not None
    server = found.config.servers.get(ServerName(name))
    if server is None:
        fail(_why_not(found, found.config, name))
    return server


def _why_not(found: CheckedLayers, config: Config, name: str) -> str:
    if (why := config.unusable.get(ServerName(name))) is not None:
        return f"{name} cannot be run as it is written, so it is for you to edit: {why}"
    if found.project is not None and name in found.project["servers"]:
        return found.waiting
    return no_such_server(name, {*config.servers, *config.unusable}, f"in {found.where.path}")


def _drop_override(name: str) -> Facts | None:
    """Ask a running carpool to follow its files from now on; None if none runs."""
    place = runtime_place()
    try:
        with reach_broker(place, control=True) as door:
            return broker_request_or_fail(door, "carpool/switch", {"server": name})
    except ControlClientError as error:
        if not error.no_broker:
            fail_at(error)
    try:
        forget_server(paths.switches_file(place.directory), name)
    except OSError as error:
        file = paths.switches_file(place.directory)
        fail(f"{file} cannot be written ({error.strerror or error}); it holds what is switched until a stop")
    return None


def _show(facts: Facts, server: ServerConfig, found: CheckedLayers, *, on: bool) -> None:
    name, what = facts["server"], "enabled" if on else "disabled"
    already = "" if facts["changed"] else " already"
    click.echo(display.printable(f"{name} is {what} in {server.file}{already}"))
    if facts["running"] and facts["enabled"] is not on and not facts["problems"]:
        # Another file has a server of this name, or carpool runs with another configuration.
        click.echo(display.printable(f"in the carpool that runs {switch_text(facts)}"), err=True)
    if server.project and facts["changed"] and found.project is not None:
        again = f"carpool trust {found.project['root']}"
        click.echo(display.printable(f"the project's file is another one now: `{again}` trusts it"), err=True)
    for each in facts["problems"]:
        click.echo(display.printable(each), err=True)
