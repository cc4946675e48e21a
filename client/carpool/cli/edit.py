"""The verbs `add` and `remove`: add a server to the user's file, or remove one from the file it is written
in.

Owns the text that is written, and the rule that nothing is written that would break the configuration. Works
without a daemon; a running one reads the file at once. Knows nothing of: how a file is edited
(`config.edit`), what becomes of connected agents.
"""

import contextlib
import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from carpool.check.layers import working_directory
from carpool.check.programs import absent_text, is_plain
from carpool.check.server_path import is_found
from carpool.cli.main import broker_request_or_fail, environment, fail_at, json_option, reach_broker
from carpool.control.control_client import ControlClientError
from carpool.control.place import runtime_place
from carpool.readings.config_here import not_in_force
from carpool.terminal import display
from carpool.terminal.verb_output import EXIT_FAILED, EXIT_USAGE, fail, print_json
from carpool_protocol.bootstrap.extras import Extra, install_command, is_installed
from carpool_protocol.carrier.secret_texts import is_secret_name
from carpool_protocol.config.edit.edit import (
    CannotEditError,
    append_element,
    remove_member,
    set_member,
    value_at,
)
from carpool_protocol.config.foreign.formats import OPENCODE, shape_of
from carpool_protocol.config.reading.load import find_config_file, home_of, load_config
from carpool_protocol.config.reading.parse import SERVERS, read_config
from carpool_protocol.config.schema.capability import capability
from carpool_protocol.config.schema.model import Config
from carpool_protocol.config.schema.server_kinds import module_name_problem
from carpool_protocol.config.text.jsonc import JsonValue, parse
from carpool_protocol.config.text.problems import KeyPath, no_such_server
from carpool_protocol.files import private_files
from carpool_protocol.ids import ServerName
from carpool_protocol.wire.tool_name_resolver import check_server_name

_EMPTY = "{}\n"
_WRITABLE = 0o222
"""The write permissions of all users. A file without any is left alone: its owner means programs, too.

The check is needed because a file can be replaced wherever its directory is writable.
"""
_HTTP_HEADER = re.compile(r"(?P<name>[A-Za-z0-9-]+):\s*(?P<value>[^=].*|)", re.DOTALL)
"""Matches a header as it stands in HTTP, `Authorization: Bearer …`."""

config_option = click.option("--config", "file", help="This file, not your own carpool.json.")


class _WithDashes(click.Command):
    """A command whose last arguments are another program's, which may look like options of this one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse like click; the error about an unknown option advises to use `--`."""
        name = display.printable(args[0]) if args and not args[0].startswith("-") else "NAME"
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise click.UsageError(
                f"`add` has no option {display.printable(error.option_name)}. If it is the server's, put -- "
                f"before the command: `carpool add {name} -- COMMAND ARGS…`",
                ctx,
            ) from None


@click.command(cls=_WithDashes)
@click.argument("name")
@click.argument("command", nargs=-1)
@click.option(
    "--python", "module", metavar="MODULE", help="In place of a command: the functions of package.module."
)
@click.option("--url", help="In place of a command: where the server is.")
@click.option(
    "--transport", type=click.Choice(["http", "sse", "url"]), help="With --url; without it, it is found out."
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="With --url; 'NAME: VALUE' is the same. May be said again.",
)
@click.option("--env", "variables", multiple=True, metavar="NAME=VALUE", help="May be said again.")
@click.option("--cwd", help="The directory it runs in; with --python by default this one.")
@config_option
@json_option
def add(
    name: str,
    command: tuple[str, ...],
    *,
    module: str | None,
    url: str | None,
    transport: str | None,
    headers: tuple[str, ...],
    variables: tuple[str, ...],
    cwd: str | None,
    file: str | None,
    as_json: bool,
) -> None:
    """Add a server: `carpool add NAME -- COMMAND ARGS…`, or with --url or --python in place of a command.

    It is written into your own configuration, and agents that are there see it at once. A secret goes to the
    `env_file`, which you alone can read. --env 'TOKEN=${TOKEN}' takes each agent's own, and so does
    --header 'Authorization=Bearer ${TOKEN}'.
    """
    if (why := check_server_name(name)) is not None:
        raise click.UsageError(display.printable(why))
    if bool(command) + (module is not None) + (url is not None) != 1:
        raise click.UsageError(
            "a server is a command after --, --url URL or --python MODULE: say one of them"
        )
    if module is not None and "${" not in module and (why := module_name_problem(module)) is not None:
        raise click.UsageError(f"--python {why}")
    env = _pairs("--env", variables)
    server: dict[str, Any] = {"command": command[0]} if command else {}
    server |= {"args": list(command[1:])} if command[1:] else {}
    server |= {"python": module} if module is not None else {}
    server |= {"url": url} if url is not None else {}
    server |= {"transport": transport} if transport is not None else {}
    server |= {"headers": _pairs("--header", headers)} if headers else {}
    if module is not None and cwd is None:
        cwd = working_directory() or None
    server |= {"env": env} if env else {}
    server |= {"cwd": cwd} if cwd is not None else {}
    config = config_in_force(file)
    if (there := _where(config, ServerName(name))) is not None:
        fail(f"there is a server {name} already in {there[0]}; `carpool remove {name}` takes it out")

    from carpool.cli.added_secrets import take_secrets  # late: other verbs move no secrets

    found = take_secrets(server, name, config, home_of(environment()))

    kept: list[str] = []

    def edited(text: str) -> str:
        if not found.variables or not isinstance(parse(text, "").value, dict):
            return with_server(text, name, server, config.file)
        after = with_server(text, name, found.server, config.file)
        if found.file.said:
            after = set_member(after, ("env_file",), found.file.said)
        _sound(after, config.file)
        found.write()
        kept[:] = found.variables
        return after

    edit_file(config.file, edited)
    _tell_change(name, config.file, "added to", as_json)
    if kept:
        these = ", ".join(kept)
        click.echo(display.printable(f"its secrets are kept in {found.file.path} as {these}"), err=True)
        env = found.server.get("env") or {}
    doubts = _start_warnings(
        name, command[0] if command else "", env, url, module, login_shell=config.login_shell
    )
    for text in (*doubts, *_profile_warning(name, config)):
        click.echo(f"carpool: {display.printable(text)}", err=True)


