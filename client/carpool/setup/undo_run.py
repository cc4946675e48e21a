"""`carpool setup --undo`: undoes every run of setup, the newest first, file by file.

Owns the execution of a verdict, and its report. A file is undone once: that is recorded, and no later undo
touches it. For a file that is kept, the difference from setup's text is shown, and the undo can be tried
again. While a program's file still leads to carpool, carpool's own files stay. The copies of a run are
removed only if every file of it is byte for byte as it was. Knows nothing of: how the verdict is found
(`undo`).
"""

import os
from collections.abc import Collection, Iterator
from typing import Any

import click
from msgspec import Struct

from carpool import launcher_lock
from carpool.control.place import runtime_place
from carpool.setup import carpool_files, diff, file_io, run_record
from carpool.setup.run_record import SetupRecord, SetupRecordFile, SetupRun
from carpool.setup.undo import UndoVerdict, undo_verdict
from carpool.terminal import display
from carpool.terminal.verb_output import EXIT_FAILED, fail, print_json
from carpool_protocol.config.reading.load import find_config_file, load_config
from carpool_protocol.config.reading.project import FoundWorkspace
from carpool_protocol.config.reading.trust import grant_trust, read_trust, revoke_trust, trust_key

_ORDER = ("client", "project", "own", "secrets")
"""The order of undoing. Programs come first: carpool keeps its servers until no program needs them there."""
_EXACT = ("restored", "as it was")


class _Step(Struct, frozen=True):
    """One file of a run and its verdict."""

    run: SetupRun
    number: int
    now: bytes | None
    verdict: UndoVerdict

    @property
    def entry(self) -> SetupRecordFile:
        """Return the file's entry in the record."""
        return self.run.record.entries[self.number]


def undo_all(
    store: str,
    *,
    named: Collection[str],
    dry_run: bool,
    force: bool,
    as_json: bool,
    tells_remains: bool = True,
) -> None:
    """Undo, and end the verb.

    `named`: only the files of these programs; empty: all files. `tells_remains`: say what is left of carpool.
    No question is asked: nothing that was written since is lost. Raises `OSError`.
    """
    try:
        runs = run_record.undoable_runs(store)
    except ValueError as error:
        fail(str(error))
    steps = _steps(runs, named, force=force)
    if not steps:
        _nothing(named, as_json=as_json)
        return
    if not as_json:
        for each in steps:
            click.echo(_line(each))
            if each.verdict.outcome == "kept" and each.entry.role == "client" and each.now is not None:
                click.echo(_shown(each) + "\n")
    if not dry_run:
        runs, steps = _do(runs, steps)
    kept = [each for each in steps if each.verdict.outcome == "kept"]
    said = [] if dry_run else [*_advice(kept, force=force), *_copies(runs)]
    if tells_remains and not dry_run:
        said += _remains(store, runs, named)
    if as_json:
        print_json({"changed": not dry_run, "files": [_facts(each) for each in steps], "next": said})
    elif dry_run:
        click.echo("nothing is changed: it was a dry run")
    else:
        click.echo("\n".join(map(display.printable, said if kept else ["Done.", *said])))
    if kept:
        raise click.exceptions.Exit(EXIT_FAILED)


def _nothing(named: Collection[str], *, as_json: bool) -> None:
    if as_json:
        print_json({"changed": False, "files": [], "next": []})
        return
    where = f"in files of {', '.join(named)}" if named else "here"
    click.echo(f"there is nothing to undo: `carpool setup` has changed nothing {where} that is not undone")


# --- deciding ----------------------------------------------------------------------------------------------


def _steps(runs: list[SetupRun], named: Collection[str], *, force: bool) -> list[_Step]:
    """Return all verdicts, programs' files first. An older run starts from the result of a newer one."""
    files: dict[str, bytes | None] = {}
    found: list[_Step] = []
    for role in _ORDER:
        # A program whose file is kept still reaches its servers through carpool's own files.
        needed = next((each for each in found if each.verdict.outcome == "kept" and each.now), None)
        for run in runs:
            for number, entry in enumerate(run.record.entries):
                is_wanted = entry.role == role and (not named or entry.client in named)
                if not is_wanted or number in run.record.undone:
                    continue
                now = files[entry.path] if entry.path in files else file_io.bytes_of(entry.path)
                if needed is not None and role != "client":
                    said = UndoVerdict("kept", now, f"is needed by {needed.entry.path}")
                else:
                    said = _verdict(run, number, now, files, force=force)
                files[entry.path] = said.data
                found.append(_Step(run, number, now, said))
    return found


def _verdict(
    run: SetupRun, number: int, now: bytes | None, files: dict[str, bytes | None], *, force: bool
) -> UndoVerdict:
    entry = run.record.entries[number]
    used = _texts(files) if entry.role == "secrets" else ""
    return undo_verdict(
        entry.role, run.before(number), run.after(number), now, entry.regions, force=force, used=used
    )


