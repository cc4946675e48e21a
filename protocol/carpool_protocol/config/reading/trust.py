"""Which project files the user has trusted, and in which words.

Owns the file of trust in the state directory: `{path of a project file: digest of the bytes}`, and which
servers of each the user was told to take the place of his own (rule 19). Project files
are code: they name commands to run. Trust is for the very bytes that were looked at, with
those of every file they bring in (`load.Layer.digest`); another byte, and it is asked again. Written by
`carpool trust`, read by the broker. A file that cannot be read trusts nothing, and is never written over: who
changes it sets it aside, under the lock, and who only reads it says so (`store_problem`).

Knows nothing of: who is asked, what is in the files.
"""

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, Literal

import msgspec
from msgspec import Struct

from carpool_protocol.config.reading.project import FoundWorkspace
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


def trust_key(workspace: FoundWorkspace) -> str:
    """Under which name a project file is trusted: one, however its directory is reached.

    A file that is a link is not followed: trusted bytes that a stranger's directory links to would run that
    directory's programs.
    """
    name = os.path.relpath(workspace.file, workspace.root)
    return os.path.join(os.path.realpath(workspace.root), name)


def read_trust(store: str) -> dict[str, str]:
    """Digests of what is trusted, by `trust_key`. Empty where there is no store or it cannot be read."""
    return _read(store)[0].trusted


def read_listed(store: str, workspace: FoundWorkspace) -> frozenset[str]:
    """Servers of its project file that the user was told to take the place of his own when he trusted it."""
    return frozenset(_read(store)[0].listed.get(trust_key(workspace), ()))


def store_problem(store: str) -> str:
    """What is wrong with the store and what that means, a sentence; empty: nothing is, or there is none."""
    why = _read(store)[1]
    return f"{store} {why}; {_LOST}" if why else ""


def set_aside_unreadable(store: str) -> str:
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


def trust_of(trusted: dict[str, str], workspace: FoundWorkspace, digest: str) -> Trust:
    """What is to be thought of its project file, of this digest."""
    return trust_state(trusted.get(trust_key(workspace)), digest)


def trust_state(known: str | None, digest: str) -> Trust:
    """The same where it is known what was trusted of this file; None: nothing was."""
    if known is None:
        return "untrusted"
    return "trusted" if known == digest else "changed"


def grant_trust(store: str, workspace: FoundWorkspace, digest: str, listed: Iterable[str] = ()) -> None:
    """Trust these bytes. `listed`: see `read_listed`. Raises `OSError`."""
    with _locked_store(store) as held:
        key = trust_key(workspace)
        held.trusted[key] = digest
        held.listed.pop(key, None)
        if names := sorted(listed):
            held.listed[key] = names


def revoke_trust(store: str, workspace: FoundWorkspace) -> bool:
    """Trust its file no longer. Whether it was. Raises `OSError`."""
    with _locked_store(store) as held:
        held.listed.pop(trust_key(workspace), None)
        return held.trusted.pop(trust_key(workspace), None) is not None


@contextmanager
def _locked(store: str) -> Iterator[None]:
    os.makedirs(os.path.dirname(store), mode=0o700, exist_ok=True)
    with open(private_files.open_to_append(store + ".lock"), "a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _locked_store(store: str) -> Iterator[_Store]:
    """The store, written back whole or not at all, by one at a time."""
    with _locked(store):
        _mended(store)
        held = _read(store)[0]
        yield held
        private_files.replace(store, msgspec.json.format(msgspec.json.encode(held), indent=1))
