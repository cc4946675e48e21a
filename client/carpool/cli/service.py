"""The verb `service`: runs carpool from login on, without a program that needs it first.

Owns the units (one of systemd, one of launchd), their places, and the commands to systemd and launchd.
Invariants: a unit holds nothing of the environment but places and PATH, so it holds no secret; a server that
the kernel kills for its memory does not end carpool; `carpool down` ends it, and it stays down; a file of
that name that is not carpool's is left alone. Knows nothing of: what `carpool up` does.
"""

import os
import plistlib
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import click

from carpool import launcher_lock
from carpool.cli.main import json_option
from carpool.control.place import runtime_place
from carpool.launcher import own_command
from carpool.terminal import display
from carpool.terminal.verb_output import EXIT_USAGE, fail, print_json
from carpool_protocol.bootstrap import paths
from carpool_protocol.config.reading.load import home_of
from carpool_protocol.files import private_files

NAME: Final = "carpool"
MARK: Final = "Made by `carpool service install`"
PLACES: Final = (
    *("PATH", "XDG_CONFIG_HOME", "XDG_STATE_HOME"),
    *("CARPOOL_CONFIG", "CARPOOL_RUNTIME_DIR", "CARPOOL_STATE_DIR"),
)
"""The variables that a unit takes over, so that programs and files are found in their present places."""
STOP_S: Final = 60
"""Longer than the launcher takes to end everything politely."""
_USAGE: Final = 2
"""The exit code of `carpool up` for a broken configuration, and if carpool runs already: a retry would not
help.
"""