def _profile_warning(name: str, config: Config) -> Iterator[str]:
    """Yield a sentence about profiles that do not allow the added server, such as those of setup."""
    profiles = [
        each.name
        for each in config.profiles.values()
        if not any(capability(text).is_of(ServerName(name), ()) for text in each.allow)
    ]
    if profiles:
        yield (
            f"programs with the profile {', '.join(profiles)} do not see it before its `allow` in "
            f'{config.file} says "mcp:{name}"'
        )


def with_server(text: str, name: str, server: dict[str, JsonValue], file: str) -> str:
    """Return the file with one more server, in its own shape. Raises `CannotEditError`."""
    value = parse(text, "").value
    shape = shape_of(value)
    if shape is OPENCODE:
        raise CannotEditError("opencode's shape of a server is another one; add it there by hand")
    if name in (before := _names(text, file)):  # since a moment ago
        raise CannotEditError(f"there is a server {name} already")
    holders = shape.holders if shape is not None else (SERVERS,)
    if isinstance(value_at(value, holders), list):
        after = append_element(text, holders, {"name": name, **server})
    else:
        after = set_member(text, (*holders, name), server)
    # What cannot be read has no names: whoever writes it says what is wrong with it.
    if read_config(after, file).config is not None and (lost := before - _names(after, file)):
        raise CannotEditError(f"it would take {', '.join(sorted(lost))} out")
    return after


def _names(text: str, file: str) -> set[str]:
    """Return the servers in a text; empty if it cannot be read."""
    config = read_config(text, file).config
    return set() if config is None else {*config.servers, *config.unusable}


def _start_warnings(
    name: str,
    program: str,
    env: Mapping[str, str],
    url: str | None,
    module: str | None,
    *,
    login_shell: bool,
) -> Iterator[str]:
    """Yield sentences about an added server that cannot start yet, or that shows a secret."""
    finds = is_plain(program) and "PATH" not in env
    if finds and not is_found(program, os.environ, login_shell=login_shell):
        yield absent_text(program, name)
    extra: Extra = "remote" if url is not None else "python"
    if (url is not None or module is not None) and not is_installed(extra):
        yield f"{name} needs more than is installed: {install_command(extra)}"
    for variable, value in env.items():
        if is_secret_name(variable) and "${" not in value:
            yield (
                f"the value of {variable} is written out in the file; --env '{variable}=${{{variable}}}' "
                "takes it from each agent's environment, or from `env_file`"
            )


@click.command()
@click.argument("name")
@config_option
@json_option
def remove(name: str, *, file: str | None, as_json: bool) -> None:
    """Take a server out of your own configuration. Its instances finish what is open and end."""
    config = config_in_force(file)
    found = _where(config, ServerName(name))
    if found is None:
        fail(no_such_server(name, {*config.servers, *config.unusable}, f"in {config.file}"))
    where, path = found
    if path is None:
        fail(f"{name} cannot be read in {where}: take it out there by hand")

    def without_it(text: str) -> str:
        after = remove_member(text, path)
        if _names(text, where) - _names(after, where) != {name}:  # of a list that has just changed
            raise CannotEditError(f"{name} is somewhere else in it now")
        return after

    edit_file(where, without_it)
    _tell_change(name, where, "removed from", as_json)


