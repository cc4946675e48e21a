"""The verb `service`: runs carpool from login on, or from the machine's start on, without a program that
needs it first.

Owns the places of units, and the commands to systemd and launchd. A file of that name that is not carpool's
is left alone. Knows nothing of: the text of a unit (`launcher.service_units`), what `carpool up` does.
"""

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final, Literal

import click
from msgspec import Struct

from carpool import launcher_lock
from carpool.cli.main import json_option
from carpool.control.place import runtime_place
from carpool.launcher import own_command
from carpool.launcher.service_units import (
    MARK,
    NAME,
    SYSTEM_PLACES,
    launchd_agent,
    systemd_system_unit,
    systemd_user_unit,
)
from carpool.terminal import display
from carpool.terminal.verb_output import EXIT_USAGE, fail, print_json
from carpool_protocol.bootstrap import paths
from carpool_protocol.config.reading.load import home_of
from carpool_protocol.files import private_files

Kind = Literal["systemd", "launchd"]
_HERE: Final[Kind] = "launchd" if sys.platform == "darwin" else "systemd"

_UNIT: Final = f"{NAME}.service"
_SYSTEM_UNITS: Final = Path("/etc/systemd/system")
_WITHOUT: Final = (
    "carpool needs no service: it starts with the first program that connects; "
    "to have it run before that, let your login run `carpool up --detach`"
)
_NEXT: Final = {False: "your next login", True: "the next start of the machine"}
_SYSTEM_PLACES_TEXT: Final = (
    f"its configuration is {SYSTEM_PLACES['CARPOOL_CONFIG']}; programs of its user find it with "
    f"{paths.RUNTIME_VARIABLE}={SYSTEM_PLACES[paths.RUNTIME_VARIABLE]}, others come over HTTP with a token"
)
_PATIENCE_S: Final = 90.0


class _Unit(Struct, frozen=True):
    """One unit. `user`: the user of a unit of the machine; empty: a unit of this user's login."""

    kind: Kind
    user: str = ""

    @property
    def file(self) -> Path:
        """The path of the unit."""
        if self.user:
            return _SYSTEM_UNITS / _UNIT
        home = home_of(os.environ)
        if self.kind == "launchd":
            return Path(home) / "Library" / "LaunchAgents" / f"{NAME}.plist"
        base = os.environ.get("XDG_CONFIG_HOME", "")
        config = base if os.path.isabs(base) else os.path.join(home, ".config")
        return Path(config) / "systemd" / "user" / _UNIT

    @property
    def runtime_dir(self) -> str:
        """The runtime directory of its carpool."""
        return SYSTEM_PLACES[paths.RUNTIME_VARIABLE] if self.user else runtime_place().directory

    @property
    def text(self) -> str:
        """The text that `install` would write now."""
        command = own_command.executable()
        if self.user:
            return systemd_system_unit(command, os.environ, self.user)
        if self.kind == "systemd":
            return systemd_user_unit(command, os.environ)
        logs = paths.log_dir(os.environ, runtime_place().directory)
        return launchd_agent(command, os.environ, paths.daemon_log(logs, "service"))

    def is_ours(self) -> bool:
        """True if the file is carpool's."""
        try:
            return MARK in self.file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False

    def systemctl(self, *words: str) -> tuple[str, ...]:
        """Return the command that tells systemd about it."""
        return ("systemctl", *(() if self.user else ("--user",)), *words)


@click.command()
@click.argument("what", type=click.Choice(["install", "uninstall", "status"]))
@click.option("--print", "shown", is_flag=True, help="With install: show the unit, and do nothing.")
@click.option(
    "--for", "kind", type=click.Choice(["systemd", "launchd"]), help="With --print: not for this system."
)
@click.option(
    "--system", "user", metavar="USER", help="From the machine's start on, as this user (systemd; as root)."
)
@json_option
def service(what: str, *, shown: bool, kind: Kind | None, user: str | None, as_json: bool) -> None:
    """Have carpool run from your login on: `carpool service install`, and `uninstall`.

    A user unit of systemd, or an agent of launchd; with --system a unit of the machine. carpool starts by
    itself with the first program that connects; with a service it is there before.
    """
    if (shown and what != "install") or (kind is not None and not shown):
        raise click.UsageError("--print goes with install, and --for with --print")
    if user is not None:
        _refuse_user(user, kind)
    unit = _Unit(kind or _HERE, user or "")
    if shown:
        click.echo(unit.text, nl=False)
    elif what == "install":
        _install(unit, as_json=as_json)
    elif what == "uninstall":
        _uninstall(unit, as_json=as_json)
    else:
        _status(unit, as_json=as_json)


def _refuse_user(user: str, kind: Kind | None) -> None:
    if (kind or _HERE) != "systemd":
        raise click.UsageError("--system makes a unit of systemd, and this is for launchd; leave it out")
    try:
        pwd.getpwnam(user)
    except KeyError:
        raise click.UsageError(f"there is no user {display.printable(user)} on this machine") from None