def systemd_unit(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return a user unit. `command`: the absolute command that starts carpool."""
    places = [f"Environment={_quoted(f'{name}={environ[name]}')}" for name in PLACES if environ.get(name)]
    words = " ".join(_quoted(word.replace("$", "$$")) for word in (*command, "up"))
    return "\n".join(
        [
            f"# {MARK}; `carpool service uninstall` takes it away.",
            "[Unit]",
            "Description=carpool: MCP servers that agents share",
            "",
            "[Service]",
            "Type=exec",
            f"ExecStart={words}",
            *places,
            "Restart=on-failure",
            "RestartSec=2",
            f"RestartPreventExitStatus={_USAGE}",
            "# The launcher ends its servers itself.",
            "KillMode=mixed",
            f"TimeoutStopSec={STOP_S}",
            "# One server too large is no reason to end the others.",
            "OOMPolicy=continue",
            "",
            "[Install]",
            "WantedBy=default.target",
            "",
        ]
    )


def _quoted(word: str) -> str:
    """Quote a word of a unit, systemd.syntax(7)."""
    plain = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("\n", "\\n")
    return f'"{plain}"'


def launchd_agent(command: Sequence[str], environ: Mapping[str, str], log: str) -> str:
    """Return an agent of the user's, launchd.plist(5). `log`: the file for the output of `carpool up`."""
    agent = {
        "Label": NAME,
        "ProgramArguments": [*command, "up"],
        "EnvironmentVariables": {name: environ[name] for name in PLACES if environ.get(name)},
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 30,
        "ExitTimeOut": STOP_S,
        "ProcessType": "Interactive",
        "StandardErrorPath": log,
    }
    text = plistlib.dumps(agent, sort_keys=False).decode()
    head, _, rest = text.partition("<plist")
    return f"{head}<!-- {MARK} -->\n<plist{rest}"


Kind = Literal["systemd", "launchd"]
_HERE: Final[Kind] = "launchd" if sys.platform == "darwin" else "systemd"

_UNIT: Final = f"{NAME}.service"
_WITHOUT: Final = (
    "carpool needs no service: it starts with the first program that connects; "
    "to have it run before that, let your login run `carpool up --detach`"
)
_PATIENCE_S: Final = 90.0


@click.command()
@click.argument("what", type=click.Choice(["install", "uninstall", "status"]))
@click.option("--print", "shown", is_flag=True, help="With install: show the unit, and do nothing.")
@click.option(
    "--for", "kind", type=click.Choice(["systemd", "launchd"]), help="With --print: not for this system."
)
@json_option
def service(what: str, *, shown: bool, kind: Kind | None, as_json: bool) -> None:
    """Have carpool run from your login on: `carpool service install`, and `uninstall`.

    A user unit of systemd, or an agent of launchd. carpool starts by itself with the first program that
    connects; with a service it is there before.
    """
    if (shown and what != "install") or (kind is not None and not shown):
        raise click.UsageError("--print goes with install, and --for with --print")
    if shown:
        click.echo(_text(kind or _HERE), nl=False)
    elif what == "install":
        _install(_HERE, as_json=as_json)
    elif what == "uninstall":
        _uninstall(as_json=as_json)
    else:
        _status(_HERE, as_json=as_json)


def _text(kind: Kind) -> str:
    command = own_command.executable()
    if kind == "systemd":
        return systemd_unit(command, os.environ)
    logs = paths.log_dir(os.environ, runtime_place().directory)
    return launchd_agent(command, os.environ, paths.daemon_log(logs, "service"))


def _file(kind: Kind) -> Path:
    home = home_of(os.environ)
    if kind == "launchd":
        return Path(home) / "Library" / "LaunchAgents" / f"{NAME}.plist"
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return Path(base if os.path.isabs(base) else os.path.join(home, ".config")) / "systemd" / "user" / _UNIT


def _is_ours(file: Path) -> bool:
    try:
        return MARK in file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def _install(kind: Kind, *, as_json: bool) -> None:
    _need(kind)
    file = _file(kind)
    if file.exists() and not _is_ours(file):
        fail(f"{file} is not carpool's: look at it, and move it away", EXIT_USAGE)
    runs = launcher_lock.holder(runtime_place().directory) is not None
    was_there = file.exists()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        private_files.replace(str(file), _text(kind).encode(), 0o644)
    except OSError as error:
        fail(f"{file} cannot be written ({error.strerror})")
    if problem := _activate(kind, file, runs=runs):
        if not was_there:
            file.unlink(missing_ok=True)  # else the next login might start what is told to have failed
        fail(f"{problem}; {_WITHOUT}")
    if as_json:
        print_json({"file": str(file), "started": not runs})
        return
    click.echo(f"{display.printable(str(file))} is there: carpool runs from your login on")
    if runs:
        click.echo("carpool runs already, and goes on; the service takes over with your next login")


def _activate(kind: Kind, file: Path, *, runs: bool) -> str:
    """Have systemd or launchd take the unit. Returns the problem, empty if there is none."""
    if kind == "systemd":
        now = [] if runs else ["--now"]
        return _told("systemctl", "--user", "daemon-reload") or _told(
            "systemctl", "--user", "enable", *now, _UNIT
        )
    return "" if runs else _told("launchctl", "bootstrap", _domain(), str(file))  # a login finds it by itself


def installed_unit() -> Path | None:
    """Return the file of the service if it is there and carpool's."""
    file = _file(_HERE)
    return file if file.exists() and _is_ours(file) else None


def remove_unit(file: Path) -> str:
    """End the service and remove its file.

    Returns the problem that systemd has with it, empty if there is none. Raises `OSError` if the file stays.
    """
    if _HERE == "launchd":
        _try("launchctl", "bootout", f"{_domain()}/{NAME}")
        file.unlink()
        return ""
    problem = _told("systemctl", "--user", "disable", "--now", _UNIT)
    file.unlink()
    if problem:  # `disable` would have removed the link by which a login starts the unit
        (file.parent / "default.target.wants" / _UNIT).unlink(missing_ok=True)
    return problem or _told("systemctl", "--user", "daemon-reload")


def _uninstall(*, as_json: bool) -> None:
    file = _file(_HERE)
    there = file.exists()
    if there and not _is_ours(file):
        fail(f"{file} is not carpool's, and stays", EXIT_USAGE)
    problem = ""
    if there:
        try:
            problem = remove_unit(file)
        except OSError as error:
            fail(f"{file} cannot be removed ({error.strerror})")
    if problem:
        click.echo(f"carpool: {problem}; a service that still runs ends with `carpool down`", err=True)
    if as_json:
        print_json({"file": str(file), "removed": there})
    else:
        click.echo(f"{display.printable(str(file))} is gone" if there else "there is no service of carpool")


def _status(kind: Kind, *, as_json: bool) -> None:
    file = _file(kind)
    installed = file.exists() and _is_ours(file)
    held = launcher_lock.holder(runtime_place().directory)
    asked = (
        _try("systemctl", "--user", "is-active", _UNIT)
        if kind == "systemd"
        else _try("launchctl", "print", f"{_domain()}/{NAME}")
    )
    active = installed and asked is not None and asked.returncode == 0
    current = installed and file.read_text(encoding="utf-8", errors="replace") == _text(kind)
    if as_json:
        facts = {"file": str(file), "installed": installed, "current": current, "active": active}
        print_json({**facts, "running": held is not None})
        return
    if not installed:
        click.echo("there is no service of carpool; `carpool service install` makes one")
    else:
        click.echo(f"{display.printable(str(file))}: {'active' if active else 'not active'}")
        if not current:
            click.echo("it is not what it would be by now: `carpool service install` writes it again")
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
