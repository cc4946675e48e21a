"""`carpool setup --undo`: every run of setup, the newest first, file by file.

Owns what is done with a verdict, and what is told. A file that is kept is shown as it differs from what setup
left, and its run is kept for another try.

Knows nothing of: how the verdict is found (`undo`).
"""

import os
from typing import Any

import click
from msgspec import Struct

from carpool import display
from carpool.cli import EXIT_FAILED, fail, print_json
from carpool.setup import disk, ours, record, show
from carpool.setup.record import Entry, Record, Run
from carpool.setup.undo import Verdict, verdict
from carpool_protocol.config.environment import read_env_file
from carpool_protocol.config.project import Workspace
from carpool_protocol.config.trust import give_trust, key_of, read_trust, take_trust

_ORDER = ("client", "project", "own", "secrets")
"""Programs first: carpool has its servers until no program needs them there."""


class _Step(Struct, frozen=True):
    """One file of a run, and what becomes of it."""

    run: Run
    number: int
    now: bytes | None
    verdict: Verdict

    @property
    def entry(self) -> Entry:
        """What the record says of it."""
        return self.run.record.entries[self.number]


def undo_all(store: str, *, dry_run: bool, force: bool, as_json: bool) -> None:
    """Undo, and end the verb. Nobody is asked: nothing that somebody has changed since is lost without
    `force`. Raises `OSError`.
    """
    try:
        runs = record.runs(store)
    except ValueError as error:
        fail(str(error))
    if not runs:
        if as_json:
            print_json({"changed": False, "files": []})
        else:
            click.echo("there is nothing to undo: `carpool setup` has changed nothing here")
        return
    steps = _steps(runs, force=force)
    if not as_json:
        for each in steps:
            click.echo(_line(each))
            if each.verdict.outcome == "kept":
                click.echo(_shown(each) + "\n")
    if not dry_run:
        _do(runs, steps)
    kept = [each for each in steps if each.verdict.outcome == "kept"]
    if as_json:
        print_json({"changed": not dry_run, "files": [_facts(each) for each in steps]})
    elif dry_run:
        click.echo("nothing is changed: it was a dry run")
    else:
        click.echo(
            f"{len(kept)} files were kept: look at them, or say `carpool setup --undo --force`"
            if kept
            else "Done."
        )
    if kept:
        raise click.exceptions.Exit(EXIT_FAILED)


def _steps(runs: list[Run], *, force: bool) -> list[_Step]:
    """All verdicts. What a newer run leaves is what an older one finds."""
    files: dict[str, bytes | None] = {}
    found = []
    for run in runs:
        entries = run.record.entries
        for number in sorted(range(len(entries)), key=lambda each: _ORDER.index(entries[each].role)):
            entry = entries[number]
            now = files[entry.path] if entry.path in files else disk.bytes_of(entry.path)
            used = _texts(files) if entry.role == "secrets" else ""
            said = verdict(
                entry.role, run.before(number), run.after(number), now, entry.regions, force=force, used=used
            )
            files[entry.path] = said.data
            found.append(_Step(run, number, now, said))
    return found


def _texts(files: dict[str, bytes | None]) -> str:
    return "\n".join(each.decode("utf-8", "replace") for each in files.values() if each is not None)


def _do(runs: list[Run], steps: list[_Step]) -> None:
    for each in steps:
        disk.sweep_parts(each.entry.path)
        if each.verdict.outcome not in {"restored", "put back"}:
            continue
        if each.verdict.data is None:
            disk.remove(each.entry.path, each.entry.made)
        else:
            disk.write(each.entry.path, each.verdict.data, each.entry.mode)
        if each.entry.role == "project" and each.run.record.trust is not None:
            _trust_as_before(each.entry.path, each.run.record)
    for run in runs:
        if not any(each.verdict.outcome == "kept" for each in steps if each.run is run):
            record.forget(run)


def _trust_as_before(file: str, before: Record) -> None:
    """Trust was given to bytes that are gone. What somebody has taken back since stays so."""
    store = ours.trust_store()
    workspace = Workspace(os.path.dirname(os.path.dirname(file)), file)
    if key_of(workspace) not in read_trust(store):
        return
    if before.trust:
        give_trust(store, workspace, before.trust, before.listed)
    else:
        take_trust(store, workspace)


def _line(step: _Step) -> str:
    said, path = step.verdict, display.printable(step.entry.path)
    match said.outcome:
        case "kept":
            backup = f"{step.run.directory}/{step.number}.before"
            return f"{path} {said.why}, and stays" + (f" (before: {backup})" if step.entry.existed else "")
        case "as it was":
            return f"{path} is as it was"
        case "put back":
            return f"{path}: what setup changed goes back; it {said.why}"
        case "restored":
            what = "goes: setup made it" if said.data is None else "goes back to what it was"
            return f"{path} {what}{f', though it {said.why}' if said.why else ''}"


def _shown(step: _Step) -> str:
    """What somebody has changed."""
    hidden: set[str] = set()
    if step.entry.role == "secrets":
        for data in (step.now, step.run.after(step.number)):
            hidden |= set(read_env_file((data or b"").decode("utf-8", "replace"), "")[0].values())
    return show.between(step.run.after(step.number), step.now, step.entry.path, hidden)


def _facts(step: _Step) -> dict[str, Any]:
    return {"file": step.entry.path, "outcome": step.verdict.outcome, "why": step.verdict.why}
