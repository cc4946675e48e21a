"""The verb `uninstall`: undoes `carpool setup`, removes the service, ends the daemon, and says what is left.

Owns the order. `--purge` removes only files that carpool has written (`setup.state_files`), never a whole
directory that a variable may name. Programs come first: an entry that still leads to carpool would
start it again. Refuses to know how a file is undone (`setup.undo_run`) or a service is removed (`service`).
"""

import contextlib
import os
import sys
from pathlib import Path
from typing import Final

import click
from msgspec import Struct

from carpool import launcher_lock
from carpool.cli import service
from carpool.cli.daemon import DOWN_S, end_daemon
from carpool.control.place import runtime_place
from carpool.launcher.runtime_place import RuntimePlace
from carpool.setup import run_record
from carpool.setup.state_files import STATE_DIRECTORIES, STATE_FILES, own_files
from carpool.setup.undo_run import undo_all
from carpool.terminal import display
from carpool.terminal.verb_output import EXIT_FAILED, EXIT_USAGE, fail
from carpool_protocol.bootstrap import paths
from carpool_protocol.bootstrap.install_method import remove_command
from carpool_protocol.config.reading.load import ConfigFile, find_config_file

_SECRETS: Final = "secrets.env"


class Remains(Struct, frozen=True):
    """What is there of carpool, beside the program itself."""

    place: RuntimePlace
    state: Path
    config: ConfigFile
    unit: Path | None
    """The file of the service."""
    runs: list[run_record.SetupRun]
    """Runs of `carpool setup` that are not undone."""
    pid: int | None
    """The launcher that runs; None: carpool does not run."""

    def purged(self) -> list[Path]:
        """Return the files and directories that `--purge` removes."""
        own = [Path(self.config.path), Path(self.config.path).with_name(_SECRETS)]
        written = [] if self.config.asked_for else own  # a file that a variable names has a place of its own
        return [
            each
            for each in (*(self.state / name for name in (*STATE_FILES, *STATE_DIRECTORIES)), *written)
            if os.path.lexists(each)
        ]


def remains() -> Remains:
    """Find what is there. Ends the verb if the records of setup cannot be read."""
    place = runtime_place()
    state = Path(paths.state_dir(os.environ, place.directory))
    try:
        runs = [each for each in run_record.undoable_runs(f"{state}/setup") if not each.is_undone()]
    except ValueError as error:
        fail(str(error))
    held = launcher_lock.holder(place.directory)
    unit = service.installed_unit()
    return Remains(place, state, find_config_file(os.environ), unit, runs, held.pid if held else None)


