"""Which project files the user has trusted, and in which words.

Owns the file of trust in the state directory: `{path of a project file: digest of the bytes}`, and which
servers of each the user was told to take the place of his own (rule 19). Project files
are code: they name commands to run. Trust is for the very bytes that were looked at, with
those of every file they bring in (`load.Layer.digest`); another byte, and it is asked again. Written by
`carpool trust`, read by the broker. A file that cannot be read trusts nothing, and is never written over: who
changes it sets it aside, under the lock, and who only reads it says so (`complaint`).

Knows nothing of: who is asked, what is in the files.
"""

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, Literal

import msgspec
from msgspec import Struct

from carpool_protocol.config.reading.project import Workspace
from carpool_protocol.files import private_files, state_file

Trust = Literal["trusted", "untrusted", "changed"]
"""`changed`: it was trusted when it said something else."""


class _Store(Struct):
    version: int = 1
    trusted: dict[str, str] = {}
    listed: dict[str, list[str]] = {}
    """By the same names: servers that the question named as taking the place of the user's own."""


_decoder = msgspec.json.Decoder(_Store)
_LOST: Final = "no project is trusted until `carpool trust` is said again"


def key_of(workspace: Workspace) -> str:
    """Under which name a project file is trusted: one, however its directory is reached.

    A file that is a link is not followed: trusted bytes that a stranger's directory links to would run that
    directory's programs.
    """
    name = os.path.relpath(workspace.file, workspace.root)
    return os.path.join(os.path.realpath(workspace.root), name)


def read_trust(store: str) -> dict[str, str]:
    """Digests of what is trusted, by `key_of`. Empty where there is no store or it cannot be read."""
    return _read(store)[0].trusted


def read_listed(store: str, workspace: Workspace) -> frozenset[str]:
    """Servers of its project file that the user was told to take the place of his own when he trusted it."""
    return frozenset(_read(store)[0].listed.get(key_of(workspace), ()))


def complaint(store: str) -> str:
    """What is wrong with the store and what that means, a sentence; empty: nothing is, or there is none."""
    why = _read(store)[1]
    return f"{store} {why}; {_LOST}" if why else ""


def mend(store: str) -> str:
    """Set a store aside that cannot be read, and say so, a sentence; empty: nothing is wrong with it. Raises
    `OSError`.
    """
    if not _read(store)[1]:
        return ""
    with _locked(store):
        return _mended(store)


def _read(store: str) -> tuple[_Store, str]:
    """What is trusted, and what is wrong with the file, a clause."""
    try:
        with open(store, "rb") as file:
            return _decoder.decode(file.read()), ""
    except FileNotFoundError:
        return _Store(), ""
    except OSError as error:
        return _Store(), f"cannot be read ({error.strerror})"
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return _Store(), "is not a file of trust of this version"


def _mended(store: str) -> str:
    why = _read(store)[1]
    return state_file.set_aside(store, why, _LOST) if why else ""


def trust_of(trusted: dict[str, str], workspace: Workspace, digest: str) -> Trust:
    """What is to be thought of its project file, of this digest."""
    return judged(trusted.get(key_of(workspace)), digest)


def judged(known: str | None, digest: str) -> Trust:
    """The same where it is known what was trusted of this file; None: nothing was."""
    if known is None:
        return "untrusted"
    return "trusted" if known == digest else "changed"


def give_trust(store: str, workspace: Workspace, digest: str, listed: Iterable[str] = ()) -> None:
    """Trust these bytes. `listed`: see `read_listed`. Raises `OSError`."""
    with _changed(store) as held:
        key = key_of(workspace)
        held.trusted[key] = digest
        held.listed.pop(key, None)
        if names := sorted(listed):
            held.listed[key] = names


def take_trust(store: str, workspace: Workspace) -> bool:
    """Trust its file no longer. Whether it was. Raises `OSError`."""
    with _changed(store) as held:
        held.listed.pop(key_of(workspace), None)
        return held.trusted.pop(key_of(workspace), None) is not None


@contextmanager
def _locked(store: str) -> Iterator[None]:
    os.makedirs(os.path.dirname(store), mode=0o700, exist_ok=True)
    with open(private_files.open_to_append(store + ".lock"), "a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _changed(store: str) -> Iterator[_Store]:
    """The store, written back whole or not at all, by one at a time."""
    with _locked(store):
        _mended(store)
        held = _read(store)[0]
        yield held
        private_files.replace(store, msgspec.json.format(msgspec.json.encode(held), indent=1))