def _install(unit: _Unit, *, as_json: bool) -> None:
    _need(unit.kind)
    file = unit.file
    if file.exists() and not unit.is_ours():
        fail(f"{file} is not carpool's: look at it, and move it away", EXIT_USAGE)
    runs = launcher_lock.holder(unit.runtime_dir) is not None
    was_there = file.exists()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        private_files.replace(str(file), unit.text.encode(), 0o644)
    except OSError as error:
        fail(f"{file} cannot be written ({error.strerror})")
    if problem := _activate(unit, runs=runs):
        if not was_there:
            file.unlink(missing_ok=True)  # else the next login might start what is told to have failed
        fail(f"{problem}; {_WITHOUT}")
    if as_json:
        print_json({"file": str(file), "started": not runs})
        return
    since = "the machine's start" if unit.user else "your login"
    click.echo(f"{display.printable(str(file))} is there: carpool runs from {since} on")
    if unit.user:
        click.echo(_SYSTEM_PLACES_TEXT)
    if runs:
        click.echo(f"carpool runs already, and goes on; the service takes over with {_NEXT[bool(unit.user)]}")


def _activate(unit: _Unit, *, runs: bool) -> str:
    """Have systemd or launchd take the unit. Returns the problem, empty if there is none."""
    if unit.kind == "systemd":
        now = [] if runs else ["--now"]
        return _told(*unit.systemctl("daemon-reload")) or _told(*unit.systemctl("enable", *now, _UNIT))
    # A login finds it by itself.
    return "" if runs else _told("launchctl", "bootstrap", _domain(), str(unit.file))


def installed_unit() -> Path | None:
    """Return the file of this user's service if it is there and carpool's."""
    unit = _Unit(_HERE)
    return unit.file if unit.file.exists() and unit.is_ours() else None


def remove_unit() -> str:
    """End this user's service and remove its file, as `_remove`."""
    return _remove(_Unit(_HERE))


def _remove(unit: _Unit) -> str:
    """End the service and remove its file.

    Returns the problem that systemd has with it, empty if there is none. Raises `OSError` if the file stays.
    """
    file = unit.file
    if unit.kind == "launchd":
        _try("launchctl", "bootout", f"{_domain()}/{NAME}")
        file.unlink()
        return ""
    problem = _told(*unit.systemctl("disable", "--now", _UNIT))
    file.unlink()
    if problem:  # `disable` would have removed the link by which systemd starts the unit
        wants = "multi-user.target.wants" if unit.user else "default.target.wants"
        (file.parent / wants / _UNIT).unlink(missing_ok=True)
    return problem or _told(*unit.systemctl("daemon-reload"))


def _uninstall(unit: _Unit, *, as_json: bool) -> None:
    file = unit.file
    there = file.exists()
    if there and not unit.is_ours():
        fail(f"{file} is not carpool's, and stays", EXIT_USAGE)
    problem = ""
    if there:
        try:
            problem = _remove(unit)
        except OSError as error:
            fail(f"{file} cannot be removed ({error.strerror})")
    if problem:
        click.echo(f"carpool: {problem}; a service that still runs ends with `carpool down`", err=True)
    if as_json:
        print_json({"file": str(file), "removed": there})
    else:
        click.echo(f"{display.printable(str(file))} is gone" if there else "there is no service of carpool")


def _status(unit: _Unit, *, as_json: bool) -> None:
    installed = unit.file.exists() and unit.is_ours()
    held = launcher_lock.holder(unit.runtime_dir)
    asked = (
        _try(*unit.systemctl("is-active", _UNIT))
        if unit.kind == "systemd"
        else _try("launchctl", "print", f"{_domain()}/{NAME}")
    )
    active = installed and asked is not None and asked.returncode == 0
    current = installed and unit.file.read_text(encoding="utf-8", errors="replace") == unit.text
    if as_json:
        facts = {"file": str(unit.file), "installed": installed, "current": current, "active": active}
        print_json({**facts, "running": held is not None})
        return
    if not installed:
        click.echo(display.wrapped("there is no service of carpool; `carpool service install` makes one"))
    else:
        click.echo(f"{display.printable(str(unit.file))}: {'active' if active else 'not active'}")
        if not current:
            old = "it is not what it would be by now: `carpool service install` writes it again"
            click.echo(display.wrapped(old))
    click.echo("carpool runs" if held is not None else "carpool does not run")


def _domain() -> str:
    return f"gui/{os.getuid()}"


def _need(kind: Kind) -> None:
    program = "systemctl" if kind == "systemd" else "launchctl"
    if shutil.which(program) is None:
        fail(f"there is no {program} here, so no service; {_WITHOUT}")


def _try(*command: str) -> "subprocess.CompletedProcess[str] | None":
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None


def _told(*command: str) -> str:
    """Run a command. Returns why it failed, empty if it did not."""
    done = _try(*command)
    if done is not None and done.returncode == 0:
        return ""
    why = display.one_line(done.stderr, 200) if done is not None else "no answer"
    return f"`{' '.join(command)}` failed: {why or 'it does not say why'}"
