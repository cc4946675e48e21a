"""Starts each server once before `carpool setup` moves it, in a private carpool that ends with the trial.

Owns the private carpool's files and its end, also after Ctrl-C. The servers get the environment in which
setup runs, and the PATH that carpool finds for servers. Knows nothing of: which servers are tried and what
follows (`setup.trial`), how a start is decided (`readings.start_watch`).
"""

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import click
from msgspec import Struct

from carpool.check.layers import read_layers, working_directory
from carpool.check.server_path import path_of_servers
from carpool.cli.main import broker_request_or_fail
from carpool.cli.start_report import ServerStart, start_line, start_servers
from carpool.control.control_client import ControlClient, ControlClientError
from carpool.launcher.sandbox import PrivateCarpool, PrivateCarpoolError
from carpool.logs.log_folder import last_records
from carpool.setup.trial import (
    ENV_FILE,
    ServerKey,
    TrialEntry,
    TrialResult,
    login_line,
    mask_of,
    trial_config,
    trial_result,
)
from carpool.terminal import display, end_signals
from carpool.terminal.verb_output import fail
from carpool_protocol.bootstrap import paths
from carpool_protocol.config.text.jsonc import JsonValue
from carpool_protocol.files.redaction import Mask

_LOG_LINES = 40
_UNTRIED = "nothing is changed: the servers could not be tried (`--no-try` moves them untried)"


class Trial(Struct, frozen=True):
    """The servers that were tried."""

    starts: list[ServerStart]
    results: dict[ServerKey, TrialResult]


def try_servers(
    entries: Sequence[TrialEntry],
    hidden: Collection[str],
    own: Mapping[str, JsonValue],
    env_file: str,
    *,
    quiet: bool,
) -> Trial:
    """Start these servers, tell each as soon as it is decided, and end all of them.

    `hidden`: secrets, which no text of a server shows; `own`: the user's carpool.json; `env_file`: the text
    of its `env_file`; `quiet`: tell nothing. Ends the verb if the private carpool does not run, or if the
    user interrupts it.
    """
    problem, left = "", []
    trial = Trial([], {})
    for each in entries:
        if each.why_not:
            trial.results.update(dict.fromkeys(each.keys, TrialResult(note=each.why_not)))
            if not quiet:
                click.echo(display.wrapped(f"--  {each.name} {each.why_not}; it is moved", "", "    "))
    entries = [each for each in entries if not each.why_not]
    if not entries:
        return trial
    with end_signals.interruptible():
        private = PrivateCarpool("carpool-setup-")
        try:
            private.write(ENV_FILE, env_file)
            private.write_config(trial_config(entries, own, has_env_file=bool(env_file)))
            private.up()
            with ControlClient(private.directory, control=True) as client:
                _start(client, private, entries, mask_of(hidden), trial, quiet=quiet)
        except (PrivateCarpoolError, ControlClientError) as error:
            problem = str(error)
        except KeyboardInterrupt:
            click.echo("nothing is changed", err=True)
            raise
        finally:
            end_signals.hold_off()
            left = private.close()
    if problem:
        fail("\n".join([_UNTRIED, problem, *left]))
    for trouble in left:
        click.echo(f"carpool: the trial {display.printable(trouble)}", err=True)
    return trial


def _start(
    client: ControlClient,
    private: PrivateCarpool,
    entries: Sequence[TrialEntry],
    mask: Mask,
    trial: Trial,
    *,
    quiet: bool,
) -> None:
    found = read_layers(
        private.environ,
        str(private.config_file),
        working_directory(),
        paths.trust_file(paths.state_dir(private.environ, private.directory)),
        lambda config: path_of_servers(
            broker_request_or_fail(client, "carpool/status", {}), login_shell=config.login_shell
        ),
    )
    by_name = {each.name: each for each in entries}

    def tell(start: ServerStart, row: Mapping[str, Any]) -> None:
        entry = by_name[start.server]
        result = trial_result(
            entry,
            ok=start.ok,
            is_unset=row.get("state") == "unset",
            text=start.text,
            stderr=row.get("stderr") or (),
            environ=os.environ.keys(),
            mask=mask,
        )
        trial.results.update(dict.fromkeys(entry.keys, result))
        shown = ServerStart(start.server, start.ok, mask.redact(start.text), start.problem, start.repair)
        trial.starts.append(shown)
        if not quiet:
            click.echo(start_line(shown))
            if result.note:
                click.echo(display.wrapped(f"it is moved: it {result.note}", "    ", "    "))

    logs = paths.log_dir(private.environ, private.directory)

    def waits_for(server: str) -> str:
        records = last_records(logs, f"server-{server}", _LOG_LINES) or []
        line = login_line([each.message for each in records if not each.is_about_server])
        return f"it has not greeted, and says: {line}" if line else ""

    limits = {each.name: each.limit_s for each in entries}
    start_servers(client, found, tell, limits, waits_for)
