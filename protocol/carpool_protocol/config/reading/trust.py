"""The project files that the user has trusted.

Owns the trust file in the state directory: `{path of a project file: digest of the bytes}`, and for each the
servers that the user was told replace his own (rule 19). Project files are code: they name commands to run.
Trust holds for exactly these bytes and those of all included files (`ConfigLayer.digest`); after any change
the user is asked again. `carpool trust` writes the file and the broker reads it. An unreadable file trusts
nothing and is never overwritten: a writer sets it aside, under the lock, and a reader reports it
(`store_problem`).

Knows nothing of: the question to the user, the content of project files.
"""

import fcntl
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Literal

import msgspec
from msgspec import Struct

from carpool_protocol.config.reading.project import FoundWorkspace
from carpool_protocol.files import private_files, state_file

Trust = Literal["trusted", "untrusted", "changed"]
"""`changed`: an earlier version of the file was trusted."""


class _Store(Struct):
    version: int = 1
    trusted: dict[str, str] = {}
    listed: dict[str, list[str]] = {}
    """By the same keys: servers that the question named as replacing the user's own."""


_decoder = msgspec.json.Decoder(_Store)
_LOST: Final = "no project is trusted until you run `carpool trust` again"


def trust_key(workspace: FoundWorkspace) -> str:
    """The key under which a project file is trusted: the same for every path to its directory.

    A file that is a link is not followed. Otherwise a stranger's directory could link to trusted bytes and
    run its own programs with them.
    """
    name = os.path.relpath(workspace.file, workspace.root)
    return os.path.join(os.path.realpath(workspace.root), name)


def read_trust(store: str) -> dict[str, str]:
    """Digests of trusted files, by `trust_key`. Empty if the store is missing or unreadable."""
    return _read(store)[0].trusted


def read_listed(store: str, workspace: FoundWorkspace) -> frozenset[str]:
    """Servers of this project file that the user knew to replace his own when he trusted it."""
    return frozenset(_read(store)[0].listed.get(trust_key(workspace), ()))


def store_problem(store: str) -> str:
    """A sentence about an unreadable store and its effect; empty if it is fine or missing."""
    why = _read(store)[1]
    return f"{store} {why}; {_LOST}" if why else ""


def set_aside_unreadable(store: str) -> str:
    """Set an unreadable store aside and return a sentence about it; empty if it is fine. Raises `OSError`."""
    if not _read(store)[1]:
        return ""
    with _locked(store):
        return _mended(store)


def _read(store: str) -> tuple[_Store, str]:
    """The content of the store, and a clause about a problem."""
    try:
        with open(store, "rb") as file:
            return _decoder.decode(file.read()), ""
    except FileNotFoundError:
        return _Store(), ""
    except OSError as error:
        return _Store(), f"cannot be read ({error.strerror})"
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return _Store(), "is not a trust file of this version"


def _mended(store: str) -> str:
    why = _read(store)[1]
    return state_file.set_aside(store, why, _LOST) if why else ""


def trust_of(trusted: dict[str, str], workspace: FoundWorkspace, digest: str) -> Trust:
    """`trusted`, `changed` or `untrusted` for a workspace's project file with this digest."""
    return trust_state(trusted.get(trust_key(workspace)), digest)


def trust_state(known: str | None, digest: str) -> Trust:
    """`trusted`, `changed` or `untrusted` for a file with this digest. `known`: the trusted digest; None:
    none.
    """
    if known is None:
        return "untrusted"
    return "trusted" if known == digest else "changed"


def waits_for_trust(file: str, root: str, trust: Trust, servers: Sequence[str]) -> str:
    """Return the sentence that a project's servers wait for its user. `trust`: not `trusted`."""
    why = "has changed since it was trusted" if trust == "changed" else "is not trusted"
    wait = "waits" if len(servers) == 1 else "wait"
    return f"{file} {why}: {', '.join(servers)} {wait} for `carpool trust {root}`"


def grant_trust(store: str, workspace: FoundWorkspace, digest: str, listed: Iterable[str] = ()) -> None:
    """Trust these bytes. `listed`: as in `read_listed`. Raises `OSError`."""
    with _locked_store(store) as held:
        key = trust_key(workspace)
        held.trusted[key] = digest
        held.listed.pop(key, None)
        if names := sorted(listed):
            held.listed[key] = names


def revoke_trust(store: str, workspace: FoundWorkspace) -> bool:
    """End the trust in a project file. True if it was trusted. Raises `OSError`."""
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
    """The store, locked for one writer and written back whole or not at all."""
    with _locked(store):
        _mended(store)
        held = _read(store)[0]
        yield held
        private_files.replace(store, msgspec.json.format(msgspec.json.encode(held), indent=1))