@click.command()
@click.option("--purge", is_flag=True, help="Remove your configuration and carpool's state as well.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def uninstall(*, purge: bool, dry_run: bool, yes: bool) -> None:
    """Undo `carpool setup`, remove the service, end carpool, and say what is left and where.

    It asks first. The program itself stays: the last line names the command that removes it.
    """
    found = remains()
    click.echo("\n".join(map(display.printable, _steps(found, purge=purge))))
    if dry_run:
        if found.runs:
            click.echo("\nIn the files of your programs:")
            with contextlib.suppress(click.exceptions.Exit):  # files that would be kept
                _undo(found, dry_run=True)
        else:
            click.echo("nothing is changed: it was a dry run")
        return
    if not yes:
        if not sys.stdin.isatty():
            fail("nobody is there to be asked: look at it and say `carpool uninstall --yes`", EXIT_USAGE)
        if not click.confirm("Do this?", err=True):
            click.echo("nothing is changed", err=True)
            raise click.exceptions.Exit(EXIT_FAILED)
    _perform(found, purge=purge)


def _steps(found: Remains, *, purge: bool) -> list[str]:
    """Return what will be done, and what stays."""
    files = sum(len(run.record.entries) - len(run.record.undone) for run in found.runs)
    lines = [f"setup     is undone: {files} files get back what they had"] if found.runs else []
    lines += [f"service   {found.unit} is removed"] if found.unit is not None else []
    lines += [f"carpool   ends, with its servers (pid {found.pid})"] if found.pid is not None else []
    lines += [f"removed   {each}" for each in found.purged()] if purge else []
    return [*(lines or ["There is nothing to undo, to end or to remove."]), "", *_stays(found, purge=purge)]


def _stays(found: Remains, *, purge: bool) -> list[str]:
    """Return what stays, with its place and the command that removes it."""
    gone = set(found.purged()) if purge else set()
    config = Path(found.config.path)
    places = [(config, "your configuration"), (config.with_name(_SECRETS), "secrets of your configuration")]
    lines = [f"stays     {path}: {what}" for path, what in places if path.exists() and path not in gone]
    runtime = [Path(found.place.directory)] if found.pid is None else []  # else its files go with carpool
    for directory in (found.state, *runtime):
        names = sorted(each.name for each in directory.glob("*") if each not in gone and each != found.state)
        if names:
            lines.append(f"stays     {directory}: {', '.join(names)}")
    if lines and not purge:
        lines.append("          `carpool uninstall --purge` removes configuration and state")
    return [
        *lines,
        "stays     entries with `carpool connect` that you wrote into programs yourself",
        f"stays     the program: {remove_command()}",
    ]


def _undo(found: Remains, *, dry_run: bool) -> None:
    store = f"{found.state}/setup"
    with run_record.setup_lock(store):
        undo_all(store, named=(), dry_run=dry_run, force=False, as_json=False, tells_remains=False)


def _perform(found: Remains, *, purge: bool) -> None:
    if found.runs:
        try:
            _undo(found, dry_run=False)
        except click.exceptions.Exit:
            fail("nothing else is removed while files of programs still lead to carpool; see above")
        except OSError as error:
            fail(f"{error.filename or found.state} cannot be used ({error.strerror})")
    if found.unit is not None:
        _remove_unit(found.unit)
    if end_daemon(found.place, DOWN_S):
        click.echo("carpool is down")
    for path in paths.held_until_down(found.place.directory):
        with contextlib.suppress(OSError):
            os.unlink(path)
    if purge:
        _purge(found)
    click.echo("\n".join(map(display.printable, _stays(remains(), purge=purge))))


def _remove_unit(file: Path) -> None:
    try:
        problem = service.remove_unit()
    except OSError as error:
        fail(f"{file} cannot be removed ({error.strerror})")
    click.echo(f"{display.printable(str(file))} is gone")
    if problem:
        click.echo(f"carpool: {problem}", err=True)


def _purge(found: Remains) -> None:
    """Remove what carpool has written, and its directories if nothing else is in them."""
    for path in found.purged():
        left: list[Path] = []
        try:
            if path.is_dir() and not path.is_symlink():
                left = _remove_own_files(path)
            else:
                path.unlink()
        except OSError as error:
            fail(f"{error.filename or path} cannot be removed ({error.strerror})")
        for each in left:
            click.echo(f"stays     {display.printable(str(each))}: carpool has not made it")
        if not left:
            click.echo(f"{display.printable(str(path))} is gone")
    for directory in (found.state, Path(found.config.path).parent):
        with contextlib.suppress(OSError):  # something else is in it
            directory.rmdir()


def _remove_own_files(directory: Path) -> list[Path]:
    """Remove the files of carpool, and their directories if these are empty then. Returns what is left."""
    files = [*own_files(directory)]
    for path in files:
        path.unlink()
    made = {path.parent for path in files} - {directory}
    # A NATS server makes directories, and has no file in them.
    below = [each for path in made for each in path.rglob("*") if each.is_dir() and not each.is_symlink()]
    for path in (*sorted(below, reverse=True), *made, directory):
        with contextlib.suppress(OSError):  # something else is in it
            path.rmdir()
    return sorted(path for path in directory.rglob("*") if path.is_symlink() or not path.is_dir())
