"""The verb `check`: the configuration, its faults, and the settings that result from it.

Reads the files itself (`layers`), so it works without a daemon. With `--start` it starts every server once
through the running daemon; `--probe` is a separate task (`probe`). Values of `env` are never shown.
"""

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import click
from msgspec import structs

from carpool import launcher_lock
from carpool.check import names as check_names
from carpool.check.http_address import http_address_faults, why_not_bound
from carpool.check.layers import CheckedLayers, read_layers, working_directory
from carpool.check.profiles import profile_lines
from carpool.check.server_path import path_of_servers
from carpool.cli.arguments import read_arguments
from carpool.cli.main import broker_request_or_fail, environment, json_option, open_session, reach_broker
from carpool.cli.start_report import STARTING, ServerStart, print_starts, start_line, start_servers
from carpool.control.control_client import ControlClientError
from carpool.control.place import runtime_place
from carpool.launcher.http_door import read_door_url
from carpool.readings.config_here import not_in_force
from carpool.terminal import display
from carpool.terminal.verb_output import EXIT_FAILED, EXIT_USAGE, print_json
from carpool_protocol.bootstrap import paths
from carpool_protocol.config.pages.describe import SettingRow, describe
from carpool_protocol.config.schema.model import Config
from carpool_protocol.files.overrides_file import read_overrides
from carpool_protocol.runtime.wallclock import unix_s, utc_text

ALL_RIGHT = "all right"