def _texts(files: dict[str, bytes | None]) -> str:
    return "\n".join(each.decode("utf-8", "replace") for each in files.values() if each is not None)


# --- doing -------------------------------------------------------------------------------------------------


def _do(runs: list[SetupRun], steps: list[_Step]) -> tuple[list[SetupRun], list[_Step]]:
    """Execute the verdicts.

    Returns the runs as they are recorded afterwards, and the steps with their outcome.
    """
    marked = {run.directory: run for run in runs}
    done: list[_Step] = []
    for each in steps:
        step = _done(each, done)
        done.append(step)
        if step.verdict.outcome != "kept":
            run = marked[step.run.directory]
            marked[run.directory] = run_record.mark_undone(run, {step.number: step.verdict.outcome})
    for run in marked.values():
        if run.is_undone() and all(each in _EXACT for each in run.record.undone.values()):
            run_record.forget_run(run)
    return list(marked.values()), done


def _done(step: _Step, before: list[_Step]) -> _Step:
    """Change the file, unless somebody has just written it."""
    path, said = step.entry.path, step.verdict
    file_io.sweep_parts(path)
    if said.outcome not in {"restored", "put back"}:
        return step
    lost = step.entry.role != "client" and any(
        each.verdict.outcome == "kept" and each.entry.role == "client" and each.now for each in before
    )
    if lost or file_io.bytes_of(path) != step.now:
        why = "was changed this very moment" if not lost else "is needed by a file that was kept"
        return _Step(step.run, step.number, step.now, UndoVerdict("kept", step.now, why))
    if said.data is None:
        file_io.remove(path, step.entry.made)
    else:
        file_io.write(path, said.data, step.entry.mode)
    if step.entry.role == "project" and step.run.record.trust is not None:
        _trust_as_before(path, step.run.record)
    return step


def _trust_as_before(file: str, before: SetupRecord) -> None:
    """Restore the earlier trust: the trusted bytes are gone. A trust that was revoked since stays revoked."""
    store = carpool_files.trust_store()
    workspace = FoundWorkspace(os.path.dirname(os.path.dirname(file)), file)
    if trust_key(workspace) not in read_trust(store):
        return
    if before.trust:
        grant_trust(store, workspace, before.trust, before.listed)
    else:
        revoke_trust(store, workspace)


# --- telling -----------------------------------------------------------------------------------------------


def _line(step: _Step) -> str:
    said, path = step.verdict, display.printable(step.entry.path)
    match said.outcome:
        case "kept":
            backup = f"{step.run.directory}/{step.number}.before"
            stays = "stays" if step.now is not None else "is not made again"
            return f"{path} {said.why}, and {stays}" + (f" (before: {backup})" if step.entry.existed else "")
        case "left":
            return f"{path} {said.why}; it is left as it is"
        case "as it was":
            return f"{path} is as it was"
        case "put back":
            return f"{path}: what setup changed goes back; it {said.why}"
        case "restored":
            return f"{path} {'goes: setup made it' if said.data is None else 'goes back to what it was'}"


def _shown(step: _Step) -> str:
    """Return the difference that somebody has made since setup."""
    return diff.text_difference(step.run.after(step.number), step.now, step.entry.path, ())


def _facts(step: _Step) -> dict[str, Any]:
    return {"file": step.entry.path, "outcome": step.verdict.outcome, "why": step.verdict.why}


def _advice(kept: list[_Step], *, force: bool) -> Iterator[str]:
    """Yield advice about the files that were kept."""
    if not kept:
        return
    yield f"Kept: {len(kept)} of carpool's and the programs' files. Look at them, then say it again."
    if not force and any(each.verdict.forceable for each in kept):
        yield (
            "carpool setup --undo --force     takes carpool's entry out even if it was edited, "
            "and keeps all else that was written since (also with --client NAME)"
        )


def _copies(runs: list[SetupRun]) -> Iterator[str]:
    for run in runs:
        if run.is_undone() and os.path.isdir(run.directory):
            yield f"Copies of the files as they were before setup stay in {run.directory}."


def _remains(store: str, runs: list[SetupRun], named: Collection[str]) -> Iterator[str]:
    """Yield what is left of carpool once no program has its entry."""
    if named:
        if any(not run.is_undone() for run in runs):
            yield "carpool.json keeps its servers. `carpool setup --undo` takes out what setup put there."
        return
    if not all(run.is_undone() for run in runs):
        return
    place = runtime_place().directory
    config = load_config(find_config_file(os.environ)).config
    if launcher_lock.holder(place) is not None and config is not None:
        yield f"carpool still runs{'' if config.servers else ', without a server'}. `carpool down` ends it."
    state = os.path.dirname(store)
    names = sorted(set(os.listdir(state)) - {os.path.basename(store)})
    if names:
        yield f"{state} keeps what carpool noted ({', '.join(names)})."
        yield "`carpool uninstall` ends carpool and says what is left; with --purge it removes that, too."
