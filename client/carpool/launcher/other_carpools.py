"""Other carpools of this user that run with the same configuration.

Programs do not all pass on `CARPOOL_RUNTIME_DIR`. One that does not starts a carpool of its own in the usual
runtime directory, beside the one that the user's terminal means: each server then runs twice, and acts of the
terminal reach only one of them.

Owns the file in the state directory that names the runtime directory, and the search: the usual runtime
directory, and those named in state directories of the state home. A carpool whose state directory lies
elsewhere (`CARPOOL_STATE_DIR`) is not found. Standard library only: the launcher writes the file, and a
starter looks for others. Refuses to know what is done about them.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from carpool import launcher_lock
from carpool.launcher.runtime_place import RuntimePlace
from carpool_protocol.bootstrap import paths
from carpool_protocol.files import private_files

NAME_FILE: Final = "runtime-directory"
"""The file in a state directory that names its runtime directory."""
_MOST_BYTES: Final = 4096


class OtherCarpool(NamedTuple):
    """One that runs elsewhere."""

    directory: str
    """Its runtime directory."""
    pid: int
    """Its launcher."""


def name_directory(place: RuntimePlace) -> None:
    """Write the runtime directory into the state directory if that is one of its own. If it cannot be
    written, others do not find it.
    """
    state = os.path.dirname(place.logs)
    if not os.path.basename(state).startswith(paths.RUNTIME_STATE_PREFIX):
        return
    data, path = os.fsencode(place.directory), os.path.join(state, NAME_FILE)
    with contextlib.suppress(OSError):
        private_files.replace(path, data)


def other_carpools(environ: Mapping[str, str], directory: str, config: str) -> list[OtherCarpool]:
    """Return the carpools that run with this configuration file in other runtime directories."""
    found = []
    for candidate in dict.fromkeys(_directories(environ)):
        if candidate == directory or not _is_ours(candidate):
            continue
        held = launcher_lock.holder(candidate)
        if held is not None and held.pid and held.file and paths.is_same_file(held.file, config):
            found.append(OtherCarpool(candidate, held.pid))
    return found


def other_carpool_text(other: OtherCarpool) -> str:
    """Return the sentence about one of them."""
    return (
        f"another carpool with this configuration runs in {other.directory} (pid {other.pid}), with servers "
        f"of its own: programs that do not pass on {paths.RUNTIME_VARIABLE} use another carpool than those "
        "that do"
    )


def _directories(environ: Mapping[str, str]) -> Iterator[str]:
    yield paths.usual_runtime_dir(environ, os.getuid())
    home = paths.state_home(environ)
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(home)):
            if name.startswith(paths.RUNTIME_STATE_PREFIX):
                yield from _named_in(os.path.join(home, name, NAME_FILE))


def _named_in(path: str) -> Iterator[str]:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        named = os.fsdecode(file.read(_MOST_BYTES))
        if os.path.isabs(named) and "\0" not in named:
            yield named


def _is_ours(directory: str) -> bool:
    try:
        return os.lstat(directory).st_uid == os.getuid()
    except OSError:
        return False
