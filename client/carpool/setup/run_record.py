"""The records of setup runs, so that each can be undone: `setup/` in the state directory.

Owns the records, one directory for each run, made before the first file is changed: the files, their modes,
and their bytes before and after. Only this user can read them, because those bytes hold secrets. A run that
was killed half-way has a whole record, or has changed nothing. Knows nothing of: what the files mean.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from typing import Final, Literal

import msgspec
from msgspec import Struct

from carpool.setup import file_io
from carpool.setup.model import FileChange, KeyPath, Role
from carpool_protocol.files import private_files
from carpool_protocol.runtime.wallclock import wallclock

_RECORD: Final = "record.json"


class SetupRecordFile(Struct, frozen=True):
    """One file of a run."""

    path: str
    role: Role
    existed: bool
    mode: int
    """The mode before the run; of a file that is made, its first mode."""
    regions: tuple[KeyPath, ...] = ()
    made: tuple[str, ...] = ()
    """Directories that were made for the file."""
    client: str = ""
    """The program that owns the file, as for `--client`; empty if the file is carpool's."""


class SetupRecord(Struct, frozen=True):
    """One run."""

    at: str
    """The time of the run, for people."""
    entries: tuple[SetupRecordFile, ...]
    trust: str | None = None
    """The digest of the project's file that was trusted before, or empty.

    None: the run did not change trust.
    """
    listed: tuple[str, ...] = ()
    """With `trust`: the servers that the question had named, as taking the place of the user's own."""
    undone: dict[int, str] = {}
    """Entries that were undone, by number, with the outcome. They are not touched again."""
    version: Literal[1] = 1


_decoder = msgspec.json.Decoder(SetupRecord)


class SetupRun(Struct, frozen=True):
    """A record and its directory."""

    directory: str
    record: SetupRecord

    def before(self, number: int) -> bytes | None:
        """Return the bytes of file NUMBER before setup; None if there was none."""
        return (
            file_io.bytes_of(f"{self.directory}/{number}.before")
            if self.record.entries[number].existed
            else None
        )

    def is_undone(self) -> bool:
        """True if every entry is undone and only the copies are left."""
        return len(self.record.undone) == len(self.record.entries)

    def after(self, number: int) -> bytes:
        """Return the bytes of file NUMBER after setup."""
        return file_io.bytes_of(f"{self.directory}/{number}.after") or b""


@contextlib.contextmanager
def setup_lock(store: str) -> Iterator[None]:
    """Hold the lock that allows one setup at a time. Raises `OSError`."""
    with open(private_files.open_to_append(f"{store}/lock"), "a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def begin_run(
    store: str, changes: Sequence[FileChange], trust: str | None, listed: Collection[str] = ()
) -> SetupRun:
    """Record the changes that follow. `trust`, `listed`: see `SetupRecord`. Raises `OSError`."""
    numbers = [int(name) for name in os.listdir(store) if name.isdecimal()]
    directory = f"{store}/{max(numbers, default=0) + 1:04d}"
    os.mkdir(directory, 0o700)
    entries = []
    for number, each in enumerate(changes):
        mode = file_io.mode_of(each.path)
        made = tuple(file_io.missing_directories(each.path))
        entries.append(
            SetupRecordFile(
                each.path,
                each.role,
                each.before is not None,
                0o600 if mode is None else mode,
                each.regions,
                made,
                each.client,
            )
        )
        if each.before is not None:
            private_files.replace(f"{directory}/{number}.before", each.before)
        private_files.replace(f"{directory}/{number}.after", each.after)
    run = SetupRun(directory, SetupRecord(wallclock(), tuple(entries), trust, tuple(sorted(listed))))
    _write(run)
    return run


def mark_undone(run: SetupRun, undone: dict[int, str]) -> SetupRun:
    """Record that more files of a run were undone. Raises `OSError`."""
    record = msgspec.structs.replace(run.record, undone={**run.record.undone, **undone})
    marked = SetupRun(run.directory, record)
    _write(marked)
    return marked


def _write(run: SetupRun) -> None:
    data = msgspec.json.format(msgspec.json.encode(run.record), indent=1)
    private_files.replace(f"{run.directory}/{_RECORD}", data)


def undoable_runs(store: str) -> list[SetupRun]:
    """Return the runs that can be undone, the newest first.

    A run without a record has changed nothing, and is removed. Raises `OSError`, and `ValueError` for a
    record of another version.
    """
    found = []
    names = [name for name in os.listdir(store) if name.isdecimal()] if os.path.isdir(store) else []
    for name in sorted(names, key=int, reverse=True):
        data = file_io.bytes_of(f"{store}/{name}/{_RECORD}")
        if data is None:
            shutil.rmtree(f"{store}/{name}", ignore_errors=True)
            continue
        try:
            found.append(SetupRun(f"{store}/{name}", _decoder.decode(data)))
        except msgspec.MsgspecError:
            raise ValueError(f"{store}/{name}/{_RECORD} is no record of this version") from None
    return [run for run in found if not run.is_undone()]


def forget_run(run: SetupRun) -> None:
    """Remove an undone run with its copies, the record first."""
    with contextlib.suppress(OSError):
        os.unlink(f"{run.directory}/{_RECORD}")
    shutil.rmtree(run.directory, ignore_errors=True)