class _InOrder(click.Command):
    """A command that keeps the order of `--call` and `--args`.

    They belong together in pairs, and click loses the order.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        ctx.meta[_ORDER] = [each.name for each in order if each.name in ("calls", "arguments")]
        return super().parse_args(ctx, args)


_ORDER = "carpool.check.order"


@click.command(cls=_InOrder)
@click.option("--config", "file", help="This file alone.")
@click.option("--start", "starts", is_flag=True, help="Also start every server once, in the running carpool.")
@click.option("--all", "everything", is_flag=True, help="Show the settings at their defaults, too.")
@click.option(
    "--probe",
    "probed",
    metavar="SERVER",
    help="Instead: try in a private carpool whether two sessions on one instance see each other's state.",
)
@click.option(
    "--call",
    "calls",
    metavar="TOOL",
    multiple=True,
    help="For --probe: call this tool, also if it changes something. May be repeated. Default: every tool "
    "that says it only reads and needs no argument.",
)
@click.option(
    "--args",
    "arguments",
    metavar="JSON",
    multiple=True,
    help="The arguments of the --call before it, a JSON object.",
)
@json_option
@click.pass_context
def check(
    ctx: click.Context,
    *,
    file: str | None,
    starts: bool,
    everything: bool,
    probed: str | None,
    calls: tuple[str, ...],
    arguments: tuple[str, ...],
    as_json: bool,
) -> None:
    """Check the configuration and show its settings and where each is from.

    Exit code 2: it is wrong. 1: a server in it cannot run here, or the HTTP door cannot open. 0: neither;
    there may still be warnings.

    Without --config that is the user's file with the project's of this directory over it, once it is trusted.

    With --probe: find out whether agents may share an instance of SERVER, and let the carpool that runs here
    know. Exit code 0: it was found out; 1: nothing could be told.
    """
    tries = paired(ctx.meta[_ORDER], calls, arguments)
    if probed is not None:
        if starts or everything:
            raise click.UsageError("--probe goes with --config, --call, --args and --json only")
        from carpool.probe.probe import probe  # late: it brings a whole carpool of its own
        from carpool.probe.run import ProbeCall

        probe(probed, [ProbeCall(tool, read_arguments(text)) for tool, text in tries], file, as_json=as_json)
        return
    if tries:
        raise click.UsageError("--call is for --probe SERVER")
    _show(file, starts=starts, everything=everything, as_json=as_json)


class _CheckFacts(NamedTuple):
    """What one run has found; `carpool check` shows all of it, as a page or as JSON."""

    found: CheckedLayers
    switched: dict[str, str]
    """Servers that an operator has enabled or disabled until carpool stops."""
    started: list[ServerStart]
    profiles: list[dict[str, Any]]
    cut: list[dict[str, Any]]
    """Tool names that are cut."""
    verdict: str


def _show(file: str | None, *, starts: bool, everything: bool, as_json: bool) -> None:
    """Check the configuration itself, and show the result."""
    facts = _gather(os.path.expanduser(file) if file else None, starts=starts)
    if as_json:
        print_json(_json_facts(facts))
    else:
        _print_facts(facts, everything=everything)
    if facts.found.problems:
        raise click.exceptions.Exit(EXIT_USAGE)
    if facts.verdict != ALL_RIGHT:
        raise click.exceptions.Exit(EXIT_FAILED)


def _gather(named: str | None, *, starts: bool) -> _CheckFacts:
    found = read_checked(named)
    if not named and (text := not_in_force(found.where.path, runtime_place().directory)):
        found.warnings.append(text)
    switched = {} if named else _switched(found)
    started: list[ServerStart] = []
    if starts and not found.problems:
        click.echo(STARTING, err=True)
        with open_session(control=True) as door:
            started = start_servers(door, found, lambda start, _row: click.echo(start_line(start), err=True))
    here = None if named or found.problems else found.config
    profiles = [] if here is None else _profile_report(here)
    cut = [] if here is None else check_names.shortened(_known_tools(), here)
    return _CheckFacts(found, switched, started, profiles, cut, _verdict(found, started))


def _rows(found: CheckedLayers) -> list[SettingRow]:
    return describe(found.config) if found.config is not None else []


def _json_facts(facts: _CheckFacts) -> dict[str, Any]:
    """Return the object of `check --json` (docs/json.md)."""
    found = facts.found
    return {
        "ok": not found.problems and facts.verdict == ALL_RIGHT,
        "file": found.where.path,
        "exists": os.path.exists(found.where.path),
        "problems": [
            {"file": each.file, "line": each.line, "where": each.where, "text": each.text}
            for each in found.problems
        ],
        "settings": [
            {"setting": row.setting, "value": row.value, "unit": row.unit, "origin": row.origin}
            for row in _rows(found)
        ],
        "unset_variables": found.unset,
        "warnings": found.warnings,
        "workspace": found.workspace,
        "project": found.project,
        "switched": facts.switched,
        "profiles": facts.profiles,
        "shortened": facts.cut,
        "started": [structs.asdict(each) for each in facts.started],
        "path": found.path,
        "door": found.door,
    }


def _print_facts(facts: _CheckFacts, *, everything: bool) -> None:
    _print_page(facts.found, _rows(facts.found), facts.started, facts.verdict, everything=everything)
    for name, how in facts.switched.items():
        what = "enabled" if how == "on" else "disabled"
        click.echo(display.printable(f"{name} is {what} until carpool stops, whatever is written"))
    for line in (*profile_lines(facts.profiles), *check_names.name_lines(facts.cut)):
        click.echo(display.printable(line))


def read_checked(
    named: str | None, search_path: Callable[[Config], Sequence[str]] | None = None
) -> CheckedLayers:
    """Return the findings about this directory, or about one file alone.

    `search_path`: the way to the PATH of servers. None: asks the carpool that runs here.
    """
    store = paths.trust_file(paths.state_dir(os.environ, paths.runtime_dir(os.environ, os.getuid())))
    found = read_layers(environment(), named, working_directory(), store, search_path or _search_path)
    _check_http_address(found, alone=named is not None)
    return found


def _check_http_address(found: CheckedLayers, *, alone: bool) -> None:
    """Check the HTTP door's address in force here.

    `alone`: check the address in the file, also if another one overrides it.
    """
    if found.config is None:
        return
    found.warnings += _expired_tokens(found.config)
    directory = paths.runtime_dir(os.environ, os.getuid())
    held = launcher_lock.holder(directory)
    listen = os.environ.get("CARPOOL_HTTP", "") if held is None else held.http
    faults = http_address_faults(
        found.config, "" if alone else listen, read_door_url(directory), why_not_bound
    )
    if faults.problem is not None:
        found.problems.append(faults.problem)
    if faults.now:
        found.door = faults.now
        found.warnings.append(faults.now)


def _expired_tokens(config: Config) -> Iterator[str]:
    """Yield a warning for each token that the HTTP door refuses by now."""
    for name, each in config.http.tokens.items():
        if each.is_expired(unix_s()):
            when = utc_text(each.expires)
            yield f"the token {name} expired at {when}; `carpool token revoke {name}` takes it out"


def _profile_report(config: Config) -> list[dict[str, Any]]:
    """Return the running carpool's report on each profile.

    It is empty if none runs, or if there is nothing to report.
    """
    cut = config.max_tools is not None or any(each.max_tools is not None for each in config.servers.values())
    if not config.profiles and not cut:
        return []
    try:
        door = reach_broker(runtime_place(), control=True)
    except ControlClientError:
        return []
    with door:
        found: list[dict[str, Any]] = (
            broker_request_or_fail(door, "carpool/profiles", {}).get("profiles") or []
        )
    return found


def _search_path(config: Config) -> Sequence[str]:
    """Return the PATH of servers in the carpool that runs here, else in one that would be started here."""
    status = None
    with contextlib.suppress(ControlClientError), reach_broker(runtime_place(), control=True) as door:
        status = broker_request_or_fail(door, "carpool/status", {})
    return path_of_servers(status, login_shell=config.login_shell)


def _known_tools() -> list[dict[str, Any]]:
    """Return the tools that the carpool that runs here knows; empty if none runs."""
    try:
        door = reach_broker(runtime_place(), control=True)
    except ControlClientError:
        return []
    with door:
        found: list[dict[str, Any]] = (
            broker_request_or_fail(door, "carpool/tools", {"offline": True}).get("tools") or []
        )
    return found


def _switched(found: CheckedLayers) -> dict[str, str]:
    """Return the servers here that `carpool enable` and `disable` have switched: `on` or `off`."""
    held = read_overrides(paths.switches_file(paths.runtime_dir(os.environ, os.getuid()))).servers
    servers: Collection[str] = found.config.servers if found.config is not None else ()
    return {name: "on" if on else "off" for name, on in held.items() if name in servers}


def _verdict(found: CheckedLayers, results: list[ServerStart]) -> str:
    """Return `all right`, or the faulty servers: `not all right: b is misconfigured; c cannot start here`."""
    failed = {each.server for each in results if not each.ok}
    groups: list[tuple[Collection[str], str, str]] = [
        (found.misconfigured, "is misconfigured", "are misconfigured"),
        (found.absent, "cannot start here", "cannot start here"),
        (sorted(failed.difference(found.misconfigured, found.absent)), "did not start", "did not start"),
    ]
    said = [f"{', '.join(names)} {one if len(names) == 1 else more}" for names, one, more in groups if names]
    said += ["the HTTP door cannot open now"] if found.door else []
    return f"not all right: {'; '.join(said)}" if said else ALL_RIGHT


_HEADS: Final = ("SETTING", "VALUE", "UNIT", "FROM")


def _print_page(
    found: CheckedLayers,
    rows: list[SettingRow],
    results: list[ServerStart],
    verdict: str,
    *,
    everything: bool,
) -> None:
    """Print the findings for people."""
    problems, where = found.problems, found.where
    for problem in problems:
        click.echo(display.printable(problem.render()), err=True)
    if rows and not problems:
        shown = [
            [row.setting, row.value, row.unit, row.origin]
            for row in rows
            if everything or row.origin != "default"
        ]
        if shown:
            click.echo(display.columns(_HEADS, shown, spare=("UNIT",), ends=("SETTING", "FROM")))
        if len(shown) < len(rows):
            rest = len(rows) - len(shown)
            gap = "\n" if shown else ""
            more = f"{rest} settings are at their defaults: `carpool check --all` shows them"
            click.echo(gap + display.wrapped(more))
        for name in found.unset:
            click.echo(f"note: {name} is not set here; agents or the `env_file` must bring it", err=True)
    for text in found.warnings:
        click.echo(f"warning: {display.printable(text)}", err=True)
    if found.absent and found.path is not None:
        said = os.pathsep.join(found.path)
        click.echo(display.printable(f"PATH of servers: {said}"), err=True)
    print_starts(results)
    if not problems:
        missing = "" if os.path.exists(where.path) else " (there is no such file: no servers)"
        over = f", with its workspace {found.workspace['name']} over it" if found.workspace else ""
        over += f", with {found.project['file']} over it" if found.project and not found.waiting else ""
        click.echo(f"\n{display.printable(f'{where.path}{missing}{over}: {verdict}')}")
        if found.waiting:
            click.echo(display.printable(found.waiting))


def paired(order: list[str | None], calls: Iterable[str], arguments: Iterable[str]) -> list[tuple[str, str]]:
    """Pair each `--call` with the `--args` right after it, else with no arguments. Raises
    `click.UsageError`.

    `order`: the options' names in the order of the command line.
    """
    tools, texts = iter(calls), iter(arguments)
    pairs: list[tuple[str, str]] = []
    before: str | None = None
    for name in order:
        if name == "calls":
            pairs.append((next(tools), "{}"))
        elif before != "calls":
            raise click.UsageError("--args belongs right after the --call it is for")
        else:
            pairs[-1] = (pairs[-1][0], next(texts))
        before = name
    return pairs