def _pairs(option: str, said: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in said:
        name, equals, value = each.partition("=")
        as_in_http = _HTTP_HEADER.match(each) if option == "--header" else None
        if as_in_http is not None:  # as `curl` and the programs of agents take it
            name, equals, value = as_in_http["name"], ":", as_in_http["value"]
        if not equals:  # not repeated: it may be a value that lost its name
            more = " or 'NAME: VALUE'" if option == "--header" else ""
            raise click.UsageError(f"{option} is NAME=VALUE{more}")
        found[name] = value
    return found


def config_in_force(named: str | None) -> Config:
    """Return the configuration to edit, which must be sound. Warns if the carpool that runs has another one.

    The effect of an edit on a broken one is unknown.
    """
    where = find_config_file(environment(), named)
    if named is None and (text := not_in_force(where.path, runtime_place().directory)):
        click.echo(f"carpool: {display.printable(text)}", err=True)
    if not os.path.lexists(where.path):  # it is made
        return _sound(_EMPTY, where.path)
    loaded = load_config(where)
    if loaded.config is None:
        fail("\n".join(each.render() for each in loaded.problems), EXIT_USAGE)
    return loaded.config


def _where(config: Config, name: ServerName) -> tuple[str, KeyPath | None] | None:
    """Return the file of a server and its place there. The place is None if the server cannot be read."""
    server = config.servers.get(name)
    if server is None:
        return (config.file, None) if name in config.unusable else None
    return server.file, server.under


def _sound(text: str, file: str, *, project: bool = False) -> Config:
    """Return the configuration in a text; a text with problems ends the verb."""
    loaded = read_config(text, file, project=project)
    if loaded.config is None:
        said = "\n".join(f"{each.where}: {each.text}" for each in loaded.problems)
        fail(f"nothing is changed, because it would break {file}:\n{said}", EXIT_USAGE)
    return loaded.config


def edit_file(
    file: str, edit: Callable[[str], str], *, project: bool = False, keeps_broken: bool = False
) -> bool:
    """Edit a file in place, following a link. False if nothing is to be changed.

    `project`: the file is a project's. `keeps_broken`: a file that was broken may stay so. Ends the verb if
    the file cannot be edited.
    """
    with _alone_in(os.path.dirname(os.path.realpath(file))):
        return _changed(file, edit, project=project, keeps_broken=keeps_broken)


@contextlib.contextmanager
def _alone_in(directory: str) -> Iterator[None]:
    """Allow one verb at a time to edit in a directory, so that none overwrites another's change."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # it is made yet, or cannot be locked
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def _changed(file: str, edit: Callable[[str], str], *, project: bool, keeps_broken: bool) -> bool:
    try:
        path = Path(os.path.realpath(file))
        text = path.read_bytes().decode() if path.exists() else _EMPTY  # with the ends of lines that it has
        after = edit(text)
        if after == text:
            return False
        if not keeps_broken or read_config(text, file, project=project).config is not None:
            _sound(after, file, project=project)
        if path.exists() and not (path.stat().st_mode & _WRITABLE and os.access(path, os.W_OK)):
            raise CannotEditError("it is read-only")  # noqa: TRY301 - said below, as all that stands in the way
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = stat.S_IMODE(path.stat().st_mode) if project else None
        private_files.replace(str(path), after.encode())
        if mode is not None:  # a file that others work with, too
            path.chmod(mode)
    except CannotEditError as error:
        fail(f"{file} is for you to edit: {error}")
    except OSError as error:
        fail(f"{file} cannot be written: {error.strerror or error}")
    return True


def _tell_change(name: str, file: str, what: str, as_json: bool) -> None:
    """Have a running carpool read the file, and print what was done."""
    running, problems = reload_running()
    if as_json:
        print_json({"server": name, "file": file, "running": running, "problems": problems})
    else:
        click.echo(f"{name} {what} {display.printable(file)}")
        for each in problems:
            click.echo(display.printable(each), err=True)
    if problems:
        raise click.exceptions.Exit(EXIT_FAILED)


def reload_running() -> tuple[bool, list[str]]:
    """Ask a running carpool to read its files now; it would notice by itself a moment later. Returns whether
    one runs, and the problems that it has with them.
    """
    with contextlib.ExitStack() as stack:
        try:
            door = stack.enter_context(reach_broker(runtime_place(), control=True))
            answer = broker_request_or_fail(door, "carpool/reload", {})
        except ControlClientError as error:
            if not error.no_broker:
                fail_at(error)
            return False, []
    return True, [str(each) for each in answer.get("problems") or []]
